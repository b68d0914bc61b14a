"""What a run leaves in its folder, without a training."""

from __future__ import annotations

from accumtrain.config.schema import Config
from accumtrain.runs.names import CHECKPOINTS, folder_of
from accumtrain.runs.run import Run


def save_config(config: Config) -> None:
    with Run(config) as run:
        run.save_config(config)


def leave_checkpoint(config: Config) -> None:
    """Leave the file by which a job that needs a run finds it trained."""
    file = folder_of(config) / CHECKPOINTS / "step-1" / "state.index"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()


def leave_run(config: Config) -> None:
    """Leave what says that a run of `config` has made an update."""
    save_config(config)
    leave_checkpoint(config)
