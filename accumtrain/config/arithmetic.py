"""The arithmetic of batches, updates and epochs: batch_size = micro-batch x accum.steps x replicas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

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


@dataclass(frozen=True)
class BatchStage:
    """Updates with batches of the same size.

    Attributes:
        first: updates made before.
        batch: examples of each update.
        epochs: made before.
        per_update: epochs that an update makes.
    """

    first: int
    batch: int
    epochs: Fraction
    per_update: Fraction


class Epochs:
    """The batch of each update, and the exact number of passes over the training data after it.

    Batch size, ramp and data may change when a run goes on. The epochs that were made before are not counted again.

    Args:
        train_examples: examples of an epoch, from now on.
    """

    def __init__(self, config: Config, train_examples: int):
        self._config, self._size = config, train_examples
        self.restore(0, Fraction(0))

    def restore(self, step: int, epochs: Fraction) -> None:
        """Go on from update `step`, by which so many epochs were made."""
        self._stages: list[BatchStage] = []
        plan = [*list_batches(self._config, self._size), (None, 0)]
        for (_, batch), (end, _) in pairwise(plan):
            if end is not None and end <= epochs:
                continue
            per_update = Fraction(batch, self._size)
            self._stages.append(BatchStage(step, batch, epochs, per_update))
            if end is not None:
                updates = math.ceil((end - epochs) / per_update)
                step, epochs = step + updates, epochs + updates * per_update

    @property
    def batches(self) -> list[tuple[int, int]]:
        """The stages from here on: the updates made before each, and the examples of its updates."""
        return [(stage.first, stage.batch) for stage in self._stages]

    def batch_after(self, step: int) -> int:
        """Return the examples of the update that follows on update `step`."""
        return self._stage(step).batch

    def next_stage(self, step: int) -> int | None:
        """Return the last update before another batch, if there is one after update `step`."""
        return next((stage.first for stage in self._stages if stage.first > step), None)

    def examples(self, step: int, then: int) -> int:
        """Return the examples of the updates after `step` until update `then`."""
        examples = (self.at(then) - self.at(step)) * self._size
        assert examples.denominator == 1, "updates are of whole examples"
        return examples.numerator

    def at(self, step: int) -> Fraction:
        """Return the epochs made by update `step`."""
        stage = self._stage(step)
        return stage.epochs + (step - stage.first) * stage.per_update

    def begun(self, step: int) -> int:
        """Return the number of epochs in which the updates up to `step` begin."""
        return math.floor(self.at(step - 1)) + 1

    def counted(self, made: Fraction) -> float:
        """Return the epochs made by an update, as results tell them. One that completes an epoch counts as its end.

        Its batch may hold examples of the next epoch, too.
        """
        stage = next((stage for stage in reversed(self._stages) if stage.epochs < made), self._stages[0])
        completed = math.floor(made) > math.floor(made - stage.per_update)
        return float(math.floor(made) if completed else made)

    def shown(self, made: Fraction) -> str:
        """Return the epochs made by an update as text."""
        return f"{self.counted(made):.4g}"

    def update_of(self, epochs: Fraction | int) -> int:
        """Return the first update by which so many epochs are made."""
        stage = next((stage for stage in reversed(self._stages) if stage.epochs <= epochs), self._stages[0])
        return stage.first + math.ceil((epochs - stage.epochs) / stage.per_update)

    def _stage(self, step: int) -> BatchStage:
        """Return the stage of the update that follows on update `step`. Updates before the first are like its own."""
        return next((stage for stage in reversed(self._stages) if stage.first <= step), self._stages[0])


def list_batches(config: Config, train_examples: int) -> list[tuple[Fraction, int]]:
    """Return the epochs after which a batch of each size begins, and the size.

    With train.steps the epochs of the whole run are those in which its updates make the shares of batch_ramp.
    """
    ramp = {exact_fraction(share): batch for share, batch in config.batch_ramp.items()}
    stages = sorted({Fraction(0): config.batch_size, **ramp}.items())
    if config.train.steps is None:
        whole = exact_fraction(config.train.epochs)
    else:
        ends = [*(share for share, _ in stages[1:]), Fraction(1)]
        updates = [(end - share) / batch for (share, batch), end in zip(stages, ends, strict=True)]
        whole = Fraction(config.train.steps, train_examples) / sum(updates)
    return [(share * whole, batch) for share, batch in stages]


def exact_fraction(number: float | str | None) -> Fraction:
    """Return the decimal that a user wrote, not its binary neighbour: 0.1 epochs of 30 examples are 3 examples."""
    return Fraction(str(number))


def total_steps(config: Config, epochs: Epochs) -> int:
    """Return the updates of the whole run: train.steps, or those of train.epochs, rounded up."""
    if config.train.steps is not None:
        return config.train.steps
    return max(1, epochs.update_of(exact_fraction(config.train.epochs)))
