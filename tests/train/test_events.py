"""Event files, read back by TensorBoard."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from accumtrain.errors import CheckpointError
from accumtrain.train.tell.trackers import TensorBoardTracker
from tests.data.conftest import png

RECORD = {"split": "train", "step": 7, "epoch": 0.5, "loss": 1.25, "accuracy": 0.5, "seconds": 3.0}
PNG = png(7)


def read(folder):
    return EventAccumulator(str(folder)).Reload()


def steps_told(folder, tag="loss"):
    return [(event.step, event.value) for event in read(folder).Scalars(tag)]


def test_tensorboard_reads_what_was_written(tmp_path):
    events = TensorBoardTracker(tmp_path, {})
    events.log(RECORD)
    events.log({**RECORD, "step": 8, "loss": 0.75})
    events.log({**RECORD, "split": "test"})
    events.close()
    assert read(tmp_path / "train").Tags()["scalars"] == ["loss", "accuracy"]
    assert steps_told(tmp_path / "train") == [(7, 1.25), (8, 0.75)]
    assert steps_told(tmp_path / "test", "accuracy") == [(7, 0.5)]


def test_tensorboard_reads_hyperparameters_memory_and_images(tmp_path):
    from tensorboard.plugins.hparams import metadata, plugin_data_pb2

    events = TensorBoardTracker(tmp_path, {"optim.lr": 0.5, "model.units": [1, 2], "train.steps": None, "ema": True})
    events.images("first", [PNG, PNG])
    events.log(RECORD)
    events.finish({"step": 9, "memory_by_kind": {"weights": 3 * 2**20, "ema": 0, "activations": None}})
    events.close()
    told = read(tmp_path)
    assert told.Tags()["images"] == ["first/0", "first/1"]
    assert told.Images("first/0")[0].encoded_image_string == PNG
    assert steps_told(tmp_path, "memory/weights (MB)") == [(9, 3.0)]
    assert told.Tags()["scalars"] == ["memory/weights (MB)"]
    content = told.summary_metadata[metadata.SESSION_START_INFO_TAG].plugin_data.content
    values = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info.hparams
    assert (values["optim.lr"].number_value, values["ema"].bool_value) == (0.5, True)
    assert (values["model.units"].string_value, values["train.steps"].string_value) == ("[1,2]", "null")


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="can't be written"):
        TensorBoardTracker(tmp_path / "file" / "tensorboard", {}).log(RECORD)


def test_updates_that_are_made_again_are_told_once(tmp_path):
    """A session is killed after update 9, its run goes on from update 6 and back to 7; another goes on from there."""
    for done, steps in ((0, (2, 6, 8, 9)), (6, (7, 9, 10, 8, 9)), (9, (10,))):
        events = TensorBoardTracker(tmp_path, {"optim.lr": done}, done)
        for step in steps:
            events.log({**RECORD, "step": step, "loss": done + step / 16})
        events.finish({"step": steps[-1], "memory_by_kind": {"weights": 2**20}})
        events.close()
    assert steps_told(tmp_path / "train") == [
        *((step, step / 16) for step in (2, 6)),
        *((step, 6 + step / 16) for step in (7, 8, 9)),
        (10, 9 + 10 / 16),
    ]
    assert steps_told(tmp_path, "memory/weights (MB)") == [(10, 1.0)]


def test_pictures_of_a_run_that_begins_again_at_update_0_are_told_once(tmp_path):
    for _ in range(2):
        events = TensorBoardTracker(tmp_path, {})
        events.images("first", [PNG])
        events.close()
    assert [image.step for image in read(tmp_path).Images("first/0")] == [0]


@pytest.mark.parametrize("name", ["tensorboard", "tensorboard/train"])
def test_a_link_is_not_followed(tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(elsewhere)
    events = TensorBoardTracker(tmp_path / "tensorboard", {})
    with pytest.raises(CheckpointError, match=f"{name} is a link"):
        events.log(RECORD)
    events.close()
    assert list(elsewhere.iterdir()) == []


def test_hooks_may_log_after_one_update(tmp_path):
    """Two hooks log other numbers after updates 2 and 4. The run goes back, and both log update 4 anew."""
    events = TensorBoardTracker(tmp_path, {})
    for step, value in ((2, 0.0), (4, 1.0), (4, 2.0)):
        for name in ("one", "two"):
            events.log({"split": "hook", "step": step, "epoch": 0.5, name: value, "seconds": 3.0})
    events.close()
    for name in ("one", "two"):
        assert steps_told(tmp_path / "hook", name) == [(2, 0.0), (4, 2.0)]
