"""Memory and speed with JAX: what a compiler has planned, a limit that is held before anything runs, and job=bench."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.check import explain_missing_jax
from accumtrain.data.pipeline import make_train_batches
from accumtrain.devices import jax_device
from accumtrain.devices.resolve import resolve_devices
from accumtrain.dispatch import run
from accumtrain.engine.runtime import TensorFlowRuntime
from accumtrain.errors import ConfigError, OutOfMemoryError
from accumtrain.measure import bench, dry_run, flops
from accumtrain.measure.auto_steps import tell_compiler
from accumtrain.measure.bench import measure_matmul_peak
from accumtrain.measure.dry_run import measure
from accumtrain.measure.flops import count_flops
from accumtrain.measure.probe import ProbeResult
from accumtrain.measure.verify.on_jax import check_on_jax
from accumtrain.measure.verify.window import WindowOfExamples
from accumtrain.optim.config import SgdConfig
from accumtrain.process import environment
from accumtrain.tasks.objective import open_objective
from accumtrain.train.build import build_window
from accumtrain.train.memory import Meter, at_peak, tensor_bytes
from tests.engine.small import all_variables, examples, revnet38, window_for
from tests.programs import run_python

jax = pytest.importorskip("jax")
from accumtrain.pjrt.memory import check_limit, memory_errors  # noqa: E402
from accumtrain.pjrt.runtime import JaxRuntime  # noqa: E402

pytestmark = pytest.mark.xla

LENET = ("model=lenet5", "data=digits", "batch_size=24", "train.steps=5", "device=cpu")
SGD = SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.0)
JAX = (*LENET, "device.runtime=jax")


@pytest.fixture
def config(compose):
    return compose(*JAX)


@pytest.fixture
def objective(config):
    return open_objective(config)


@pytest.fixture
def data(objective):
    return objective.data


@pytest.fixture
def new_window(config, objective):
    return lambda: build_window(config, objective, 5, tf.distribute.get_strategy())


@pytest.fixture
def batches_of(config, data):
    return lambda size: iter(make_train_batches(data, batch=size, first=0, seed=config.run.seed))


def device():
    jax.config.update("jax_enable_x64", True)
    return jax.devices("cpu")[0]


# ---- bytes, and a limit ----


@pytest.mark.slow
def test_the_peak_is_the_state_and_the_largest_program(new_window, batches_of):
    runtime, window, batches = JaxRuntime([device()]), new_window(), batches_of(8)
    step = runtime.build_step(window)
    micro_step = step.prepare(batches)
    commit, (held, peak) = step.programs.update, runtime.count_bytes()
    assert step.programs.micro_step is micro_step
    assert 0 <= held - tensor_bytes(all_variables(window)) < 100, "scalars that TensorFlow has captured"
    assert peak == held + max(micro_step.temporary_bytes, commit.temporary_bytes)
    inputs = sum(spec.shape.num_elements() * spec.dtype.size for spec in batches.element_spec.values())
    assert micro_step.temporary_bytes > inputs >= 8 * 8 * 8
    assert commit.temporary_bytes > 0


def test_a_run_that_has_computed_nothing_has_no_figures(new_window):
    """It was stopped after its last update, and is asked for its summary."""
    runtime = JaxRuntime([device()])
    runtime.build_step(new_window())
    meter = Meter(runtime)
    meter.start()
    memory = meter.read()
    figures = ("tensor_peak_bytes", "tensor_static_bytes")
    assert {memory[name] for name in figures} == {None}
    assert at_peak(memory).startswith("no figure for tensors: nothing was computed")


@pytest.mark.slow
def test_a_limit_is_held_to_the_byte_before_anything_has_run(new_window, batches_of):
    free = JaxRuntime([device()])
    free.build_step(new_window()).prepare(batches_of(8))
    _, peak = free.count_bytes()
    JaxRuntime([device()], limit=peak).build_step(new_window()).prepare(batches_of(8))
    tight, window, batches = JaxRuntime([device()], limit=peak - 1), new_window(), batches_of(8)
    step = tight.build_step(window)
    with pytest.raises(tf.errors.ResourceExhaustedError, match=f"take {peak:,} bytes, and the limit is {peak - 1:,}"):
        step.accumulate(batches)
    with tight.reading(window.buffers):
        assert (int(window.micro_step), float(window.examples)) == (0, 0.0)


def test_the_rule_of_the_limit():
    check_limit(10, None)
    check_limit(10, 10)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        check_limit(11, 10)


def test_memory_that_the_device_refuses_is_tensorflows_error():
    with pytest.raises(tf.errors.ResourceExhaustedError, match="memory"), memory_errors():
        jax.numpy.zeros(2**50, "int8").block_until_ready()


def test_another_error_of_jax_stays():
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), memory_errors():
        raise jax.errors.JaxRuntimeError("INTERNAL: RESOURCE_EXHAUSTED is not its beginning")


@pytest.mark.parametrize(
    ("of_job", "of_process", "on_cpu", "expected"),
    [
        (None, None, True, None),
        (7, "900", True, 7 * 2**20),
        (None, "900", True, 900 * 2**20),
        (None, "much", True, None),
        (7, None, True, 7 * 2**20),
        (7, "900", False, 7 * 2**20),
        (None, "900", False, None),
    ],
)
def test_the_limit_of_a_job_or_of_a_probe(monkeypatch, of_job, of_process, on_cpu, expected):
    monkeypatch.setenv(environment.USERS_LIMIT, of_process or "")
    devices = [SimpleNamespace(platform="cpu" if on_cpu else "gpu")]
    assert jax_device._limit_bytes(SimpleNamespace(memory_limit_mb=of_job), devices) == expected


@pytest.mark.parametrize(("runtime", "crashes"), [("jax", False), ("tensorflow", True)])
def test_no_probe_is_needed_before_a_run_with_jax(compose, monkeypatch, runtime, crashes):
    monkeypatch.delenv(environment.ONEDNN, raising=False)
    limited = compose(*LENET, f"device.runtime={runtime}", "device.memory_limit_mb=50")
    assert environment.crashes_when_refused(limited.device) is crashes


@pytest.mark.slow
def test_a_tight_limit_does_not_crash_tensorflow_while_it_lowers(tmp_path):
    where = (f"run.dir={tmp_path}", "data=synthetic", "data.image_size=32", "device.memory_limit_mb=1")
    done = run_python("-m", "accumtrain", *JAX, *where)
    assert done.returncode == OutOfMemoryError.exit_code
    assert "device.memory_limit_mb=1 (MB of tensors) is not enough for this run" in done.stderr


@pytest.mark.slow
def test_a_training_above_its_limit_is_refused_with_remedies(compose, monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "prepare", lambda device, **_: None)
    monkeypatch.delenv(environment.CPU_LIMIT, raising=False)
    where = (f"run.dir={tmp_path}", "run.name=one", "batch_size=240", "device.memory_limit_mb=1")
    with pytest.raises(OutOfMemoryError) as refused:
        run(compose(*JAX, *where))
    text = str(refused.value)
    assert text.startswith(
        "device.memory_limit_mb=1 (MB of tensors) is not enough for this run. accum.steps=auto finds"
    )
    assert "accum.steps=2 (micro-batches of 120 instead of 240, batch_size stays)" in text
    run(compose(*JAX, *where, "accum.steps=10"))
    summary = json.loads((tmp_path / "one/summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["memory"]["peak_by_compiler"] is True
    assert summary["memory"]["tensor_peak_bytes"] <= 2**20


# ---- dry runs ----


@pytest.mark.slow
def test_each_of_two_sizes_has_a_peak(config, objective, tmp_path):
    small, large = measure(config, objective, resolve_devices(config.device), [2, 24], tmp_path)
    assert [(each["micro_batch"], each["accum_steps"]) for each in (small, large)] == [(2, 12), (24, 1)]
    for each in (small, large):
        assert each["peak_by_compiler"] is True
        assert each["examples_per_second"] > 0
    assert 0 < small["static_bytes"] < small["peak_bytes"] < large["peak_bytes"]


@pytest.mark.slow
def test_micro_batches_of_another_size_are_compiled_anew_and_add_to_the_window(new_window, batches_of):
    window = new_window()
    step = JaxRuntime([device()]).build_step(window)
    first = step.prepare(batches_of(8))
    step.accumulate(batches_of(8))
    assert step.prepare(batches_of(8)) is first
    step.accumulate(batches_of(4), 2)
    assert step.prepare(batches_of(4)) is not first
    scalars = step.commit(partial=True)
    assert (float(scalars["examples"]), bool(scalars["finite"])) == (16.0, True)


# ---- job=bench ----


@pytest.mark.slow
def test_operations_are_counted_as_with_tensorflow(new_window, batches_of):
    counts = []
    for runtime in (JaxRuntime([device()]), TensorFlowRuntime()):
        counts.append(count_flops(runtime.build_step(new_window()).prepare(batches_of(8)).graph, 8))
    assert counts[0] == counts[1] > 1e6


def test_a_matrix_product_is_one_of_jax(monkeypatch, config):
    monkeypatch.setattr(flops, "PEAK_SIZE", 8)
    runtime, compiled = JaxRuntime([device()]), []
    compile_program = runtime.compile
    monkeypatch.setattr(runtime, "compile", lambda function: compiled.append(function) or compile_program(function))
    assert measure_matmul_peak(config, runtime) > 0
    (product,) = compiled
    expected = np.matmul(*(tf.random.stateless_uniform([8, 8], [0, seed]).numpy() for seed in (1, 2)))
    np.testing.assert_allclose(product(), expected, rtol=1e-5)


@pytest.mark.slow
def test_a_bench_says_what_it_does_not_measure(compose, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "INPUT_SECONDS", 0.01)
    monkeypatch.setattr(bench, "matmul_flops_per_second", lambda dtype, runtime: 1e12)
    monkeypatch.setattr(environment, "job_seconds", lambda: 2.0)
    asked = compose(*JAX, "job=bench", "bench.updates=3", "bench.seconds=0", f"run.dir={tmp_path}", "run.name=one")
    result = run(asked)
    assert (result["call_seconds"], result["host_share"]) == (None, None)
    assert result["updates"] == 3, "one by one"
    assert result["share_of_matmul"] == result["flops_per_second"] / 1e12 > 0
    assert 0 < result["memory"]["tensor_static_bytes"] < result["memory"]["tensor_peak_bytes"]
    out = capsys.readouterr().out
    assert "not measured, as each micro-step is a call" in out
    assert "of tensors at peak by the compiler: state" in out


@pytest.mark.slow
def test_calls_without_work_are_not_timed_where_each_micro_step_is_a_call(config, objective, tmp_path):
    made = dry_run.DryRun(config, objective, resolve_devices(config.device), 4, tmp_path, 2)
    assert made.seconds_of_call() is None
    assert made.updates(9) == 1
    assert made.calls == 3.0


# ---- job=verify ----


class LosesBatch(JaxRuntime):
    def run_on_batches(self, program, batches, count):
        super().run_on_batches(program, batches, max(1, count - 1))


@pytest.mark.slow
@pytest.mark.parametrize(("runtime", "first_is_right"), [(JaxRuntime, True), (LosesBatch, False)])
def test_gradients_are_verified_against_those_of_tensorflow(runtime, first_is_right, compose, data, objective):
    config = compose(*JAX, "precision=float64", "accum.steps=2", "batch_size=8")
    (batch,) = make_train_batches(data, batch=8, first=0, seed=0).take(1)
    window = WindowOfExamples({name: value.numpy() for name, value in batch.items()}, steps=2, batch=4)
    against_tensorflow, against_one_batch, recomputed = check_on_jax(
        lambda policy: build_window(
            replace(config, model=config.model.with_policy(policy)), objective, 5, tf.distribute.get_strategy()
        ),
        lambda: runtime([device()]),
        ["store", "recompute"],
        window,
        "float64",
    )
    assert against_tensorflow.passed is first_is_right
    assert (against_one_batch.passed, recomputed.passed) == (first_is_right, True)


# ---- words and rules ----


def test_the_words_of_a_peak_say_who_has_found_it(capsys):
    memory = {"tensor_peak_bytes": 10 * 2**20, "tensor_static_bytes": 4 * 2**20}
    assert at_peak(memory | {"peak_by_compiler": True}) == (
        "10.0 MB of tensors at peak by the compiler: state 4.0 MB, activations 6.0 MB"
    )
    tell_compiler([ProbeResult("store", 1, fits=False), ProbeResult("store", 1, True, peak_by_compiler=False)])
    assert capsys.readouterr().out == ""
    tell_compiler([ProbeResult("store", 1, True, peak_by_compiler=True)])
    assert capsys.readouterr().out.startswith("peak: what XLA's compiler has planned")


@pytest.mark.parametrize(
    "overrides",
    [
        ("job=plan",),
        ("job=memory",),
        ("job=bench",),
        ("accum.steps=auto",),
        ("model.memory=100",),
        ("device.memory_limit_mb=100",),
    ],
)
def test_what_measures_goes_with_jax(compose, overrides):
    assert explain_missing_jax(compose(*JAX, *overrides)) is None


def test_a_job_of_tensorflow_names_those_of_jax(compose):
    with pytest.raises(
        ConfigError, match=r"job=check does not compute with JAX; choose job=train, evaluate, .* or \w+,"
    ):
        compose(*JAX, "job=check")


# ---- what reversal saves ----


@pytest.mark.slow
def test_barriers_order_the_operations_so_that_reversal_saves_memory():
    shape, taken = (16, 16, 3), {}
    for memory in ("store", "reverse"):
        window = window_for(
            revnet38(memory=memory, units=(5,)), SgdConfig(lr=0.1, weight_decay=0.0, momentum=0.0), shape
        )
        batches = iter(tf.data.Dataset.from_tensors(examples(32, shape)))
        taken[memory] = JaxRuntime([device()]).build_step(window).prepare(batches).temporary_bytes
    assert taken["reverse"] < 0.5 * taken["store"]
