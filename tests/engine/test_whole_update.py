"""Whole updates, from images and labels to weights, slots and averages, against the same written apart in float64.

The gradient is that of one tf.GradientTape around LeNet-5 in plain operations; clipping, reduction, schedule and moving
average are written here in NumPy, and the rule of the optimizer is that of measure/verify/references.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.engine.ema import MovingAverage
from accumtrain.engine.losses import LossScale
from accumtrain.engine.window import Window
from accumtrain.measure.verify.references import rule_of
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec
from accumtrain.optim.config import (
    OPTIMIZERS,
    AdafactorConfig,
    AdamConfig,
    AdamWConfig,
    KerasOptimConfig,
    OptimConfig,
    SgdConfig,
)
from accumtrain.optim.schedules import step_schedule
from accumtrain.train.build import build_optimizer
from tests.engine.small import CLASSES, examples, lenet, train

SHAPE = (8, 8, 1)
UPDATES, MICRO_STEPS, BATCH = 4, 3, 12
DECAY = 0.25  # of the average: below (1 + t) / (10 + t) from the second update on
SCALE = 3.0  # of the loss: no power of two, so that what is not divided out shows
FACTORS = [0.5, 1.0, 1.0, 0.125]  # of the schedule below, by its definition
# an epsilon that roundings of gradients near 0 are small beside
ADAM = {"lr": 0.01, "weight_decay": 0.1, "epsilon": 1e-3}


@dataclass(frozen=True)
class Case:
    optim: OptimConfig
    reduction: str = "mean"
    clip_norm: float = 0.0
    adaptive_clip: float = 0.0
    scaled: bool = False


CASES = {
    "sgd": Case(SgdConfig(lr=0.1, weight_decay=0.01, momentum=0.9, nesterov=True), clip_norm=0.3),
    "sgd, adaptive clipping": Case(SgdConfig(lr=0.1, weight_decay=0.01, momentum=0.9), "sum", adaptive_clip=0.01),
    "adam": Case(AdamConfig(**ADAM), "sum", clip_norm=0.5),
    "adamw": Case(AdamWConfig(**ADAM), clip_norm=0.3, scaled=True),
    "adafactor": Case(AdafactorConfig(lr=0.05, momentum=0.9, epsilon1=1e-8), "sum", clip_norm=0.3, scaled=True),
    "keras": Case(KerasOptimConfig(lr=0.01, weight_decay=0.1, name="Adamax", args={"epsilon": 1e-3}), clip_norm=0.3),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_whole_updates_agree_with_those_written_apart(case):
    window = window_of(case)
    start = [variable.numpy() for variable in window.variables_]
    batches = [batch_of(seed) for seed in range(UPDATES)]
    updates = train(window, batches, MICRO_STEPS)
    apart = Apart(case, start, window.model.decayed)
    for place, (batch, update) in enumerate(zip(batches, updates, strict=True)):
        for name, value in apart.update(batch, place).items():
            assert update[name] == pytest.approx(value, rel=1e-12), name
    assert_equal(window.variables_, apart.weights)
    assert_equal(window.ema.averages, apart.averages)
    for place, rule in enumerate(apart.rules):
        for slot, expected in slots_of(window.optimizer, rule, place):
            assert_equal([slot], [expected])


def window_of(case: Case) -> Window:
    model = build_model(lenet(), ModelSpec(SHAPE, CLASSES, "float64", seed=3))
    scale = LossScale(SCALE, growth_every=3) if case.scaled else None
    if scale is not None:
        scale.value = tf.Variable(SCALE, dtype=tf.float64)  # float32 would round what it multiplies
    return Window(
        model,
        build_optimizer(case.optim),
        micro_steps=MICRO_STEPS,
        reduction=case.reduction,
        schedule=step_schedule([3], factor=0.125, warmup=2),
        clip_norm=case.clip_norm,
        adaptive_clip=case.adaptive_clip,
        ema=MovingAverage(model.trainable_variables, DECAY),
        loss_scale=scale,
    )


def batch_of(seed: int) -> dict[str, tf.Tensor]:
    weight = np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 2.0], BATCH)
    return {**examples(BATCH, SHAPE, seed), "weight": tf.constant(weight, tf.float32)}


def assert_equal(actual: list[tf.Variable], expected: list[np.ndarray]) -> None:
    for variable, value in zip(actual, expected, strict=True):
        value = np.asarray(value)
        assert variable.dtype == tf.float64
        assert variable.shape == value.shape
        np.testing.assert_allclose(variable, value, rtol=1e-12, atol=1e-12 * np.max(np.abs(value)))


# --- written apart --------------------------------------------------------------------------------------------------


class Apart:
    """Weights, averages and rules, one of each for each variable."""

    def __init__(self, case: Case, start: list[np.ndarray], decayed: list[bool]):
        self.case, self.decayed = case, decayed
        self.weights, self.averages = list(start), list(start)
        make = rule_of(case.optim)
        assert make is not None
        self.rules = [make() for _ in start]

    def update(self, batch: dict[str, tf.Tensor], place: int) -> dict[str, float]:
        """Make update number `place` + 1. Returns what the commit should say of it."""
        total, right, gradients = self.differentiate(batch)
        count = float(np.sum(batch["weight"]))
        summed = MICRO_STEPS if self.case.reduction == "sum" else 1
        gradients = [summed * gradient / count for gradient in gradients]
        norm = np.sqrt(sum(np.sum(gradient**2) for gradient in gradients))
        rate = self.case.optim.lr * FACTORS[place]
        if self.case.clip_norm:
            assert norm > self.case.clip_norm, "or nothing is clipped"
            gradients = [gradient * self.case.clip_norm / norm for gradient in gradients]
        if self.case.adaptive_clip:
            pairs = list(zip(gradients, self.weights, strict=True))
            gradients = [clip_units(gradient, weight, self.case.adaptive_clip) for gradient, weight in pairs]
            assert any(np.any(now != before) for now, (before, _) in zip(gradients, pairs, strict=True)), "some clipped"
        decay = self.case.optim.weight_decay
        self.weights = [
            rule(weight, gradient, rate, decay if decayed else 0.0)
            for rule, weight, gradient, decayed in zip(self.rules, self.weights, gradients, self.decayed, strict=True)
        ]
        share = 1.0 - min(DECAY, (2 + place) / (11 + place))
        self.averages = [a + share * (w - a) for a, w in zip(self.averages, self.weights, strict=True)]
        said = {"step": place + 1, "loss": total / count, "accuracy": right / count, "grad_norm": norm}
        return {
            **said,
            "learning_rate": rate,
            "weight": count,
            "examples": np.sum(batch["weight"] > 0),
            **self.scale(place),
        }

    def scale(self, place: int) -> dict[str, float]:
        """The loss scale is doubled after three updates."""
        return {"loss_scale": SCALE * 2 ** (place // 3), "skipped": 0} if self.case.scaled else {}

    def differentiate(self, batch: dict[str, tf.Tensor]) -> tuple[float, float, list[np.ndarray]]:
        """Sums over the examples: loss, right answers and the gradient of the loss."""
        variables = [tf.constant(weight) for weight in self.weights]
        with tf.GradientTape() as tape:
            tape.watch(variables)
            logits = lenet5(tf.cast(batch["inputs"], tf.float64), variables)
            log_p = tf.math.log(tf.nn.softmax(logits))
            losses = -tf.reduce_sum(tf.one_hot(batch["targets"], CLASSES, dtype=tf.float64) * log_p, axis=1)
            total = tf.reduce_sum(tf.cast(batch["weight"], tf.float64) * losses)
        right = np.argmax(logits, axis=1) == batch["targets"].numpy()
        gradients = [gradient.numpy() for gradient in tape.gradient(total, variables)]
        return float(total), float(np.sum(batch["weight"].numpy() * right)), gradients


def lenet5(x: tf.Tensor, variables: list[tf.Tensor]) -> tf.Tensor:
    """Compute logits of 8 x 8 images by two convolutions and three dense layers, each a bias, then a kernel."""
    layers = list(zip(variables[0::2], variables[1::2], strict=True))
    for bias, kernel in layers[:2]:
        x = tf.nn.max_pool2d(tf.nn.relu(tf.nn.convolution(x, kernel, padding="SAME") + bias), 2, 2, "SAME")
    x = tf.reshape(x, [x.shape[0], -1])
    for bias, kernel in layers[2:4]:
        x = tf.nn.relu(tf.einsum("ni,io->no", x, kernel) + bias)
    bias, kernel = layers[4]
    return tf.einsum("ni,io->no", x, kernel) + bias


def clip_units(gradient: np.ndarray, weight: np.ndarray, share: float) -> np.ndarray:
    """Brock et al. 2021, arXiv:2102.06171, Equation 3, unit by unit. A vector is one unit."""
    if gradient.ndim < 2:
        return clip_units(gradient[:, None], weight[:, None], share)[:, 0]
    clipped = gradient.copy()
    for unit in range(gradient.shape[-1]):
        most = share * max(np.linalg.norm(weight[..., unit].ravel()), 1e-3)
        size = np.linalg.norm(gradient[..., unit].ravel())
        if size > most:
            clipped[..., unit] *= most / size
    return clipped


def slots_of(optimizer, rule, place: int) -> list[tuple[tf.Variable, np.ndarray]]:
    """The slots of a variable, each with what the rule has."""
    kind = type(rule).__name__
    if kind in ("AdamReference", "AdamWReference"):
        return [(optimizer.first_moments[place], rule.m), (optimizer.second_moments[place], rule.v)]
    if kind == "SgdReference":
        return [(optimizer.momenta[place], rule.m)]
    if kind == "AdafactorReference":
        moment, momentum = optimizer.second_moments[place], (optimizer.momenta[place], rule.momentum)
        if "value" in moment:
            return [(moment["value"], rule.full), momentum]
        height, width = moment["row"].shape[-2], moment["column"].shape[-1]  # the rule has sums, the slots means
        row, column = rule.rows[..., None] / width, rule.columns[..., None, :] / height
        return [(moment["row"], row), (moment["column"], column), momentum]
    return []  # Keras's are its own


def test_the_cases_cover_every_optimizer():
    tried = {case.optim.kind for case in CASES.values()}
    assert tried == set(OPTIMIZERS.names), f"each optimizer needs CASES in {__file__}"
