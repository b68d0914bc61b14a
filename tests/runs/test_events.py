"""Event files, read back by TensorBoard."""

from __future__ import annotations

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from accumtrain.errors import CheckpointError
from accumtrain.runs.events import Events

RECORD = {"split": "train", "step": 7, "epoch": 0.5, "loss": 1.25, "accuracy": 0.5, "seconds": 3.0}


def test_tensorboard_reads_what_was_written(tmp_path):
    with Events(tmp_path) as events:
        events.write(RECORD)
        events.write({**RECORD, "step": 8, "loss": 0.75})
        events.write({**RECORD, "split": "test"})
    read = {split: EventAccumulator(str(tmp_path / split)).Reload() for split in ("train", "test")}
    assert read["train"].Tags()["scalars"] == ["loss", "accuracy"]
    assert [(event.step, event.value) for event in read["train"].Scalars("loss")] == [(7, 1.25), (8, 0.75)]
    assert [event.step for event in read["test"].Scalars("accuracy")] == [7]


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").touch()
    with Events(tmp_path / "file" / "tensorboard") as events, pytest.raises(CheckpointError, match="can't be written"):
        events.write(RECORD)
