"""Where a job writes: the folder is made by one function, before any work, for all jobs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.kinds.jobs import JOBS
from accumtrain.runs.names import run_name

CHECKPOINTS = "checkpoints"  # of a run, within its folder


def folder_of(config: Config) -> Path:
    """The folder of the configured run."""
    return Path(config.run.dir) / run_name(config, [])


def job_folder(config: Config) -> Path:
    """The folder that the configured job writes into."""
    return Path(config.run.dir) if JOBS[config.job].compares_runs else folder_of(config)


def result_file(config: Config) -> Path:
    """The file that the result of the configured job is written to."""
    return job_folder(config) / JOBS[config.job].file


@contextmanager
def open_folder(config: Config) -> Iterator[Path]:
    """The folder that the configured job writes into, made before any work. It is removed if it stays empty.

    Raises:
        ConfigError: it can't be made.
        CheckpointError: the job needs a trained run, and there is none.
    """
    path = job_folder(config)
    if JOBS[config.job].needs_a_run and not any(path.glob(f"{CHECKPOINTS}/**/*.index")):
        raise CheckpointError(f"no checkpoint in {path / CHECKPOINTS}: train first, with the same run.name")
    make_folder(path)
    try:
        yield path
    finally:
        for folder in (path, Path(config.run.dir)):
            with suppress(OSError):  # there is something in it
                folder.rmdir()


def make_folder(path: Path) -> None:
    """Raises ConfigError if it can't be made."""
    with folder_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def folder_errors(path: Path) -> Iterator[None]:
    """Within, an OSError becomes a ConfigError that names the folder of the run."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"the run's folder {path} can't be used: {error.strerror}; choose another run.dir or run.name"
        ) from error
