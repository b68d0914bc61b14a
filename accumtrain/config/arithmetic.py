"""The arithmetic of batches, updates and epochs: batch_size = micro-batch x accum.steps x replicas."""

from __future__ import annotations

import math
from fractions import Fraction

from accumtrain.config.schema import Config
from accumtrain.console import format_things
from accumtrain.errors import ConfigError


def micro_batch_size(batch_size: int, steps: int, replicas: int) -> int:
    """Return the examples that one replica sees in one micro-step.

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
        f"batch_size={batch_size} is not divisible by accum.steps={steps} x "
        f"{format_things(replicas, 'replica')}; nearest: {nearest}"
    )


def divisors(number: int) -> list[int]:
    """Return all divisors, increasing."""
    return [size for size in range(1, number + 1) if number % size == 0]


class Epochs:
    """The exact number of passes over the training data after each update.

    Batch size and data may change when a run goes on. The epochs that were made before are not counted again.

    Args:
        train_examples: examples of an epoch, from now on.
    """

    def __init__(self, config: Config, train_examples: int):
        self.per_update = Fraction(config.batch_size, train_examples)
        self.restore(0, Fraction(0))

    def restore(self, step: int, epochs: Fraction) -> None:
        """Go on from update `step`, by which so many epochs were made."""
        self._step, self._before = step, epochs

    @property
    def begin(self) -> Fraction:
        """The update at which the first epoch would begin, if all updates before were like those from now on."""
        return self._step - self._before / self.per_update

    def at(self, step: int) -> Fraction:
        """Return the epochs made by update `step`."""
        return self._before + (step - self._step) * self.per_update

    def begun(self, step: int) -> int:
        """Return the number of epochs in which the updates up to `step` begin."""
        return math.floor(self.at(step - 1)) + 1

    def counted(self, made: Fraction) -> float:
        """Return the epochs made by an update, as results tell them. One that completes an epoch counts as its end.

        Its batch may hold examples of the next epoch, too.
        """
        completed = math.floor(made) > math.floor(made - self.per_update)
        return float(math.floor(made) if completed else made)

    def shown(self, made: Fraction) -> str:
        """Return the epochs made by an update as text."""
        return f"{self.counted(made):.4g}"

    def update_of(self, epochs: Fraction | int) -> int:
        """Return the first update by which so many epochs are made."""
        return self._step + math.ceil((epochs - self._before) / self.per_update)


def total_steps(config: Config, epochs: Epochs) -> int:
    """Return the updates of the whole run: train.steps, or those of train.epochs, rounded up."""
    if config.train.steps is not None:
        return config.train.steps
    # the decimal the user wrote, not its binary neighbour: 0.1 epochs of 30 examples are exactly 3 examples
    return max(1, epochs.update_of(Fraction(str(config.train.epochs))))
