"""One command of the command line: Hydra composes the configuration, which is checked; then a job runs.

Exit codes are in errors.py. TensorFlow is imported when a job begins, so help and mistakes are answered at once.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import entry_points
from pathlib import Path

from omegaconf import DictConfig

from accumtrain import dispatch
from accumtrain.cli.choices import offer_entries
from accumtrain.cli.compose import (
    call_hydra,
    list_job_overrides,
    list_user_folders,
    plain_values,
    read_config,
    read_options,
)
from accumtrain.cli.guard import SHOW_TRACEBACK, run_guarded
from accumtrain.cli.streams import keep_streams
from accumtrain.console import escape_lines
from accumtrain.errors import ConfigError
from accumtrain.process import child
from accumtrain.process.program import CHILD, EXTENSIONS, WORKERS
from accumtrain.version import __version__


def load_extensions() -> None:
    """Import every module, or call every function, by which an installed package registers choices.

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
                f"fix it, or uninstall {point.dist.name if point.dist else 'its package'}"
            ) from error


def command() -> int:
    """Run the command in sys.argv. Return its exit code, one of errors.py or 130.

    ACCUMTRAIN_TRACEBACK=1 or HYDRA_FULL_ERROR=1 in the environment shows tracebacks with the messages.
    """
    # Hydra then raises its errors instead of printing them. The user's own setting is kept, for children too.
    os.environ.setdefault(SHOW_TRACEBACK, os.environ.get("HYDRA_FULL_ERROR", "0"))
    os.environ["HYDRA_FULL_ERROR"] = "1"
    code, result = run_guarded(_run_command)
    return code if result is None else result


def _run_command() -> int:
    """Run what the first words ask for. Sweeps, workers and help are imported here: a training needs none."""
    if "--version" in sys.argv[1:]:
        print(f"accumtrain {__version__}")
        return 0
    load_extensions()
    if sys.argv[1:2] == [CHILD]:
        return child.serve_request(Path(sys.argv[2]))
    if sys.argv[1:2] == [WORKERS]:
        from accumtrain.cli.workers import run_workers

        return run_workers(sys.argv[2:])
    options = read_options()
    offer_entries()
    if options.help:
        from accumtrain.cli.help import describe_names, help_text

        print(escape_lines(describe_names(options) if options.overrides else help_text(list_user_folders(options))))
        return 0
    if options.multirun or "hydra.mode=MULTIRUN" in options.overrides:
        from accumtrain.cli.sweep.job import run_sweep

        return run_sweep(options)
    codes: list[int] = []
    call_hydra(options, lambda composed: codes.append(_run_composed(composed)))
    return codes[0] if codes else 0  # --cfg and --info run no job


def _run_composed(composed: DictConfig) -> int:
    """Run the job that Hydra composed. Return the exit code."""
    keep_streams(quiet=False)
    code, _ = run_guarded(lambda: dispatch.run(read_config(plain_values(composed), list_job_overrides())))
    return code
