"""The keys of the window: micro-batches of an update, the scale of the loss, the average of the weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.fields import COUNT, FRACTION, POSITIVE, OneOf, Range, Role, Word


@dataclass(kw_only=True)
class AccumConfig:
    """Keys of the accumulation.

    `steps`: micro-batches per update; more of them take less memory. auto: the smallest number that fits into the
    memory, found before the job begins.
    `reduction`: mean: an update uses the mean of its micro-batches' gradients. sum: it uses their sum, as some
    tutorials do; accum.steps then changes what is learned.
    `dtype`: type in which gradients are summed. float64 gives the same sums however micro-batches are spread over
    replicas, and takes twice the memory.
    """

    steps: Annotated[
        int | str, COUNT, Word("auto", "must be a number of micro-batches per update, or auto"), Role.RULE | Role.MEMORY
    ] = 1
    reduction: Annotated[str, OneOf(("mean", "sum")), Role.RULE] = "mean"
    dtype: Annotated[str, OneOf(("float32", "float64")), Role.MEMORY] = "float32"

    @property
    def is_auto(self) -> bool:
        return self.steps == "auto"

    @property
    def count(self) -> int:
        assert isinstance(self.steps, int), "accum.steps=auto was not resolved"
        return self.steps


@dataclass(kw_only=True)
class LossScaleConfig:
    """The scale of the loss for precision=float16. After an overflow it is halved, and the update is skipped.

    `initial`: the scale of the first update.
    `growth_every`: the scale is doubled after this many updates in a row without an overflow.
    """

    initial: Annotated[float, Range(1, 2**64)] = 32768.0
    growth_every: Annotated[int, COUNT] = 2000


@dataclass(kw_only=True)
class EmaConfig:
    """The moving average of the weights (EMA), by which a run is evaluated.

    `decay`: share of the average that each update keeps, such as 0.999; 0 turns the average off.
    `half_life`: examples after which half of the average is forgotten, in the place of ema.decay: an update of B
    examples keeps 2^(-B / half_life). Tasks of tokens count tokens to predict. null: ema.decay is used.
    """

    ROLE: ClassVar[Role] = Role.LEARNED | Role.MEASURED

    decay: Annotated[float, FRACTION] = 0.0
    half_life: Annotated[float | None, POSITIVE] = None

    @property
    def is_kept(self) -> bool:
        return self.decay > 0 or self.half_life is not None

    def check(self) -> None:
        if self.decay and self.half_life is not None:
            raise ConfigError(
                f"ema.half_life={self.half_life:g} and ema.decay={self.decay}: both say what an update keeps of the "
                "average; use ema.decay=0, or ema.half_life=null"
            )
