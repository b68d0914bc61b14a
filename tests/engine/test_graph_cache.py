"""Kept graphs: the same bits without tracing, never stale, never damaged, safe beside another run."""

from __future__ import annotations

import errno
import hashlib
import tempfile
import weakref
import zlib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine import graph_cache
from accumtrain.engine.checkpoint import Checkpoints
from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.graph_cache import GraphCache
from accumtrain.engine.graph_optimizer import NO_GRAPH_OPTIMIZER, CompiledFunction
from accumtrain.engine.step import Step
from accumtrain.optim.config import AdafactorConfig, AdamConfig, SgdConfig
from tests.engine.small import bottleneck_revnet, examples, lenet, resnet20, window_for

SHAPE = (16, 16, 3)
MICRO, STEPS, UPDATES = 4, 2, 3
CASES = {
    "revnet, adafactor": (bottleneck_revnet(), AdafactorConfig(), {}),
    "resnet, adam, averages": (resnet20(units=(1, 1, 1)), AdamConfig(), {"ema": lambda all: MovingAverage(all, 0.9)}),
    "lenet, sgd, adaptive clip": (lenet(), SgdConfig(momentum=0.9), {"adaptive_clip": 0.01}),
}


def new_window(case="lenet, sgd, adaptive clip"):
    model, optim, options = CASES[case]
    return window_for(model, optim, SHAPE, micro_steps=STEPS, **options)


def batches():
    return iter(tf.data.Dataset.from_tensor_slices(examples(64, SHAPE)).batch(MICRO, drop_remainder=True))


def trained(window, cache, *, together):
    """The state after three updates, as bytes, and how often a function was traced."""
    step, stream = Step(window, cache=cache), batches()
    step.prepare(stream)
    if together:
        step.updates(stream, UPDATES)
    else:
        for _ in range(UPDATES):
            step.accumulate(stream, STEPS)
            step.commit()
    functions = (step.compiled_micro_steps, step.compiled_commit, step.compiled_updates)
    if cache is not None:
        cache.wait()
    state = b"".join(np.asarray(variable).tobytes() for variable in window.all_variables)
    return state, sum(each.experimental_get_tracing_count() for each in functions)


def make_cache(folder, window, key=None):
    return GraphCache(key or {}, window.all_variables, folder)


def fill(folder):
    """Makes all updates with an empty cache. Returns the state after them."""
    window = new_window()
    return trained(window, make_cache(folder, window), together=False)[0]


@pytest.mark.parametrize(
    "together", [pytest.param(False, id="one by one"), pytest.param(True, id="together", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "case", [pytest.param(each, marks=pytest.mark.slow if "revnet" in each else ()) for each in CASES]
)
def test_a_second_start_traces_nothing_and_gives_the_same_bits(case, together, tmp_path):
    plain, _ = trained(new_window(case), None, together=together)
    first_window, second_window = new_window(case), new_window(case)
    first, traced = trained(first_window, make_cache(tmp_path, first_window), together=together)
    second, traced_again = trained(second_window, make_cache(tmp_path, second_window), together=together)
    assert traced >= 2
    assert traced_again == 0
    assert first == plain
    assert second == plain


def test_only_a_kept_graph_is_compiled_before_there_are_batches(tmp_path):
    """Where none is kept the micro-step is traced first, as the commit of some optimizers asks what that found."""
    state, started = fill(tmp_path / "kept"), []
    for folder in ("none", "kept"):
        window = new_window()
        step = Step(window, cache=make_cache(tmp_path / folder, window))
        step.compile_kept()
        assert step.compiled_commit.experimental_get_tracing_count() == 0
        started.append(step)
    stream = batches()
    for _ in range(UPDATES):
        started[1].accumulate(stream, STEPS)
        started[1].commit()
    assert started[1].compiled_commit.experimental_get_tracing_count() == 0
    assert state == b"".join(np.asarray(each).tobytes() for each in window.all_variables)


@pytest.mark.parametrize("case", [case for case in CASES if "revnet" not in case])
def test_the_graph_that_saves_is_kept(case, tmp_path, monkeypatch):
    def cannot_be_traced(checkpoints, prefix):
        raise AssertionError

    cannot_be_traced.__name__ = "_save_graph"  # by which it is found
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        window = new_window(case)
        cache = make_cache(tmp_path / "cache", window)
        with Checkpoints(tmp_path / folder, window, keep=1, cache=cache) as checkpoints:
            assert checkpoints.save_if_best(0.25, 0.5)
        monkeypatch.setattr(Checkpoints, "_save_graph", cannot_be_traced)
    saved = [next((tmp_path / folder / "best" / "step-0").glob("state.data*")) for folder in ("first", "second")]
    assert saved[0].read_bytes() == saved[1].read_bytes()
    monkeypatch.undo()
    with Checkpoints(tmp_path / "second", new_window(case), keep=1) as checkpoints:
        assert checkpoints.restore() is not None
        assert checkpoints.best == {"loss": 0.25, "accuracy": 0.5}


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True], ids=["one by one", "together"])
def test_a_large_function_takes_the_place_of_its_trace(together, tmp_path, monkeypatch):
    plain, _ = trained(new_window(), None, together=together)
    monkeypatch.setattr(graph_cache, "LARGE_BYTES", 0)
    traces = []
    keep = GraphCache.keep

    def keep_and_watch(cache, name, signature, concrete):
        traces.append(weakref.ref(concrete.graph))
        return keep(cache, name, signature, concrete)

    monkeypatch.setattr(GraphCache, "keep", keep_and_watch)
    window = new_window()
    state, _ = trained(window, make_cache(tmp_path, window), together=together)
    assert len(traces) == (3 if together else 2)
    assert [trace() for trace in traces] == [None] * len(traces)  # nothing holds them
    assert state == plain


def test_a_file_is_written_in_the_folder_where_it_stays(tmp_path, monkeypatch):
    """The folder of temporary files may be on another disk, to which nothing can be renamed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    fill(tmp_path)
    assert len(list(tmp_path.glob(f"*{graph_cache.SUFFIX}"))) >= 2


def test_a_folder_is_made_for_its_user_alone(tmp_path):
    folder = tmp_path / "cache" / "graphs"
    fill(folder)
    assert len(list(folder.glob(f"*{graph_cache.SUFFIX}"))) >= 2
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_large_function_is_handed_back_as_a_second_start_finds_it(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_cache, "LARGE_BYTES", 0)
    variable = tf.Variable(3.0)
    function = tf.function(lambda x: {"y": x * variable}, autograph=False)
    kept = GraphCache({}, [variable], tmp_path).keep("f", "x", function.get_concrete_function(tf.constant(2.0)))
    assert float(kept(tf.constant(2.0))["y"]) == 6.0


def test_functions_that_are_traced_later_do_not_meet_the_names_of_kept_ones(tmp_path):
    fill(tmp_path)
    window = new_window()
    state, _ = trained(window, make_cache(tmp_path, window), together=False)
    for _ in range(50):  # their names count up, as those of the kept functions once did
        tf.function(lambda x: x + 1)(tf.constant(1))
    again = new_window()
    assert trained(again, make_cache(tmp_path, again), together=False)[0] == state


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:100] + bytes([content[100] ^ 1]) + content[101:],
        lambda content: with_checksum(b"no zlib"),
        lambda content: with_checksum(zlib.compress(b"no json\n")),
        lambda content: with_checksum(zlib.compress(b'{"name": "f", "captured": [9999], "outputs": null}\n')),
        lambda content: with_checksum(zlib.compress(b'{"name": "f", "captured": [], "outputs": null}\n\xff')),
    ],
    ids=["empty", "cut", "a bit", "not packed", "no header", "another model", "no functions"],
)
def test_a_damaged_file_is_told_traced_again_and_replaced(damage, tmp_path, capsys):
    state = fill(tmp_path)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 2
    for path, content in files.items():
        path.write_bytes(damage(content))
    capsys.readouterr()
    assert fill(tmp_path) == state
    told = capsys.readouterr().out
    for path, content in files.items():
        assert f"{path.name} is damaged" in told.replace("\n", "")
        assert path.read_bytes()[:32] == hashlib.sha256(path.read_bytes()[32:]).digest()
        assert len(path.read_bytes()) > len(content) // 2
    window = new_window()
    assert trained(window, make_cache(tmp_path, window), together=False) == (state, 0)


def with_checksum(packed):
    return hashlib.sha256(packed).digest() + packed


@pytest.mark.parametrize("change", ["key", "variables", "batches"])
def test_another_key_variables_or_batches_find_nothing(change, tmp_path):
    fill(tmp_path)
    window = new_window("resnet, adam, averages" if change == "variables" else "lenet, sgd, adaptive clip")
    cache = make_cache(tmp_path, window, {"version": 2} if change == "key" else None)
    stream = batches() if change != "batches" else iter(tf.data.Dataset.from_tensors(examples(8, SHAPE)).repeat())
    step = Step(window, cache=cache)
    step.accumulate(stream, 1)
    assert step.compiled_micro_steps.experimental_get_tracing_count() == 1


def test_two_runs_at_once_leave_whole_files(tmp_path):
    windows = [new_window() for _ in range(2)]
    caches = [make_cache(tmp_path, window) for window in windows]
    steps = [Step(window, cache=cache) for window, cache in zip(windows, caches, strict=True)]
    streams = [batches() for _ in steps]
    for step, stream in zip(steps, streams, strict=True):  # both find nothing, and both write
        step.prepare(stream)
    for _ in range(UPDATES):
        for step, stream in zip(steps, streams, strict=True):
            step.accumulate(stream, STEPS)
            step.commit()
    for cache in caches:
        cache.wait()
    assert [path.suffix for path in tmp_path.iterdir()] == [".graph"] * 2  # nothing unfinished
    window = new_window()
    state, traced = trained(window, make_cache(tmp_path, window), together=False)
    assert traced == 0
    assert state == b"".join(np.asarray(each).tobytes() for each in windows[0].all_variables)


def test_the_files_used_least_recently_make_room(tmp_path, monkeypatch):
    x = tf.Variable(1.0)
    compiled = [CompiledFunction(lambda: {"y": x + 1}, NO_GRAPH_OPTIMIZER) for _ in range(4)]
    paths = []
    monkeypatch.setattr(graph_cache, "MOST_BYTES", 10**9)
    for number, each in enumerate(compiled):
        cache = GraphCache({"number": number}, [x], tmp_path)
        cache.keep("f", "()", each.get_concrete_function())
        cache.wait()
        (new,) = set(tmp_path.iterdir()) - set(paths)
        paths.append(new)
    for age, path in enumerate(reversed(paths)):
        graph_cache.os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert GraphCache({"number": 0}, [x], tmp_path).find("f", "()") is not None  # now the one used last
    monkeypatch.setattr(graph_cache, "MOST_BYTES", 3 * paths[0].stat().st_size + 20)
    cache = GraphCache({"number": 4}, [x], tmp_path)
    cache.keep("f", "()", compiled[0].get_concrete_function())
    cache.wait()
    left = set(tmp_path.iterdir())
    assert len(left) == 3
    assert {paths[0], paths[3]} < left  # and the new one


def test_a_function_with_a_tensor_of_this_process_is_not_kept(tmp_path):
    constant = tf.constant(3.0)
    cache = GraphCache({}, [], tmp_path)
    cache.keep("f", "()", CompiledFunction(lambda: {"y": constant + 1}, NO_GRAPH_OPTIMIZER).get_concrete_function())
    cache.wait()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_keeps_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    x = tf.Variable(1.0)
    cache = GraphCache({}, [x], tmp_path / "file" / "graphs")
    assert cache.find("f", "()") is None
    cache.keep("f", "()", CompiledFunction(lambda: {"y": x + 1}, NO_GRAPH_OPTIMIZER).get_concrete_function())
    cache.wait()
    assert (tmp_path / "file").read_text() == ""


def test_a_full_disk_keeps_nothing(tmp_path, monkeypatch):
    make_file = tempfile.NamedTemporaryFile

    def full(*args, **kwargs):
        file = make_file(*args, **kwargs)
        write = file.write

        def half(content):
            write(content[: len(content) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")

        file.write = half
        return file

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", full)
    fill(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_that_can_not_be_removed_is_not_used(tmp_path, monkeypatch, capsys):
    def refuse(path, missing_ok):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    x = tf.Variable(1.0)
    cache = GraphCache({}, [x], tmp_path)
    cache.keep("f", "()", CompiledFunction(lambda: {"y": x + 1}, NO_GRAPH_OPTIMIZER).get_concrete_function())
    cache.wait()
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"")
    monkeypatch.setattr(Path, "unlink", refuse)
    assert cache.find("f", "()") is None
    assert "is damaged" in capsys.readouterr().out


def test_a_file_of_another_user_is_not_used(tmp_path, monkeypatch):
    fill(tmp_path)
    monkeypatch.setattr(graph_cache.os, "geteuid", lambda: 12345)
    window = new_window()
    _, traced = trained(window, make_cache(tmp_path, window), together=False)
    assert traced == 2
