"""job=verify passes on what is exact, and fails when a fault is planted."""

import json
from contextlib import suppress

import numpy as np
import pytest
import tensorflow as tf

import accumtrain
from accumtrain.dispatch import run
from accumtrain.engine import programs
from accumtrain.engine.norm_statistics import NormStatistics
from accumtrain.errors import ConfigError, VerificationError
from accumtrain.measure.verify import updates as optimizer
from accumtrain.measure.verify.policies import check_policies
from accumtrain.measure.verify.result import CheckResult
from accumtrain.measure.verify.updates import check_optimizer
from accumtrain.optim import adam
from accumtrain.optim.config import AdafactorConfig, AdamConfig, AdamWConfig, KerasOptimConfig, SgdConfig
from accumtrain.tasks.config import LOSSES
from accumtrain.train.build import build_optimizer
from tests.engine.small import examples, lenet, window_for

REVNET = ("model=revnet38", "model.units=[1,1]", "model.filters=[8,8,16]")
RESNET = ("model=resnet20", "model.units=[1]", "model.filters=[8,8]")
WINDOW = ("job=verify", "batch_size=8", "accum.steps=2")
SGD = "optim=sgd"  # where the check of the optimizer is not the point: that of adafactor traces for seconds

ALONE = "gradient of 2 micro-batches against the mean of each alone"
TOGETHER = "gradient of 2 micro-batches against plain back-propagation of all together"
WHOLE = "gradient of 2 micro-batches against one batch"
LOSS = "loss against an independent formula, in float64"
DERIVATIVE = "gradient against differences of the loss, in float64"
EVALUATION = "evaluation by the statistics of a batch against its training pass, in float64"
STREAMS = "gradient with streams of 22 bits behind the point, against that in float64"
REVERSAL = "largest reconstruction error of a stream"


@pytest.fixture
def verified(compose, tmp_path):
    """Run job=verify with these overrides. Return check -> passed, as in verify.json."""

    def verdicts(*overrides):
        config = compose(*WINDOW, f"run.dir={tmp_path}", "run.name=run", *overrides)
        with suppress(VerificationError):
            run(config)
        written = json.loads((tmp_path / "trials/verify-run/verify.json").read_text())
        passed = {record["check"]: record["passed"] for record in written["checks"]}
        assert written["passed"] == (False not in passed.values())
        return passed

    return verdicts


@pytest.mark.parametrize(
    ("override", "why"),
    [("device.xla=true", "nothing is compared under XLA"), ("device.tensor_float_32=true", "by bounds for float32")],
)
def test_what_changes_bits_is_left_out(verified, override, why):
    with pytest.raises(ConfigError, match=rf"^{override}: job=verify .*{why}.*; leave .* out$"):
        verified(override)


def failed(passed):
    return {check for check, verdict in passed.items() if verdict is False}


@pytest.mark.slow
def test_every_bound_holds_for_a_reversible_network(verified):
    passed = verified(*REVNET)
    assert failed(passed) == set()
    assert passed[WHOLE] is None, "no bound can hold with batch norm"
    assert passed[REVERSAL] is True
    assert passed[STREAMS] is None, "that is reported only"
    policies = [check.rpartition("memory=")[2] for check in passed if "memory=" in check]
    assert policies == ["store", "recompute", "reverse"]


@pytest.mark.slow
@pytest.mark.parametrize("filters", ["[8,8,16]", "[8,16,32]"], ids=["streams in", "bfloat16 in"])
def test_bfloat16_is_reversed_to_the_bit(verified, filters):
    passed = verified(*REVNET, SGD, f"model.filters={filters}", "precision=bfloat16")
    assert failed(passed) == set()
    assert passed[REVERSAL] is True


@pytest.mark.slow
def test_float64_has_the_tight_bounds(verified, tmp_path):
    assert failed(verified(*RESNET, "model.norm=group", "precision=float64")) == set()
    records = json.loads((tmp_path / "trials/verify-run/verify.json").read_text())["checks"]
    (whole,) = [record for record in records if record["check"] == WHOLE]
    assert whole["bound"] == 1e-12
    assert whole["measured"] <= 1e-13


@pytest.mark.slow
def test_streams_off_the_grid_fail(command, tmp_path):
    answer = command(*WINDOW, *REVNET, SGD, "model.snap_bits=0", "run.name=run")
    assert answer.code == VerificationError.exit_code == 7
    assert "2 of 18 checks failed" in answer.err
    assert "model.snap_bits=22 makes it exact" in answer.out
    records = json.loads((tmp_path / "runs/trials/verify-run/verify.json").read_text())["checks"]
    bad = [record["check"] for record in records if record["passed"] is False]
    assert bad[0].endswith("memory=reverse")
    assert bad[1] == REVERSAL


@pytest.mark.slow
def test_a_skipped_micro_batch_fails(verified, monkeypatch):
    original = programs.run_on_batches

    def one_less(strategy, batches, count, function):
        original(strategy, batches, tf.maximum(count - 1, 1), function)

    monkeypatch.setattr(programs, "run_on_batches", one_less)
    assert failed(verified("model=lenet5", SGD)) == {ALONE, WHOLE, LOSS, DERIVATIVE}


@pytest.mark.slow
def test_a_doubled_moving_statistic_fails(verified, monkeypatch):
    original = NormStatistics.write

    def doubled(self, sums, examples):
        original(self, sums, examples)
        if self.norms:
            self.norms[-1].moving_variance.assign(2.0 * self.norms[-1].moving_variance)

    monkeypatch.setattr(NormStatistics, "write", doubled)
    assert failed(verified(*RESNET, SGD)) == {"moving variances against float64, worst channel", EVALUATION}


# ---- the checks alone ----


@pytest.fixture
def stored():
    """A LeNet-5's window per policy, a batch, and its gradient."""
    batch = examples(4, (8, 8, 1))

    def window(policy):
        return window_for(lenet(policy), SgdConfig(lr=1.0, weight_decay=0.0, momentum=0.0), (8, 8, 1))

    model = window("store").model
    with tf.GradientTape() as tape:
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch["targets"], model(batch["inputs"]))
        loss = tf.reduce_sum(losses)
    return window, batch, [gradient.numpy() for gradient in tape.gradient(loss, model.trainable_variables)]


@pytest.mark.parametrize(("repeatable", "passed"), [(True, False), (False, None)])
def test_one_other_bit_fails_unless_the_device_repeats_nothing(stored, repeatable, passed):
    window, batch, gradient = stored
    gradient[0].flat[0] = np.nextafter(gradient[0].flat[0] * 2.0, np.inf)
    (result,) = check_policies(
        window, ["recompute"], batch, gradient, repeatable=repeatable, bitwise=True, precision="float32", snap_bits=None
    )
    assert result.measured >= 1.0
    assert result.passed is passed
    assert result.note


OPTIMIZERS = {
    "adam": AdamConfig(lr=1e-3, weight_decay=0.0, epsilon=1e-7),
    "adamw": AdamWConfig(lr=1e-3, weight_decay=0.1, epsilon=1e-7),
    "sgd": SgdConfig(lr=0.1, weight_decay=1e-4, momentum=0.9, nesterov=True),
    "adafactor": AdafactorConfig(lr=None, weight_decay=0.0, momentum=0.0),
    "keras": KerasOptimConfig(lr=1e-3, weight_decay=0.0, name="Nadam"),
}


def optimizer_result(config):
    generator = np.random.default_rng(0)
    shapes = {"kernel": (3, 3, 4, 8), "bias": (8,)}
    weights = [generator.standard_normal(shape).astype(np.float32) * 1e-3 for shape in shapes.values()]
    gradients = [generator.standard_normal(shape).astype(np.float32) for shape in shapes.values()]
    return check_optimizer(lambda: build_optimizer(config), list(shapes), weights, gradients, [True, False], config)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_in_float32_is_that_in_float64(name):
    result = optimizer_result(OPTIMIZERS[name])
    assert result.passed
    assert result.bound < 2e-5


def test_a_bias_correction_that_cancels_fails(monkeypatch):
    def cancelling(mean, t):
        return tf.cast(1.0 - tf.cast(tf.pow(tf.cast(mean.share, t.dtype), t), tf.float16), t.dtype)

    assert optimizer_result(OPTIMIZERS["adam"]).passed
    monkeypatch.setattr(adam, "_bias_correction", cancelling)
    assert optimizer_result(OPTIMIZERS["adam"]).passed is False


def cancelling(jumps):
    """Gradients for Lion whose second update is the sign of what rounding leaves of 0, for the first `jumps` values."""
    beta1, beta2 = (float(np.float32(beta)) for beta in (0.9, 0.99))

    def noisy(gradient, seed):
        generator = np.random.default_rng(seed)
        drawn = [generator.standard_normal(gradient.shape).astype(np.float32) for _ in range(5)]
        drawn[1][:jumps] = -beta1 * (1 - beta2) / (1 - beta1) * drawn[0][:jumps]
        return drawn

    return noisy


@pytest.mark.parametrize(("jumps", "passed"), [(0, True), (10, True), (1000, False)])
def test_a_sign_that_rounding_decides_is_left_out(monkeypatch, jumps, passed):
    monkeypatch.setattr(optimizer, "_noisy", cancelling(jumps))
    lion = KerasOptimConfig(lr=1e-3, weight_decay=0.0, name="Lion")
    zeros = [np.zeros(100_000, np.float32)]
    result = check_optimizer(lambda: build_optimizer(lion), ["kernel"], zeros, zeros, [True], lion)
    assert result.passed is passed
    assert ("jumps" in result.note) is (jumps == 10)


@pytest.mark.parametrize(
    ("measured", "bound", "passed"),
    [(0.0, 0.0, True), (2.0, 1.0, False), (float("nan"), 1.0, False), (9.0, None, None)],
)
def test_verdict(measured, bound, passed):
    assert CheckResult("check", measured, bound).passed is passed


# ---- a loss of the whole batch ----


def spread(labels, logits):
    """Of the outputs of all examples around their mean."""
    return tf.reduce_mean((logits - tf.reduce_mean(logits, axis=0)) ** 2)


@pytest.fixture
def with_spread(monkeypatch):
    monkeypatch.setattr(LOSSES, "entries", dict(LOSSES.entries))
    accumtrain.register_loss("spread", lambda config: spread, metrics={}, whole_batch=True)
    return ("loss=spread", "model=lenet5", SGD)


@pytest.mark.parametrize("runtime", ["tensorflow", pytest.param("jax", marks=pytest.mark.xla)])
def test_every_bound_holds_for_a_loss_of_the_whole_batch(verified, with_spread, runtime):
    passed = verified(*with_spread, f"device.runtime={runtime}")
    assert failed(passed) == set()
    assert passed[WHOLE] is True
    assert passed["gradient against TensorFlow's" if runtime == "jax" else DERIVATIVE] is True


def test_a_second_pass_with_the_gradient_of_another_micro_batch_is_found(verified, with_spread, monkeypatch):
    right = programs.TensorFlowPrograms.differentiate
    monkeypatch.setattr(
        programs.TensorFlowPrograms, "differentiate", lambda own, *given: list(reversed(right(own, *given)))
    )
    assert failed(verified(*with_spread)) >= {TOGETHER, WHOLE, DERIVATIVE}
