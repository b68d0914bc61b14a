"""The rules of schedules and optimizers in float64 NumPy, as their papers write them.

job=verify compares rates and updates with them. They share no code with what is checked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from accumtrain.optim.config import AdafactorConfig, AdamConfig, AdamWConfig, KerasOptimConfig, OptimConfig, SgdConfig
from accumtrain.optim.schedules import (
    ConstantConfig,
    CosineConfig,
    InverseTimeConfig,
    LinearConfig,
    OneCycleConfig,
    RsqrtConfig,
    ScheduleConfig,
    StepConfig,
    WsdConfig,
)

# ---- the learning rate of an update ----


def cosine(config: CosineConfig, t: int, total: int) -> float:
    first = max(config.warmup, 1)
    return _half_cosine(1.0, config.final, t - first, total - first)


def linear(config: LinearConfig, t: int, total: int) -> float:
    whole = max(config.warmup, 1)  # the updates up to it have the factor 1
    if t <= whole:
        return 1.0
    left = max(total + 1 - t, 0) / (total + 1 - whole)
    return config.final + (1.0 - config.final) * left


def step(config: StepConfig, t: int, total: int) -> float:
    return float(np.prod([config.factor for boundary in config.boundaries if t > boundary]))


def rsqrt(config: RsqrtConfig, t: int, total: int) -> float:
    return 1.0 if t <= config.timescale else math.sqrt(config.timescale / t)


def inverse_time(config: InverseTimeConfig, t: int, total: int) -> float:
    periods = max(t - max(config.warmup, 1), 0) / config.timescale
    return 1.0 / (1.0 + config.decay * (math.floor(periods) if config.staircase else periods))


def one_cycle(config: OneCycleConfig, t: int, total: int) -> float:
    peak = max(config.rise * total, 1.0)
    if t < peak:
        length = max(peak - 1, 1.0)  # a rise takes an update at least
        return _half_cosine(config.start, 1.0, length - (peak - t), length)
    return _half_cosine(1.0, config.final, t - peak, max(total - peak, 1.0))


def wsd(config: WsdConfig, t: int, total: int) -> float:
    start = max(total * (1 - config.decay) if config.decay < 1 else total - config.decay, config.warmup, 1)
    if t <= start:
        return 1.0
    progress = min((t - start) / (total - start), 1.0) if total > start else 1.0
    fallen = progress if config.shape == "linear" else math.sqrt(progress)
    return 1.0 + (config.final - 1.0) * fallen


FACTORS: dict[type[ScheduleConfig], Callable[[Any, int, int], float]] = {
    ConstantConfig: lambda config, t, total: 1.0,
    CosineConfig: cosine,
    LinearConfig: linear,
    StepConfig: step,
    RsqrtConfig: rsqrt,
    InverseTimeConfig: inverse_time,
    OneCycleConfig: one_cycle,
    WsdConfig: wsd,
}


def rate_of(optim: OptimConfig, schedule: ScheduleConfig, t: int, total: int) -> float | None:
    """Return the rate of update t, counted from 1, of `total` updates. None for a schedule that is not written here.

    An optimizer without a rate in its configuration must be Adafactor. Its own rate is that of Shazeer & Stern 2018,
    Section 9: min(1e-2, 1 / sqrt(t)).
    """
    factor = FACTORS.get(type(schedule))
    if factor is None or (optim.lr is None and not isinstance(optim, AdafactorConfig)):
        return None
    return base_rate(optim, t) * min(t / schedule.warmup if schedule.warmup else 1.0, 1.0) * factor(schedule, t, total)


def base_rate(optim: OptimConfig, t: int) -> float:
    """Return the rate before the factor of the schedule."""
    if optim.lr is not None:
        return optim.lr
    assert isinstance(optim, AdafactorConfig)
    largest = 1e-6 * t if optim.warmup_init else 1e-2
    return min(largest, 1.0 / math.sqrt(t)) * (1.0 if optim.scale_parameter else optim.unscaled_relative_step)


def telling_updates(schedule: ScheduleConfig, total: int) -> list[int]:
    """Return updates of a run, counted from 1, that show a schedule which is read at a wrong update."""
    ends = [1, schedule.warmup, total // 3, 2 * total // 3, total - 1]
    if isinstance(schedule, StepConfig):
        ends += schedule.boundaries
    if isinstance(schedule, (RsqrtConfig, InverseTimeConfig)):
        ends.append(schedule.timescale)
    if isinstance(schedule, WsdConfig):
        ends.append(int(total * (1 - schedule.decay) if schedule.decay < 1 else total - schedule.decay))
    return sorted({t for end in ends for t in (end, end + 1) if 1 <= t <= total})


def _half_cosine(start: float, end: float, passed: float, length: float) -> float:
    """Fall or rise from `start` to `end`. The value is constant outside."""
    share = min(max(passed / length, 0.0), 1.0) if length > 0 else float(passed > 0)
    return end + (start - end) * (1.0 + math.cos(math.pi * share)) / 2.0


# ---- optimizers ----


# The rule for one weight, with its state. It takes the weight, a gradient of its shape, the rate, and weight_decay or 0
# for a weight that is not decayed. It returns the weight after its next update.
Rule = Callable[[np.ndarray, np.ndarray, float, float], np.ndarray]


class AdamReference:
    """Kingma & Ba 2015, Algorithm 1."""

    decoupled = False

    def __init__(self, config: AdamConfig):
        self.config, self.t = config, 0
        self.m: Any = 0.0
        self.v: Any = 0.0

    def __call__(self, weight: np.ndarray, gradient: np.ndarray, rate: float, decay: float) -> np.ndarray:
        config = self.config
        self.t += 1
        g = gradient if self.decoupled else gradient + decay * weight
        self.m = config.beta1 * self.m + (1 - config.beta1) * g
        self.v = config.beta2 * self.v + (1 - config.beta2) * g**2
        m_hat = self.m / (1 - config.beta1**self.t)
        v_hat = self.v / (1 - config.beta2**self.t)
        decayed = rate * decay * weight if self.decoupled else 0.0
        return weight - rate * m_hat / (np.sqrt(v_hat) + config.epsilon) - decayed


class AdamWReference(AdamReference):
    """Loshchilov & Hutter 2019, Algorithm 2."""

    decoupled = True


class SgdReference:
    """SGD with momentum as TensorFlow 1 and PyTorch define it."""

    def __init__(self, config: SgdConfig):
        self.config = config
        self.m: Any = 0.0

    def __call__(self, weight: np.ndarray, gradient: np.ndarray, rate: float, decay: float) -> np.ndarray:
        g = gradient + decay * weight
        self.m = self.config.momentum * self.m + g
        return weight - rate * (g + self.config.momentum * self.m if self.config.nesterov else self.m)


class AdafactorReference:
    """Shazeer & Stern 2018, Algorithms 4 and 5, matrix by matrix, with sums over rows and columns as there."""

    def __init__(self, config: AdafactorConfig):
        self.config, self.t = config, 0
        self.rows: Any = 0.0
        self.columns: Any = 0.0
        self.full: Any = 0.0
        self.momentum: Any = 0.0

    def __call__(self, weight: np.ndarray, gradient: np.ndarray, rate: float, decay: float) -> np.ndarray:
        config = self.config
        self.t += 1
        if config.weight_decay_factor == "rate":
            weight = weight - rate * decay * weight
        update = gradient / np.sqrt(self._second_moment(gradient))
        if config.clip_threshold is not None:
            update = update / max(1.0, _rms(update) / config.clip_threshold)
        scale = max(config.epsilon2, _rms(weight)) if config.scale_parameter else 1.0
        factor = {"rate": 0.0, "step_size": rate * scale, "one": 1.0}[config.weight_decay_factor]
        kept = weight - factor * decay * weight
        if config.momentum_of == "update":
            self.momentum = config.momentum * self.momentum + (1 - config.momentum) * update
            return kept - rate * scale * self.momentum
        self.momentum = config.momentum * self.momentum + (1 - config.momentum) * rate * scale * update
        return kept - self.momentum

    def _second_moment(self, gradient: np.ndarray) -> np.ndarray:
        config, t = self.config, self.t
        beta2 = 1.0 - t**-config.decay_exponent
        if config.beta2 is not None:  # Section 7.1
            beta2 = config.beta2 * (1.0 - config.beta2 ** (t - 1)) / (1.0 - config.beta2**t)
        square = gradient**2 + config.epsilon1
        order = np.argsort(gradient.shape, kind="stable") if config.factored_axes == "largest" else None
        pair = sorted((range(gradient.ndim) if order is None else order)[-2:])
        if len(pair) < 2 or min(gradient.shape[axis] for axis in pair) < config.min_dim_size_to_factor:
            self.full = beta2 * self.full + (1 - beta2) * square
            return self.full
        square = np.moveaxis(square, pair, (-2, -1))
        self.rows = beta2 * self.rows + (1 - beta2) * square.sum(-1)
        self.columns = beta2 * self.columns + (1 - beta2) * square.sum(-2)
        v = np.empty(square.shape)
        for index in np.ndindex(square.shape[:-2]):
            v[index] = np.outer(self.rows[index], self.columns[index]) / self.rows[index].sum()
        return np.moveaxis(v, (-2, -1), pair)


class KerasReference:
    """Keras's own optimizer on a variable of its own, decoupled decay before the update."""

    def __init__(self, config: KerasOptimConfig):
        import keras

        self.rate = 0.0
        kind = getattr(keras.optimizers, config.name)
        without_decay = {"weight_decay": 0.0} if config.name == "AdamW" else {"weight_decay": None}
        # a function of it, as Keras keeps a number in float32
        given = {"learning_rate": lambda: keras.ops.convert_to_tensor(self.rate, "float64")}
        self.optimizer = kind(**{**without_decay, **config.args, **given})
        self.variable: Any = None

    def __call__(self, weight: np.ndarray, gradient: np.ndarray, rate: float, decay: float) -> np.ndarray:
        import keras

        if self.variable is None:
            self.variable = keras.Variable(weight, dtype="float64")
            self.optimizer.build([self.variable])
        self.variable.assign(weight - rate * decay * weight)
        self.rate = rate
        self.optimizer.apply([keras.ops.convert_to_tensor(gradient, "float64")], [self.variable])
        return np.asarray(self.variable)


RULES: dict[type[OptimConfig], Callable[[Any], Rule]] = {
    AdamConfig: AdamReference,
    AdamWConfig: AdamWReference,
    SgdConfig: SgdReference,
    AdafactorConfig: AdafactorReference,
    KerasOptimConfig: KerasReference,
}


def with_shares(config: OptimConfig, told: float) -> OptimConfig:
    """Return the keys with the shares that an update of `told` answers keeps, in the place of half-lives."""
    changed: dict[str, Any] = {}
    for name, (key, value) in config.half_lives.items():
        changed |= {name: keep_half(value, told), key: None}
    return replace(config, **changed)


def keep_half(half_life: float, told: float) -> float:
    """Return the share that an update keeps, if updates of `half_life` answers in all keep a half."""
    return float(np.power(0.5, told / half_life))


def rule_of(config: OptimConfig) -> Callable[[], Rule] | None:
    """Return a function that makes the rule of an optimizer for one weight; None if its rule is not written here."""
    rule = RULES.get(type(config))
    return None if rule is None else lambda: rule(config)


def _rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))
