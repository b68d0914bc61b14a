"""The update rules in float64 NumPy, one weight at a time, as their papers write them. Decay is for rank >= 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from accumtrain.kinds.optimizers import AdafactorConfig, AdamConfig, KerasOptimConfig, OptimConfig, SgdConfig

Rule = Callable[[Any, np.ndarray, Sequence[np.ndarray], Sequence[float]], np.ndarray]


def decay_of(config: OptimConfig, weight: np.ndarray) -> float:
    return config.weight_decay if weight.ndim >= 2 else 0.0


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def adam(
    config: AdamConfig, weight: np.ndarray, gradients: Sequence[np.ndarray], rates: Sequence[float], decoupled: bool
) -> np.ndarray:
    """Kingma & Ba 2015, Algorithm 1; Loshchilov & Hutter 2019, Algorithm 2."""
    w = weight.copy()
    m = np.zeros_like(w)
    v = np.zeros_like(w)
    decay = decay_of(config, w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        if not decoupled:
            g = g + decay * w
        m = config.beta1 * m + (1 - config.beta1) * g
        v = config.beta2 * v + (1 - config.beta2) * g**2
        m_hat = m / (1 - config.beta1**t)
        v_hat = v / (1 - config.beta2**t)
        w = w - rate * m_hat / (np.sqrt(v_hat) + config.epsilon) - rate * (decay * w if decoupled else 0.0)
    return w


def sgd(config: SgdConfig, weight: np.ndarray, gradients: Sequence[np.ndarray], rates: Sequence[float]) -> np.ndarray:
    """With momentum as TensorFlow 1 and PyTorch define it."""
    w = weight.copy()
    m = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        g = g + decay_of(config, w) * w
        m = config.momentum * m + g
        w = w - rate * (g + config.momentum * m if config.nesterov else m)
    return w


def adafactor(
    config: AdafactorConfig, weight: np.ndarray, gradients: Sequence[np.ndarray], rates: Sequence[float]
) -> np.ndarray:
    """Shazeer & Stern 2018, Algorithms 4 and 5, matrix by matrix; sums over rows and columns as there.

    Of the options beside the paper it has `beta2` and `clip_threshold` null; test_adafactor_peers.py has the others.
    """
    w = weight.copy()
    rows = np.zeros(w.shape[:-1])
    columns = np.zeros(w.shape[:-2] + w.shape[-1:])
    full = np.zeros_like(w)
    momentum = np.zeros_like(w)
    for t, (g, rate) in enumerate(zip(gradients, rates, strict=True), 1):
        w = w - rate * decay_of(config, w) * w
        beta2 = 1.0 - t**-config.decay_exponent
        if config.beta2 is not None:  # Section 7.1
            beta2 = config.beta2 * (1.0 - config.beta2 ** (t - 1)) / (1.0 - config.beta2**t)
        square = g**2 + config.epsilon1
        if w.ndim >= 2:
            rows = beta2 * rows + (1 - beta2) * square.sum(-1)
            columns = beta2 * columns + (1 - beta2) * square.sum(-2)
            v = np.empty_like(w)
            for index in np.ndindex(w.shape[:-2]):
                v[index] = np.outer(rows[index], columns[index]) / rows[index].sum()
        else:
            full = beta2 * full + (1 - beta2) * square
            v = full
        update = g / np.sqrt(v)
        if config.clip_threshold is not None:
            update = update / max(1.0, rms(update) / config.clip_threshold)
        change = rate * update
        if config.scale_parameter:
            change = max(config.epsilon2, rms(w)) * change
        momentum = config.momentum * momentum + (1 - config.momentum) * change
        w = w - momentum
    return w


def keras_lion(
    config: KerasOptimConfig, weight: np.ndarray, gradients: Sequence[np.ndarray], rates: Sequence[float]
) -> np.ndarray:
    """Chen et al. 2023, Algorithm 2, the decay before the update."""
    assert config.name == "Lion"
    beta1, beta2 = config.args.get("beta_1", 0.9), config.args.get("beta_2", 0.99)
    w = weight.copy()
    m = np.zeros_like(w)
    for g, rate in zip(gradients, rates, strict=True):
        w = w - rate * decay_of(config, w) * w
        w = w - rate * np.sign(beta1 * m + (1 - beta1) * g)
        m = beta2 * m + (1 - beta2) * g
    return w


REFERENCES: dict[str, Rule] = {  # by the kind of the row
    "adam": partial(adam, decoupled=False),
    "adamw": partial(adam, decoupled=True),
    "sgd": sgd,
    "adafactor": adafactor,
    "keras": keras_lion,
}
