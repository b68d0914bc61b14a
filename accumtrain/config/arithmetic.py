"""Batch and update arithmetic: batch_size = micro-batch x accum.steps x replicas."""

from __future__ import annotations

import math
from fractions import Fraction

from accumtrain.config.schema import Config
from accumtrain.errors import ConfigError


def micro_batch_size(batch_size: int, steps: int, replicas: int) -> int:
    """Examples one replica sees in one micro-step.

    Raises:
        ConfigError: batch_size is not a multiple of steps * replicas.
    """
    parts = steps * replicas
    micro, rest = divmod(batch_size, parts)
    if rest == 0:
        return micro
    below, above = micro * parts, (micro + 1) * parts
    nearest = f"{below}, {above}" if below else f"{above}"
    raise ConfigError(
        f"batch_size={batch_size} does not divide by accum.steps={steps} x {replicas} "
        f"replica{'s' if replicas > 1 else ''}; nearest: {nearest}"
    )


def divisors(number: int) -> list[int]:
    """All divisors, increasing."""
    return [size for size in range(1, number + 1) if number % size == 0]


def total_steps(config: Config, train_examples: int) -> int:
    """Updates of the whole run: train.steps, or train.epochs over `train_examples`, rounded up."""
    if config.train.steps is not None:
        return config.train.steps
    if config.train.epochs is None:
        raise ConfigError("neither train.steps nor train.epochs is set; give one, for example train.epochs=20")
    # the decimal the user wrote, not its binary neighbour: 0.1 epochs of 30 examples are exactly 3 examples
    examples = Fraction(str(config.train.epochs)) * train_examples
    return max(1, math.ceil(examples / config.batch_size))
