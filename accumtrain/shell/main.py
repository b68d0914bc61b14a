"""The first lines of a command. Only what they need is imported before them, as importing the rest takes a while."""

from __future__ import annotations

import sys

from accumtrain.process.interrupt import end_on_signals, ignore_signals
from accumtrain.process.program import remember_program


def main() -> None:
    """The command line, for the console script `accumtrain` and for programs that register choices of their own.

    It reads sys.argv and ends the process with the exit code. The child processes of probes and sweeps run the same
    program again, including everything before this call.
    """
    end_on_signals()
    caller = sys._getframe(1).f_globals
    if caller.get("__name__") == "__main__":
        remember_program(caller)

    from accumtrain.shell.cli import command
    from accumtrain.shell.streams import keep_streams

    keep_streams(quiet=True)
    code = command()
    ignore_signals()  # the job has ended: a signal must not change the exit code while Python shuts down
    sys.exit(code)
