"""debug.profile: the updates that TensorFlow's profiler writes down, and what is told of them."""

from __future__ import annotations

import pytest
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf.xplane_pb2 import XSpace

from accumtrain.dispatch import run
from accumtrain.train.tell.trackers import LEFT_OUT, Profile
from tests.train.conftest import records_of


@pytest.fixture(scope="module")
def small(compose):
    def config(folder, *overrides):
        return compose(
            *("model=lenet5", "batch_size=64", "accum.steps=2", "train.steps=8", "log.every=4", f"run.dir={folder}"),
            *("run.name=one", *overrides),
        )

    return config


def profiled_updates(folder) -> list[int]:
    """The updates that are marked in the one profile of a run."""
    (file,) = folder.glob("tensorboard/plugins/profile/*/*.xplane.pb")
    space = XSpace.FromString(file.read_bytes())
    found = []
    for plane in space.planes:
        names = {key: event.name for key, event in plane.event_metadata.items()}
        stats = {key: stat.name for key, stat in plane.stat_metadata.items()}
        for event in (event for line in plane.lines for event in line.events if names[event.metadata_id] == "update"):
            found += [stat.int64_value for stat in event.stats if stats[stat.metadata_id] == "step_num"]
    return sorted(found)


@pytest.mark.slow
def test_the_updates_after_the_first_of_a_session_are_profiled_and_learn_the_same(small, tmp_path, capsys):
    config = small(tmp_path / "runs", "debug.profile=2")
    run(config)
    folder = tmp_path / "runs/one"
    assert profiled_updates(folder) == [LEFT_OUT + 1, LEFT_OUT + 2]
    told = capsys.readouterr().out.replace("\n", " ")
    assert f"updates 4 to 5 are profiled in {folder}/tensorboard/plugins/profile, and slower for that" in told
    run(small(tmp_path / "without"))
    plain = records_of(tmp_path / "without/one", "train")
    assert [record["loss"] for record in records_of(folder, "train")] == [record["loss"] for record in plain]


def test_a_run_that_is_too_short_to_be_profiled_says_so(small, tmp_path, capsys):
    run(small(tmp_path, "debug.profile=2", "train.steps=3"))
    assert "debug.profile=2: no update was profiled, as the first 3 of a session" in capsys.readouterr().err
    assert not (tmp_path / "one/tensorboard/plugins").exists()


def test_a_run_that_ends_amid_its_profile_says_how_far_it_goes(tmp_path):
    told = []
    with Profile(tmp_path, updates=5, done=10, tell=told.append) as profile:
        assert profile.next(11) == 13
        for done in (11, 12, 13):
            assert not profile.runs
            profile.turn(done)
        assert (profile.runs, profile.next(13)) == (True, None)
        with profile.update():
            profile.turn(14)
        profile.close(14)
    assert len(told) == 1
    assert told[0].startswith(f"update 14 is profiled in {tmp_path}/plugins/profile")


def test_an_error_ends_the_profile(tmp_path):
    told = []

    def interrupted():
        with Profile(tmp_path, updates=5, done=0, tell=told.append) as profile:
            profile.turn(LEFT_OUT)
            profile.turn(LEFT_OUT + 2)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert told[0].startswith("updates 4 to 5 are profiled")
    with tf.profiler.experimental.Profile(str(tmp_path / "next")):
        pass


def test_a_profiler_that_runs_already_keeps_the_training_going(tmp_path, capsys):
    with tf.profiler.experimental.Profile(str(tmp_path / "other")):
        profile = Profile(tmp_path, updates=5, done=0, tell=print)
        profile.turn(LEFT_OUT)
        assert not profile.runs
        profile.turn(LEFT_OUT + 1)
        profile.close(LEFT_OUT + 1)
    assert capsys.readouterr().err.count("debug.profile=5: there is no profile: ") == 1
