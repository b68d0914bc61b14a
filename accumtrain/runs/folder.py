"""The folder and the file that a job writes. One function makes the folder for all jobs, before any work."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from accumtrain.config.jobs import JOBS
from accumtrain.config.read import to_mapping
from accumtrain.config.roles import keys_with
from accumtrain.config.schema import Config
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.fields import Role
from accumtrain.runs.config import BEST_STATE
from accumtrain.runs.contents import read_config
from accumtrain.runs.files import list_folder
from accumtrain.runs.names import (
    CHECKPOINTS,
    LENGTH,
    MARK,
    differences,
    folder_errors,
    folder_of,
    has_checkpoints,
    make_folder,
    replace_odd,
    shorten_name,
)

TRIALS = "trials"  # within run.dir, the folders of jobs that leave no run
LONGEST = 32  # characters of a run's name in the name of a trial, and of a path in that of a result, without a hash
PLACES = ("data.path", "data.test_path")


def job_folder(config: Config) -> Path:
    """Return the folder that the configured job writes into.

    A job that needs no run and leaves none, such as plan, has a folder of its own, run.dir/trials/<job>-<run.name>.
    """
    match JOBS[config.job].scope:
        case "runs":
            return Path(config.run.dir)
        case "try":
            return Path(config.run.dir) / TRIALS / f"{config.job}-{shorten_name(folder_of(config).name, LONGEST)}"
        case _:
            return folder_of(config)


def result_file(config: Config) -> Path:
    """Return the file that the result of the configured job is written to.

    Its name ends with `state_mark`, then with the name of the data if the job measures other data than the run's.

    Raises:
        CheckpointError: the run's config.yaml can't be read.
    """
    file = job_folder(config) / JOBS[config.job].file
    other = name_other_data(config)
    return file.with_stem(f"{file.stem}{state_mark(config)}" + ("" if other is None else f"-{other}"))


def state_mark(config: Config) -> str:
    """Return the end of the names of files of the last state, `_last`. It is empty for those of the best state."""
    used = JOBS[config.job].scope == "trained"
    return f"_{config.state}" if used and config.state != BEST_STATE else ""


def name_other_data(config: Config) -> str | None:
    """Return a name of the data that the job measures, from its path; None if the command names that of the run.

    The name has the length to which texts are cut, if that is another one.

    Raises:
        CheckpointError: the run's config.yaml can't be read.
    """
    file = folder_of(config) / "config.yaml"
    if not JOBS[config.job].measures_other_data or not file.exists():
        return None
    before, now = (
        {f"data.{key}": value for key, value in values["data"].items()}
        for values in (read_config(file), to_mapping(config))
    )
    ignored = set(keys_with(Role.PLACE, to_mapping(config))) - set(PLACES)
    named = {key: value for key, value in now.items() if key not in ignored}
    if not differences(before, named):
        return None
    length = "" if named.get(LENGTH) in (None, before.get(LENGTH)) else f"length{named[LENGTH]}"
    if length and not differences(before, named | {LENGTH: before.get(LENGTH)}):
        return length
    path = now.get("data.path", config.data.label)  # the whole path, because many folders are called test
    name = shorten_name(replace_odd(str(path)), LONGEST) or config.data.kind
    return "-".join(filter(None, (name, length)))


def _name_near_runs(path: Path) -> str:
    """Return the question for the runs whose names are like that of a folder; empty if there are none."""
    names = [folder.name for folder in list_folder(path.parent) if has_checkpoints(folder)]
    near = difflib.get_close_matches(path.name, names)
    return f"did you mean run.name={' or '.join(near)}? Or " if near else ""


def check_has_run(path: Path) -> None:
    """Raise CheckpointError if a folder holds no run that can be used, ConfigError if it can't be a folder."""
    with folder_errors(path), suppress(FileNotFoundError):
        path.stat()
    if not has_checkpoints(path):
        raise CheckpointError(
            f"no checkpoint in {path / CHECKPOINTS}: {_name_near_runs(path)}train first, with the same run.name"
        )


@contextmanager
def open_folder(config: Config) -> Iterator[Path]:
    """Make the folder that the configured job writes into, and yield it. New folders that stay empty are removed.

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
    own = [folder for folder in made if folder.is_relative_to(config.run.dir)]
    with folder_errors(path):
        for folder in own:
            (folder / MARK).touch()
    try:
        if JOBS[config.job].scope == "trained":
            check_has_run(path)
        if result_file(config).is_dir():
            raise ConfigError(f"{result_file(config)} is a folder, and the job writes a file there: move it away")
        yield path
    finally:
        for folder in made:
            with suppress(OSError):  # it is not empty
                if folder in own and not any(file.name != MARK for file in folder.iterdir()):
                    (folder / MARK).unlink()
                folder.rmdir()
