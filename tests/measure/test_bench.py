"""job=bench on a small network: its numbers agree with each other, and a slow input is found."""

import gc
import json
import time
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain import dispatch
from accumtrain.data import pipeline
from accumtrain.errors import ConfigError
from accumtrain.measure import bench
from accumtrain.measure.config import BenchConfig
from accumtrain.measure.dry_run import DryRun
from accumtrain.process import environment
from tests.programs import output_of

SHORT = ("job=bench", "model=lenet5", "bench.updates=3", "bench.seconds=0", "batch_size=32", "accum.steps=4")


@pytest.fixture
def measured(compose, tmp_path, monkeypatch):
    """Run job=bench with these overrides, and return the content of its file."""
    monkeypatch.setattr(environment, "job_seconds", lambda: 2.0)
    monkeypatch.setattr(bench, "INPUT_SECONDS", 0.1)
    monkeypatch.setattr(bench, "matmul_flops_per_second", lambda dtype, runtime: 1e12)

    def run(*overrides):
        gc.collect()  # tensors of other tests, freed while it runs, would lower the peak
        result = dispatch.run(compose(*SHORT, f"run.dir={tmp_path}", "run.name=run", *overrides))
        assert json.loads((tmp_path / "trials/bench-run/bench.json").read_text()) == result
        return result

    return run


@pytest.mark.slow
def test_the_numbers_agree(measured, tmp_path, capsys):
    result = measured()
    assert result["updates"] >= 3  # several may share a call
    assert (result["batch_size"], result["micro_batch_size"], result["accum_steps"]) == (32, 8, 4)
    seconds, speed = result["update_seconds"], result["examples_per_second"]
    assert 0 < seconds["p10"] <= seconds["median"] <= seconds["p90"]
    assert speed["p10"] <= speed["median"] <= speed["p90"]
    assert speed["median"] == pytest.approx(32 / seconds["median"])
    assert speed["p10"] == pytest.approx(32 / seconds["p90"])
    start = dict(result["seconds_to_first_update"])
    assert 0 <= start.pop("import_of_tensorflow") < start["total"]  # 0: these tests imported it, not accumtrain
    assert start.pop("total") == pytest.approx(sum(start.values()))
    assert start["import"] == pytest.approx(2.0, abs=0.5)
    assert min(start.values()) > 0
    assert result["memory"]["tensor_peak_bytes"] > result["memory"]["tensor_static_bytes"] > 0
    assert result["share_of_matmul"] == pytest.approx(result["flops_per_example"] * speed["median"] / 1e12)
    assert 0 < result["host_share"] < 1
    files = {path.name for path in (tmp_path / "trials/bench-run").iterdir()}
    assert files == {"bench.json", ".accumtrain"}, "nothing is trained there"
    assert "examples/s" in capsys.readouterr().out


@pytest.mark.slow
def test_a_slow_input_is_found(measured, monkeypatch):
    original = bench.make_train_batches

    def slow(*arguments, **options):
        def late(batch):
            tf.py_function(lambda: time.sleep(0.05), [], [])
            return batch

        return original(*arguments, **options).map(late)

    monkeypatch.setattr(pipeline, "make_train_batches", slow)
    monkeypatch.setattr(bench, "make_train_batches", slow)
    result = measured()
    assert result["input_share"] > 0.5
    assert result["input_examples_per_second"] < 2 * 8 / 0.05, "some batches were ready when the clock started"


@pytest.mark.slow
def test_a_step_is_traced_once(measured, monkeypatch):
    probes = []
    monkeypatch.setattr(bench, "DryRun", lambda *arguments: probes.append(DryRun(*arguments)) or probes[-1])
    measured("accum.steps=1")
    programs = probes[0].step.programs
    for function in (programs.compiled_micro_steps, programs.compiled_commit):
        assert function.experimental_get_tracing_count() == 1


@pytest.mark.slow
def test_no_room_for_the_matrix_product(measured, monkeypatch, capsys):
    def refused(dtype, runtime):
        raise tf.errors.ResourceExhaustedError(None, None, "no room")

    monkeypatch.setattr(bench, "matmul_flops_per_second", refused)
    result = measured()
    assert result["matmul_flops_per_second"] is result["share_of_matmul"] is None
    assert result["flops_per_second"] > 0
    assert "GFLOP/s\n" in capsys.readouterr().out


@pytest.mark.slow
def test_on_two_replicas_an_image_takes_the_same_operations(measured, tmp_path):
    alone = measured("accum.steps=2")
    (tmp_path / "trials/bench-run/bench.json").unlink()
    where = ("device=mirrored", "device.virtual=2", f"run.dir={tmp_path}", "run.name=run")
    output_of("-m", "accumtrain", *SHORT, "accum.steps=2", *where)  # devices can't change in this process
    shared = json.loads((tmp_path / "trials/bench-run/bench.json").read_text())
    assert (shared["replicas"], shared["micro_batch_size"]) == (2, 8)
    assert shared["flops_per_example"] == alone["flops_per_example"] > 0


@pytest.fixture
def updates_that_take(monkeypatch):
    """Make a function whose calls, one for each pair of a count and seconds, move a clock on instead of waiting."""

    def of(*calls):
        now, left = [100.0], iter(calls)
        monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: now[0]))

        def updates():
            count, seconds = next(left)
            now[0] += seconds
            return count

        return updates

    return of


ONE_BY_ONE = [(1, 9.0), (1, 8.0), (1, 0.03), (1, 0.01), (1, 0.02), (1, 0.04)]
GROWING = [(1, 9.0), (2, 8.0), (4, 7.0), (4, 6.0), (4, 0.02), (4, 0.04), (4, 0.08)]


@pytest.mark.parametrize(
    ("calls", "config", "seconds"),
    [
        (ONE_BY_ONE, BenchConfig(updates=2, seconds=0.055), [0.03, 0.01, 0.02]),
        (GROWING, BenchConfig(updates=8, seconds=0.0), [0.005] * 4 + [0.01] * 4),
    ],
    ids=["until both bounds are met", "once calls have their length"],
)
def test_updates_are_timed(updates_that_take, calls, config, seconds):
    assert bench.time_updates(updates_that_take(*calls), config) == pytest.approx(seconds)


def test_spread():
    seconds = bench.spread(np.linspace(1.0, 2.0, 11))
    assert seconds == pytest.approx({"median": 1.5, "p10": 1.1, "p90": 1.9})


def test_a_folder_that_cannot_be_made(measured, tmp_path):
    (tmp_path / "trials").write_text("")
    with pytest.raises(ConfigError, match="choose another"):
        measured()
