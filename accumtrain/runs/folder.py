"""The folder that a job writes into. One function makes it for all jobs, before any work."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.kinds.jobs import JOBS
from accumtrain.runs.names import run_name

CHECKPOINTS = "checkpoints"  # of a run, within its folder
BEST = "best"  # the checkpoints of the best state, within their folder
QUARANTINE = "quarantine"  # of damaged checkpoints, within their folder


def folder_of(config: Config) -> Path:
    """The folder of the configured run."""
    return Path(config.run.dir) / run_name(config, [])


def job_folder(config: Config) -> Path:
    """The folder that the configured job writes into."""
    return Path(config.run.dir) if JOBS[config.job].scope == "runs" else folder_of(config)


def has_checkpoints(path: Path) -> bool:
    """Whether the folder holds a run that can be continued or used, damaged or not."""
    return any(path.glob(f"{CHECKPOINTS}/**/step-*"))


def result_file(config: Config) -> Path:
    """The file that the result of the configured job is written to."""
    return job_folder(config) / JOBS[config.job].file


@contextmanager
def open_folder(config: Config) -> Iterator[Path]:
    """Makes the folder that the configured job writes into, and yields it. New folders that stay empty are removed.

    Raises:
        ConfigError: the folder can't be made, or has a folder where the job writes its file.
        CheckpointError: the job needs a trained run, and there is none.
    """
    path = job_folder(config)
    with folder_errors(path):
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise CheckpointError(f"{path} can't be read and written; give this user access, or choose another run.dir")
    try:
        if JOBS[config.job].scope == "trained" and not has_checkpoints(path):
            raise CheckpointError(f"no checkpoint in {path / CHECKPOINTS}: train first, with the same run.name")
        if result_file(config).is_dir():
            raise ConfigError(f"{result_file(config)} is a folder, and the job writes a file there: move it away")
        yield path
    finally:
        for folder in made:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def make_folder(path: Path) -> None:
    """Makes the folder and those above it. Raises ConfigError if that fails."""
    with folder_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def folder_errors(path: Path) -> Iterator[None]:
    """Within this context, an OSError becomes a ConfigError that names the folder of the run."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the run's folder {path} can't be used: {error.strerror}; choose another run.dir or run.name"
        ) from error
