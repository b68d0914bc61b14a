"""Checks the statistics of batch normalisation by what an evaluation makes of them, in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.engine.checks.result import Result, ratio
from accumtrain.engine.checks.window_checks import WindowOfExamples
from accumtrain.engine.micro_mode import micro_mode
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window

BOUND = 1e-9


def is_random(window: Window, examples: WindowOfExamples) -> bool:
    """Whether the model draws random numbers in training."""
    batch = _batch(examples)
    one, other = (_logits(window, batch, _training(window, batch, seed)) for seed in (0, 1))
    return not np.array_equal(one, other, equal_nan=True)


def check_evaluation(window: Window, examples: WindowOfExamples, random: bool) -> list[Result]:
    """Normalised by the statistics of one batch, an evaluation of this batch gives what training computes.

    Args:
        window: in float64, on one device. Its weights stay as they are, its moving statistics do not.
        random: whether the model draws random numbers in training.
    """
    norms = [norm for norm in window.model.norms if norm.momentum < 1.0]
    if not norms:
        return []
    strategy = tf.distribute.get_strategy()
    weights = [variable.numpy() for variable in window.variables_]
    before = [(norm.moving_mean.numpy(), norm.moving_variance.numpy()) for norm in norms]
    step = Step(window, strategy)
    step.accumulate(examples.micro_batches(strategy, steps=1), 1)
    step.commit(partial=True)
    for variable, weight in zip(window.variables_, weights, strict=True):
        variable.assign(weight)
    for norm, old in zip(norms, before, strict=True):
        for variable, value in zip((norm.moving_mean, norm.moving_variance), old, strict=True):
            variable.assign(value + (variable.numpy() - value) / (1.0 - norm.momentum))  # all of the way to the batch's

    batch = _batch(examples)
    training, evaluated = (_logits(window, batch, mode) for mode in (_training(window, batch, 0), EVALUATION))
    name = "evaluation by the statistics of a batch against its training pass, in float64"
    difference = ratio(float(np.linalg.norm(evaluated - training)), float(np.linalg.norm(training)))
    if random:
        return [Result(name, difference, None, "no bound can hold: in training the model draws random numbers")]
    return [Result(name, difference, BOUND)]


def _batch(examples: WindowOfExamples) -> Mapping[str, Any]:
    """All examples as one batch."""
    batch: Mapping[str, Any] = next(examples.micro_batches(tf.distribute.get_strategy(), steps=1))
    return batch


def _training(window: Window, batch: Mapping[str, Any], seed: int) -> Mode:
    first = tf.constant(0)
    return micro_mode(seed, first, first, window.micro_steps, batch)


def _logits(window: Window, batch: Mapping[str, Any], mode: Mode) -> np.ndarray:
    return np.asarray(tf.function(lambda images: window.model(images, mode), autograph=False)(batch["image"]))
