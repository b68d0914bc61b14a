"""A dry run makes the updates of training, and a probe's numbers follow from its measurements."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.data.pipeline import make_train_batches
from accumtrain.devices.resolve import resolve_devices
from accumtrain.errors import ConfigError
from accumtrain.measure import dry_run
from accumtrain.measure.dry_run import DryRun, measure
from accumtrain.process import environment
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from tests.engine.small import is_compiled_by_xla

BATCH, MICRO = 24, 4
ONE_REPLICA = SimpleNamespace(replicas=1)
UPDATES = 5  # of the run, over which its rate falls
LENET = (
    "model=lenet5",
    "data=digits",
    "data.val_fraction=0",
    f"batch_size={BATCH}",
    f"train.steps={UPDATES}",
    "schedule=cosine",
)


@pytest.fixture
def config(compose):
    return compose(*LENET)


@pytest.fixture
def objective(config):
    return open_objective(config)


@pytest.fixture
def run(config, objective, tmp_path):
    gc.collect()  # tensors of other tests, freed while it runs, would lower the peak
    return DryRun(config, objective, resolve_devices(config.device), MICRO, tmp_path / "checkpoints", 2)


# ---- the numbers of a probe ----


class Timed:
    """Takes the place of a dry run: updates of given seconds, and a meter."""

    window = SimpleNamespace(model=SimpleNamespace(norms=[]))
    replicas = 1
    timings = ((9.0, 9.0), (0.5, 0.2), (0.3, 0.4), (0.7, 0.3))  # the first one compiles

    def __init__(self, config, objective, devices, micro_batch, directory, micro_steps):
        self.did = [(config.accum.steps, directory)]
        self.begin(micro_batch, micro_steps)
        Timed.last = self

    def begin(self, micro_batch, micro_steps):
        self.did.append((micro_batch, micro_steps))
        self.micro_steps = micro_steps
        self._timings, self._micro_batch = iter(self.timings), micro_batch

    def update(self):
        self.did.append("update")
        return next(self._timings)

    def evaluate(self):
        self.did.append("evaluate")

    def finish(self):
        self.did.append("finish")
        peak = 10 * self._micro_batch
        counts = {"tensor_static_bytes": 1, "tensor_peak_bytes": peak, "rss_peak_bytes": 400}
        return counts | {"peak_by_compiler": False}


@pytest.fixture
def timed(monkeypatch):
    """The clock shows how many updates were made."""
    clock = SimpleNamespace(perf_counter=lambda: Timed.last.did.count("update"))
    monkeypatch.setattr(dry_run, "DryRun", Timed)
    monkeypatch.setattr(dry_run, "time", clock)
    monkeypatch.setattr(dry_run, "SECONDS", 2)
    monkeypatch.setattr(environment, "job_seconds", lambda: 5.0)


ONE_SIZE = [*["update"] * 4, "evaluate", "finish"]


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("micro_batch", "steps", "made"), [(4, 6, 2), (12, 2, 2), (24, 1, 1)])
def test_a_probe_reckons_whole_updates_from_short_ones(config, objective, tmp_path, micro_batch, steps, made, known):
    # without it the number of micro-steps decides
    asked = config.with_accum_steps(1 if known else steps)
    (found,) = measure(asked, objective, ONE_REPLICA, [micro_batch if known else None], tmp_path)
    assert Timed.last.did == [(steps, tmp_path), (micro_batch, made), *ONE_SIZE]
    first_update = found.pop("seconds_to_first_update") - (steps - made) * 0.5
    assert first_update == pytest.approx(5.0)
    assert found == {
        "micro_batch": micro_batch,
        "accum_steps": steps,
        "replicas": 1,
        "batch_norm": False,
        "static_bytes": 1,
        "peak_bytes": 10 * micro_batch,
        "peak_by_compiler": False,
        "rss_bytes": 400,
        "examples_per_second": BATCH / (steps * 0.5 + 0.3),  # the medians of all but the first update
    }


@pytest.mark.usefixtures("timed")
def test_sizes_are_measured_one_after_the_other(config, objective, tmp_path):
    found = measure(config, objective, ONE_REPLICA, [2, 24], tmp_path)
    assert Timed.last.did == [(12, tmp_path), (2, 2), *ONE_SIZE, (24, 1), *ONE_SIZE]
    peaks = [(each["micro_batch"], each["accum_steps"], each["peak_bytes"]) for each in found]
    assert peaks == [(2, 12, 20), (24, 1, 240)]


@pytest.mark.usefixtures("timed")
def test_a_loss_of_the_whole_batch_is_measured_by_whole_windows(config, objective, tmp_path, monkeypatch):
    monkeypatch.setattr(type(config.loss), "is_of_whole_batch", True)
    found = measure(config, objective, ONE_REPLICA, [2, 24], tmp_path)
    assert Timed.last.did == [(12, tmp_path), (2, 12), *ONE_SIZE, (24, 1), *ONE_SIZE]
    assert [each["seconds_to_first_update"] for each in found] == [5.0, 5.0]  # no micro-step is left to reckon


def test_a_micro_batch_that_does_not_divide_is_refused(config, objective, tmp_path):
    with pytest.raises(ConfigError, match="batch_size=24"):
        measure(config, objective, ONE_REPLICA, [7], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet5", pytest.param("revnet38", marks=pytest.mark.slow)])
def test_each_of_two_sizes_has_its_own_peak(compose, tmp_path, model):
    """One window serves both sizes. Two windows of a RevNet would count the state of the first again."""
    config = compose(f"model={model}", "data=digits", "batch_size=64", "accum.steps=1")
    gc.collect()
    found = measure(config, open_objective(config), resolve_devices(config.device), [4, 64], tmp_path)
    (static, peak), (later_static, later_peak) = [(each["static_bytes"], each["peak_bytes"]) for each in found]
    assert later_static < 1.5 * static, "a graph leaves a little"
    assert peak - static < later_peak - later_static < 20 * (peak - static)


# ---- the updates ----


@pytest.mark.slow
def test_its_updates_are_those_of_training(run, config, objective):
    """Each update has two micro-batches, those with which a run of this configuration begins."""
    assert min(run.update()) > 0
    assert run.calls == 3, "two micro-steps, the first of which sets the pace, and the commit"
    assert [run.updates(2), run.updates(1)] == [1, 1]
    assert int(run.window.step) == 3
    expected = build_window(config, objective, UPDATES, tf.distribute.get_strategy())
    batches = iter(make_train_batches(objective.data, batch=MICRO, first=0, seed=config.run.seed))
    for _ in range(3):
        for _ in range(2):
            expected.accumulate(next(batches))
        expected.commit()
    for found, known in zip(run.window.variables_, expected.variables_, strict=True):
        np.testing.assert_allclose(found, known, rtol=1e-5, atol=1e-7)


def test_the_seconds_are_those_of_a_micro_step_and_of_the_commit(run, monkeypatch):
    moments, asked = iter([100.0, 106.0, 110.0]), []
    monkeypatch.setattr(dry_run, "time", SimpleNamespace(perf_counter=lambda: next(moments)))
    monkeypatch.setattr(run._pace, "next", lambda most: asked.append(most) or 1)
    assert run.update() == (3.0, 4.0)
    assert asked == [2, 1]


@pytest.mark.slow
def test_short_updates_share_a_call_that_is_compiled_before(run, monkeypatch):
    run.update()
    lengths, calls = iter([1, 4, 4]), []
    monkeypatch.setattr(run._updates_pace, "next", lambda most: next(lengths))
    together = run.step.updates
    monkeypatch.setattr(run.step, "updates", lambda batches, count: calls.append(count) or together(batches, count))
    assert [run.updates(9) for _ in range(3)] == [1, 4, 4]
    assert calls == [1, 4, 4], "the first one compiles"
    assert run.calls == 1 / 4
    assert int(run.window.step) == 1 + 1 + 1 + 4 + 4


def test_it_evaluates_one_batch_and_writes_the_last_and_the_best_state(run, tmp_path, monkeypatch):
    run.update()
    reports, evaluator = [], run._evaluator
    monkeypatch.setattr(
        run, "_evaluator", lambda stop, report: evaluator(stop, lambda *done: (reports.append(done), report(*done)))
    )
    run.evaluate()
    assert reports == [(1, 360 // MICRO)]
    memory = run.finish()
    assert 0 < memory["tensor_static_bytes"] < memory["tensor_peak_bytes"]
    assert {path.parent.name for path in tmp_path.glob("checkpoints/**/step-1")} == {"checkpoints", "best"}


@pytest.mark.slow
@pytest.mark.xla
def test_xla_compiles_where_the_run_asks_for_it(compose, tmp_path):
    config = compose(*LENET, "device.xla=true")
    run = DryRun(config, open_objective(config), resolve_devices(config.device), MICRO, tmp_path, 2)
    assert is_compiled_by_xla(run.step, run.batches)
