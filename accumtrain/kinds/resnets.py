"""The keys of residual and of reversible residual networks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.kinds.model_keys import MEMORIES, MEMORY, REVERSE, STORE, ModelConfig
from accumtrain.kinds.values import COUNT, FRACTION, NOT_NEGATIVE, OneOf, Range, show

NORM_MOMENTUM = 0.9


@dataclass(kw_only=True)
class ResNetConfig(ModelConfig):
    """Pre-activation residual network (He et al. 2016, arXiv:1603.05027).

    `norm`: normalisation of activations, over the micro-batch (batch) or within each example (group).
    `norm_momentum`: what an update keeps of the moving statistics of batch norm.
    `drop_path`: probability that an example leaves out the last residual function in training; it rises linearly from
    the first on (stochastic depth, Huang et al. 2016, arXiv:1603.09382).
    `stem`: first layers. cifar: a 3 x 3 convolution. imagenet: a 7 x 7 convolution of stride 2, and pooling.
    `bottleneck`: residual functions of three convolutions in place of two.
    `units`: number of residual units of each stage.
    `filters`: channels of the stem and of each stage; a bottleneck unit has 4 times as many outputs. Without
    model.bottleneck none may be below the one before it.
    `kept_convs`: how many convolutions of residual functions keep their output, beside what model.memory=recompute or
    reverse keeps; those first that spare most for their memory. null: as many as cost no memory at the peak.
    """

    kind: str = "resnet"
    norm: Annotated[str, OneOf(("batch", "group"))] = "batch"
    norm_momentum: Annotated[float, FRACTION] = NORM_MOMENTUM
    drop_path: Annotated[float, FRACTION] = 0.0
    stem: Annotated[str, OneOf(("cifar", "imagenet"))] = "cifar"
    bottleneck: bool = False
    units: list[int] = field(default_factory=lambda: [3, 3, 3])
    filters: list[int] = field(default_factory=lambda: [16, 16, 32, 64])
    kept_convs: Annotated[int | None, NOT_NEGATIVE] = None

    functions: ClassVar[int] = 1  # residual functions of a unit

    @property
    def stream_widths(self) -> list[int]:
        """Channels of what residual functions are added to: after the stem, and in each stage."""
        stem, *filters = self.filters
        return [stem, *(width * (4 if self.bottleneck else 1) for width in filters)]

    def convs_to_keep(self, stage: int, unit: int) -> int:
        """How many convolutions of a residual function it helps to keep. What the last one gives is only added."""
        return 2 if self.bottleneck else 1

    @property
    def most_kept_convs(self) -> int:
        return self.functions * sum(
            self.convs_to_keep(stage, unit) for stage, count in enumerate(self.units) for unit in range(count)
        )

    def with_policy(self, memory: str) -> ResNetConfig:
        return replace(self, memory=memory, kept_convs=None if memory == STORE else self.kept_convs)

    def dial(self) -> Sequence[ModelConfig]:
        least = replace(self, memory=self.policies[-1])
        kept = [replace(least, kept_convs=count) for count in range(self.most_kept_convs + 1)]
        return [*kept, self.with_policy(STORE)]

    @property
    def kept_in_words(self) -> str:
        if self.kept_convs is None:
            return self.policy
        return f"{self.policy} with {self.kept_convs} of {self.most_kept_convs} convolutions kept"

    @property
    def label(self) -> str:
        return f"resnet{(3 if self.bottleneck else 2) * sum(self.units) + 2}"

    @property
    def least_micro_batch(self) -> int:
        return super().least_micro_batch if self.norm == "batch" else 1

    @property
    def halvings(self) -> int:
        return len(self.units) - 1 + (2 if self.stem == "imagenet" else 0)

    @property
    def facts(self) -> list[str]:
        return [*super().facts, f"{self.norm} norm"]

    def check(self) -> None:
        super().check()
        units, filters = self.units, self.filters
        if not units or min(units) < 1:
            raise ConfigError(f"model.units={show(units)}: must hold one number of at least 1 per stage")
        if len(filters) != len(units) + 1:
            raise ConfigError(
                f"model.filters={show(filters)}: must hold {len(units) + 1} numbers, the stem's and one per stage of "
                f"model.units={show(units)}"
            )
        if min(filters) < 1:
            raise ConfigError(f"model.filters={show(filters)}: every number must be at least 1")
        narrower = [pair for pair in pairwise(filters) if pair[1] < pair[0]]
        if narrower and not self.bottleneck:
            raise ConfigError(
                f"model.filters={show(filters)}: {narrower[0][1]} follow {narrower[0][0]} channels, and the shortcuts "
                "of basic units can only add some; let no number be below the one before it, or use "
                "model.bottleneck=true"
            )
        if self.norm != "batch" and self.norm_momentum != NORM_MOMENTUM:
            raise ConfigError(
                f"model.norm_momentum={self.norm_momentum}: model.norm={self.norm} has no moving statistics; leave it "
                "out, or use model.norm=batch"
            )
        if self.kept_convs is None:
            return
        self.check_kept("model.kept_convs", self.kept_convs)
        if self.kept_convs > self.most_kept_convs:
            raise ConfigError(
                f"model.kept_convs={self.kept_convs}: {self.label} has {self.most_kept_convs} convolutions that can be "
                "kept"
            )


@dataclass(kw_only=True)
class RevNetConfig(ResNetConfig):
    """Reversible residual network (Gomez et al. 2017, arXiv:1707.04585).

    `filters`: channels of the stem and of each stage, both streams together, so even numbers; a bottleneck unit has 4
    times as many outputs. Without model.bottleneck none may be below the one before it.
    `snap_bits`: bits behind the point of the streams, which are fixed-point numbers of 32 bits, so that reversal is
    exact; they must stay below 2^(30 - snap_bits). 0 makes them floats, which are reversed to a rounding only.
    """

    kind: str = "revnet"
    memory: Annotated[int | str, COUNT, MEMORY] = REVERSE
    filters: list[int] = field(default_factory=lambda: [32, 32, 64, 112])
    snap_bits: Annotated[int, Range(0, 27)] = 22

    functions: ClassVar[int] = 2

    @property
    def label(self) -> str:
        return f"revnet{(6 if self.bottleneck else 4) * sum(self.units) + 2}"

    @property
    def policies(self) -> tuple[str, ...]:
        return MEMORIES

    @property
    def stream_widths(self) -> list[int]:
        return [width // 2 for width in super().stream_widths]

    def convs_to_keep(self, stage: int, unit: int) -> int:
        changes_shape = unit == 0 and (stage > 0 or self.stream_widths[0] != self.stream_widths[1])
        # what the last one gives is subtracted in the reversal, but for a unit whose input is kept
        return super().convs_to_keep(stage, unit) + (0 if changes_shape else 1)

    @property
    def stream_bits(self) -> int | None:
        return self.snap_bits

    @property
    def of_float_streams(self) -> ModelConfig:
        return replace(self, snap_bits=0)

    def check(self) -> None:
        super().check()
        if any(number % 2 for number in self.filters):
            raise ConfigError(
                f"model.filters={show(self.filters)}: must be even, each stream of a RevNet carries half of them"
            )
