"""Run a command of the command line."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from importlib.metadata import entry_points
from pathlib import Path

from omegaconf import DictConfig

from accumtrain import dispatch
from accumtrain.cli.choices import offer_rows
from accumtrain.cli.compose import call_hydra, own_folders, own_overrides, plain_values, read_config, read_options
from accumtrain.cli.guard import SHOW_TRACEBACK, run_guarded
from accumtrain.cli.help import help_on, help_text
from accumtrain.cli.streams import keep_streams
from accumtrain.cli.sweep import run_sweep
from accumtrain.cli.workers import WORKERS, run_workers
from accumtrain.console import visible_lines
from accumtrain.errors import ConfigError
from accumtrain.process import child
from accumtrain.process.program import CHILD, EXTENSIONS
from accumtrain.version import __version__

# Installed packages that add choices: their modules register rows when they are imported.


def load_extensions() -> None:
    """Import every module, or calls every function, that an installed package names in the entry point group.

    Raises:
        ConfigError: an extension can't be imported, or fails.
    """
    for point in entry_points(group=EXTENSIONS):
        try:
            extension = point.load()
            if callable(extension):
                extension()
        except Exception as error:
            raise ConfigError(
                f"the installed extension {point.name} ({point.value}) fails: {type(error).__name__}: {error}; "
                f"mend it, or uninstall {point.dist.name if point.dist else 'its package'}"
            ) from error


# The command line: Hydra composes the configuration, which is checked; then a job runs. Exit codes are in errors.py.
#
# TensorFlow is imported when a job begins, so help, completion and mistakes are answered at once.


def command() -> int:
    """Run the command in sys.argv. Return its exit code: that of errors.py, or 130.

    ACCUMTRAIN_TRACEBACK=1 or HYDRA_FULL_ERROR=1 in the environment shows tracebacks with the messages.
    """
    # makes Hydra raise its errors instead of printing them; the user's own setting is kept, for children too
    os.environ.setdefault(SHOW_TRACEBACK, os.environ.get("HYDRA_FULL_ERROR", "0"))
    os.environ["HYDRA_FULL_ERROR"] = "1"
    code, result = run_guarded(_run_command)
    return code if result is None else result


def _run_command() -> int:
    if "--version" in sys.argv[1:]:
        print(f"accumtrain {__version__}")
        return 0
    load_extensions()
    if sys.argv[1:2] == [CHILD]:
        return child.serve_request(Path(sys.argv[2]))
    if sys.argv[1:2] == [WORKERS]:
        return run_workers(sys.argv[2:])
    options = read_options()
    offer_rows()
    if options.help:
        print(visible_lines(help_on(options) if options.overrides else help_text(own_folders(options))))
        return 0
    if options.multirun or "hydra.mode=MULTIRUN" in options.overrides:
        return run_sweep(options)
    return _run_single(options)


def _run_single(options: Namespace) -> int:
    codes: list[int] = []
    call_hydra(options, lambda composed: codes.append(_run_composed(composed)))
    return codes[0] if codes else 0  # --cfg and --info run no job


def _run_composed(composed: DictConfig) -> int:
    """Run the job that Hydra composed. Return the exit code."""
    keep_streams(quiet=False)

    def run_job() -> None:
        dispatch.run(read_config(plain_values(composed), own_overrides()))

    return run_guarded(run_job)[0]
