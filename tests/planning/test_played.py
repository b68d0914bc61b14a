"""A recording, from a log to lines over the micro-batch, and its peak and moments for sizes that were not run."""

from __future__ import annotations

import pytest

from accumtrain.engine.allocation_log import Change, Log
from accumtrain.engine.rehearsal import Rehearsal, sizes_for
from accumtrain.planning import played
from accumtrain.planning.played import Replay
from accumtrain.planning.recording import NotRepeatableError, Piece, Recording, record

KB = 1024
STEP_THREAD, CALLER, PIPELINE = "tf_Compute/7", "python/1", "tf_data_private_threadpool/9"
PLACES = {
    "conv": ("forward", "segments/0/conv"),
    "grad": ("gradient", "segments/0/conv"),
    "other": ("gradient", "segments/0/conv"),
}


class Writer:
    """Writes a log line by line; a piece is given back by the name under which it was taken."""

    def __init__(self):
        self.log, self.now, self.held = Log(marked_by=CALLER), 0, {}

    def mark(self, name):
        self.now += 1
        self.log.marks.append((self.now, name))
        return self

    def take(self, name, asked, operation=None, thread=STEP_THREAD, ended=None):
        self.now += 1
        self.held[name] = self.now
        if operation and thread == STEP_THREAD:
            operation = f"while/body/_1/{operation}"
        self.log.changes.append(Change(self.now, True, self.now, asked, asked, operation, ended, thread))
        return self

    def give(self, name):
        self.now += 1
        self.log.changes.append(Change(self.now, False, self.held.pop(name), 0, 0, None, None, STEP_THREAD))
        return self


def write(second="grad", pipeline=PIPELINE):
    """State of 100 KB, and steps of 2 and 4 images: an output of 1 + 10 KB an image, a gradient of 20 KB an image."""
    to = Writer().take("weights", 100 * KB, thread=CALLER)
    for size in (2, 4):
        to.mark(f"fill {size}").mark(f"step {size}")
        to.take("output", (1 + 10 * size) * KB, "conv").take("scratch", 3 * KB, "conv", ended=10**6).give("scratch")
        to.take("gradient", 20 * size * KB, "grad" if size == 2 else second).give("output").give("gradient")
        to.take("batch", 5 * size * KB, "resize", pipeline).mark(f"settled {size}").give("batch")
    return to.mark("commit").take("update", 50 * KB, thread=CALLER).give("update").mark("end").log


def recording(second="grad", pipeline=PIPELINE):
    return record(Rehearsal(write(second, pipeline), (2, 4), PLACES, 100 * KB))


def test_sizes_are_lines_over_the_micro_batch():
    lines = [(each.kind, each.layer, each.base, each.slope) for each in recording().pieces]
    of_a_step = [
        ("forward", "segments/0/conv", 1.0 * KB, 10.0 * KB),
        ("workspace", "segments/0/conv", 3.0 * KB, 0.0),
        ("gradient", "segments/0/conv", 0.0, 20.0 * KB),
        ("data", "", 0.0, 5.0 * KB),
    ]
    assert lines == [("state", "", 100.0 * KB, 0.0), *of_a_step, *of_a_step, ("commit", "", 50.0 * KB, 0.0)]


def test_a_thread_of_the_pipeline_may_have_any_name():
    """The profiler has called one by the name of a thread that made the graph and had ended."""
    for name in ("llvm-worker-1/9", "tf_Compute/9"):
        assert recording(pipeline=name) == recording()


def test_actions_keep_their_order():
    found = recording()
    assert found.actions == [0, 1, 2, ~2, 3, ~1, ~3, 4, ~4, 5, 6, ~6, 7, ~5, ~7, 8, ~8, 9, ~9]
    assert (found.fill, list(found.steps), found.after_steps) == (1, [1, 9], 17)


def test_batches_that_are_ready_before_the_first_step_are_lines_too():
    to = Writer().take("weights", 100 * KB, thread=CALLER)
    for size in (2, 4):
        to.mark(f"fill {size}").take("batch", 5 * size * KB, "resize", PIPELINE)
        to.mark(f"step {size}").take("output", 10 * size * KB, "conv").give("output")
        to.mark(f"settled {size}").give("batch")
    found = record(Rehearsal(to.mark("end").log, (2, 4), PLACES, 100 * KB))
    assert [(each.base, each.slope) for each in found.pieces if each.kind == "data"] == [(0.0, 5.0 * KB)] * 2
    assert (found.fill, list(found.steps)) == (1, [2, 6])
    assert Replay(found).peak_bytes(10) == (100 + 50 + 100) * KB


def test_sizes_that_run_other_operations_are_refused():
    with pytest.raises(NotRepeatableError, match="81920 of 126976 bytes were taken with 4 images only"):
        recording(second="other")


def test_the_peak_of_a_size_that_was_not_run():
    """At 10 images all pieces find room in the first region, so they are as large as is asked for."""
    replay = Replay(recording())
    assert replay.moments(10)[0].bytes == (100 + 101 + 200) * KB
    assert replay.commit_bytes() == 150 * KB


def test_the_peak_of_a_run_whose_batches_come_at_any_moment():
    """All pieces find room in the first region: a step takes 301 KB beside the state, and a batch at most 50 KB."""
    replay = Replay(recording())
    found = replay.peak_bytes(10)
    assert (100 + 301) * KB < found <= (100 + 301 + 50) * KB
    assert replay.peak_bytes(10) == found, "by the same draws"


@pytest.mark.parametrize(("pieces", "steps"), [(1, 48), (1_500, 33), (10_000, 12)])
def test_a_small_model_plays_longer_runs(monkeypatch, pieces, steps):
    """Two runs of them, as all peaks are the same."""
    steps_played, timing = [], played.with_other_timing
    monkeypatch.setattr(played, "with_other_timing", lambda *step: steps_played.append(step) or timing(*step))
    actions = [action for number in range(pieces) for action in (number, ~number)]
    Replay(Recording([Piece(KB, 0, "forward")] * pieces, actions, 0, [0, 0], len(actions))).peak_bytes(1)
    assert len(steps_played) == 2 * steps


def test_steps_are_repeated_as_they_were_recorded():
    """A batch of each step is given back in the next one, so one or two are held, however often steps are played."""
    batch, output = Piece(0, KB, "data"), Piece(0, 10 * KB, "forward")
    pieces = [Piece(100 * KB, 0, "state"), *[batch, output] * 4]
    actions = [0, 1, 2, ~2, 3, ~1, 4, ~4, 5, ~3, 6, ~6, 7, ~5, 8, ~8]
    found = Replay(Recording(pieces, actions, 1, [1, 4, 8, 12], 16)).peak_bytes(10)
    assert found in {(100 + 100 + batches * 10) * KB for batches in (1, 2)}


def test_moments_tell_what_is_held_and_what_took_it():
    first, second, third = Replay(recording()).moments(10)
    assert first.words == "gradient of segment 0 conv (grad)"
    assert first.held == {"gradient": 200 * KB, "forward": 101 * KB, "state": 100 * KB}
    # the second step begins while the pipeline holds 50 KB
    assert (second.kind, second.bytes) == ("workspace", (100 + 101 + 3) * KB)
    assert (third.kind, third.bytes) == ("forward", (100 + 101) * KB)


@pytest.mark.parametrize(("images", "handed_out"), [(1000, 1000 * KB), (1100, 2048 * KB)])
def test_memory_that_is_packed_badly_counts_as_it_is_handed_out(images, handed_out):
    """The first region, of 2 MB, is given back, and divided only for what is at most half as large."""
    pieces = [Piece(1500 * KB, 0, "state"), Piece(1, 0, "state"), Piece(0, KB, "gradient")]
    peak = Replay(Recording(pieces, [0, 1, ~0, 2], 3, [3, 3], 4)).moments(images)[0]
    assert peak.held == {"gradient": handed_out, "state": 256}
    assert peak.bytes == handed_out + 256


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ((224, 224, 3), (2, 4)),
        ((96, 96, 3), (4, 16)),
        ((32, 32, 3), (16, 64)),
        ((640, 640, 3), (2, 4)),
        ((32, 128, 1), (8, 32)),
    ],
)
def test_small_images_are_rehearsed_in_larger_numbers(shape, sizes):
    assert sizes_for(shape) == sizes
