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


def check_evaluation(window: Window, examples: WindowOfExamples) -> list[Result]:
    """Normalised by the statistics of one batch, an evaluation of this batch gives what training computes.

    Args:
        window: in float64, on one device. Its weights stay as they are, its moving statistics do not.
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

    batch = next(examples.micro_batches(strategy, steps=1))
    place = tf.constant(0)
    training, otherwise = (
        _logits(window, batch, micro_mode(seed, place, place, window.micro_steps, batch)) for seed in (0, 1)
    )
    evaluated = _logits(window, batch, EVALUATION)
    name = "evaluation by the statistics of a batch against its training pass, in float64"
    difference = ratio(float(np.linalg.norm(evaluated - training)), float(np.linalg.norm(training)))
    if not np.array_equal(training, otherwise):
        return [Result(name, difference, None, "no bound can hold: in training the model draws random numbers")]
    return [Result(name, difference, BOUND)]


def _logits(window: Window, batch: Mapping[str, Any], mode: Mode) -> np.ndarray:
    return np.asarray(tf.function(lambda images: window.model(images, mode), autograph=False)(batch["image"]))
