"""The first lines of a command. Nothing slow is imported before these lines have run."""

from __future__ import annotations

import os
import sys

from accumtrain.process.signals import end_on_signals, ignore_signals

UTF8 = "utf-8"


def main() -> None:
    """Run the command line, for the console script `accumtrain` and for programs that register choices.

    It reads sys.argv and ends the process with the exit code. The child processes of probes and sweeps run the same
    program again, including everything before this call.
    """
    end_on_signals()
    if sys.getfilesystemencoding() != UTF8:
        _restart_in_utf8()
    caller = sys._getframe(1).f_globals

    from accumtrain.cli.command import command
    from accumtrain.cli.streams import keep_streams
    from accumtrain.process.program import remember_program

    if caller.get("__name__") == "__main__":
        remember_program(caller)
    keep_streams(quiet=True)
    code = command()
    ignore_signals()  # the job has ended: a signal must not change the exit code while Python shuts down
    sys.exit(code)


def _restart_in_utf8() -> None:
    """Start the command anew in UTF-8, the encoding in which TensorFlow takes names of files."""
    os.environ["PYTHONUTF8"] = "1"  # children inherit it
    if sys.stdout is not None:
        os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding)  # a terminal keeps its encoding
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
