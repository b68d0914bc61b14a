"""The models: keys, rules and builder of each kind, and the policies of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar

from accumtrain.backprop.config import MOST_SNAP_BITS, SNAP_BITS
from accumtrain.errors import ConfigError
from accumtrain.fields import (
    COUNT,
    EACH,
    FRACTION,
    LOCAL_PATH,
    NOT_NEGATIVE,
    NotEmpty,
    OneOf,
    Range,
    Role,
    format_value,
)
from accumtrain.registry import ComponentConfig, Entry, Registry, required

STORE, RECOMPUTE, REVERSE = "store", "recompute", "reverse"
MEMORIES = (STORE, RECOMPUTE, REVERSE)  # each takes less memory than the one before
LEAST_WITH_BATCH_NORM = 2  # examples of a micro-batch: the statistics of one say nothing of others
MEMORY = OneOf(MEMORIES, number="a number of MB that all tensors may take")
NORM_MOMENTUM = 0.9
RULE = Role.RULE | Role.MEASURED
ONE, UP_TO, ANY = "one", "up to", "any"  # lengths of texts that a trained model takes
DIAL_PARTS = 32  # of a Keras model's activations


@dataclass(kw_only=True)
class ModelConfig(ComponentConfig):
    """Keys of every model.

    `memory`: how the backward pass gets the activations. store: keep all. recompute: keep those at cut points and
    compute the others again. reverse: keep the last ones and compute the others back from them (reversible models
    only). A number: limit of all tensors in MB; as much is kept as fits.
    `weights`: weights to start from: a run, by name or folder, or a file of Keras weights. imagenet: those that Keras
    publishes for model.name; they set data.mean and data.std, too. null: initial values.
    `freeze`: patterns of the paths of variables that are not trained. A pattern that begins with - makes its variables
    trainable again.

    Attributes:
        same_bits_in_every_graph: the model's operations give the same bits in every graph, as job=verify then requires.
        takes: the kind of its inputs. It takes those of a subclass, too.
        tells: what it can tell: None, the class of an example or its numbers, or what `ModelSpec.tells` may be.
        reversible_twin: a reversible model of the same family, in words.
    """

    memory: Annotated[int | str, COUNT, MEMORY, Role.MEMORY] = STORE
    weights: Annotated[str | None, NotEmpty("leave it out to start from initial values"), LOCAL_PATH, Role.PLACE] = None
    freeze: list[str] = field(default_factory=list)

    ROLE: ClassVar[Role] = Role.LEARNED | Role.MEASURED
    same_bits_in_every_graph: ClassVar[bool] = True
    takes: ClassVar[str] = "pixels"
    tells: ClassVar[tuple[str | None, ...]] = (None,)
    reversible_twin: ClassVar[str] = "a RevNet such as model=revnet38"

    @property
    def inputs(self) -> str | None:
        """The kind of its inputs; None if its builder alone knows it."""
        return self.takes

    @property
    def lengths(self) -> str:
        """Those of texts that it takes: ONE, all UP_TO that of the training, or ANY that it has positions for."""
        return UP_TO

    @property
    def policies(self) -> tuple[str, ...]:
        """The values of `memory` that this model supports."""
        return (STORE, RECOMPUTE)

    @property
    def policy(self) -> str:
        """`memory` as a policy; a number of MB must have been replaced by one."""
        assert isinstance(self.memory, str), "model.memory=<MB> was not settled"
        return self.memory

    def with_policy(self, memory: str) -> ModelConfig:
        """Return the same model with another policy, without the keys of the policy that it has."""
        return replace(self, memory=memory)

    def memory_steps(self) -> Sequence[ModelConfig]:
        """Return the model with less and less recomputation: first the least is kept, last all activations.

        All give the same bits.
        """
        return [self.with_policy(memory) for memory in dict.fromkeys((self.policies[-1], STORE))]

    @property
    def least_micro_batch(self) -> int:
        """Examples that a micro-batch must have to train, as far as the keys tell: a model may have batch norm."""
        return LEAST_WITH_BATCH_NORM

    @property
    def stream_bits(self) -> int | None:
        """Bits behind the point of a reversible model's streams; 0 if they are floats. None for other models."""
        return None

    @property
    def of_float_streams(self) -> ModelConfig:
        """The same model with streams of floats: a smooth function of its weights between the kinks of activations."""
        return self

    @property
    def halvings(self) -> int:
        """Number of times that the model halves height and width, as far as known; 0 for models of any size."""
        return 0

    @property
    def kept_in_words(self) -> str:
        """The memory policy, and the activations that are kept beside it."""
        return self.policy

    @property
    def facts(self) -> list[str]:
        """The words of the banner about the model."""
        return [f"memory={self.kept_in_words}"]

    def check(self) -> None:
        if self.memory in self.policies or isinstance(self.memory, int):
            return
        if self.memory == REVERSE:
            raise ConfigError(
                f"model.memory=reverse: {self.label} is not reversible; "
                f"use model.memory={self.policies[-1]}, or {self.reversible_twin}"
            )
        raise ConfigError(
            f"model.memory={self.memory}: {self.label} has no cut points between which computing again would "
            f"save memory; use model.memory={self.policies[-1]}"
        )

    def check_kept(self, key: str, value: float) -> None:
        """Raise ConfigError if model.memory decides about `key`, which was set to `value`."""
        if isinstance(self.memory, int):
            raise ConfigError(
                f"{key}={value} and model.memory={self.memory}: the number of MB decides how much is kept; leave {key} "
                f"out, or use model.memory={self.policies[-1]}"
            )
        if self.memory == STORE:
            raise ConfigError(
                f"{key}={value}: model.memory=store keeps everything; leave it out, or use "
                f"model.memory={self.policies[-1]}"
            )

    def check_precision(self, precision: str) -> None:
        """Raise ConfigError if the model does not compute in `precision`."""


@dataclass(kw_only=True)
class ResNetConfig(ModelConfig):
    """Pre-activation residual network (He et al. 2016, arXiv:1603.05027).

    `norm`: normalisation of activations, over the micro-batch (batch) or within each example (group).
    `norm_momentum`: share of the moving statistics of batch norm that each update keeps.
    `drop_path`: stochastic depth (Huang et al. 2016, arXiv:1603.09382): probability that training skips the last
    residual function for an example. It rises linearly from the first function to the last.
    `stem`: first layers. cifar: a 3 x 3 convolution. imagenet: a 7 x 7 convolution of stride 2, and pooling.
    `bottleneck`: true: residual functions of three convolutions. false: of two.
    `units`: number of residual units of each stage.
    `filters`: channels of the stem and of each stage. A bottleneck unit has 4 times as many outputs. Without
    model.bottleneck no stage may have fewer channels than the one before it.
    `kept_convs`: number of convolutions whose output is kept in addition to what model.memory=recompute or reverse
    keeps. Those come first that save the most time for their memory. null: as many as do not raise the peak.
    """

    kind: str = "resnet"
    norm: Annotated[str, OneOf(("batch", "group"))] = "batch"
    norm_momentum: Annotated[float, FRACTION, RULE] = NORM_MOMENTUM
    drop_path: Annotated[float, FRACTION, RULE] = 0.0
    stem: Annotated[str, OneOf(("cifar", "imagenet"))] = "cifar"
    bottleneck: bool = False
    units: list[int] = field(default_factory=lambda: [3, 3, 3])
    filters: list[int] = field(default_factory=lambda: [16, 16, 32, 64])
    kept_convs: Annotated[int | None, NOT_NEGATIVE, Role.MEMORY] = None

    functions: ClassVar[int] = 1  # residual functions of a unit

    @property
    def stream_widths(self) -> list[int]:
        """Channels of the streams to which residual functions are added: after the stem, and in each stage."""
        stem, *filters = self.filters
        return [stem, *(width * (4 if self.bottleneck else 1) for width in filters)]

    def convs_to_keep(self, stage: int, unit: int) -> int:
        """Count the convolutions of a residual function worth keeping. The output of the last one is only added."""
        return 2 if self.bottleneck else 1

    @property
    def most_kept_convs(self) -> int:
        return self.functions * sum(
            self.convs_to_keep(stage, unit) for stage, count in enumerate(self.units) for unit in range(count)
        )

    def with_policy(self, memory: str) -> ResNetConfig:
        return replace(self, memory=memory, kept_convs=None if memory == STORE else self.kept_convs)

    def memory_steps(self) -> Sequence[ModelConfig]:
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
            raise ConfigError(f"model.units={format_value(units)}: must hold one number of at least 1 per stage")
        if len(filters) != len(units) + 1:
            raise ConfigError(
                f"model.filters={format_value(filters)}: must hold {len(units) + 1} numbers, the stem's and one per "
                f"stage of model.units={format_value(units)}"
            )
        if min(filters) < 1:
            raise ConfigError(f"model.filters={format_value(filters)}: every number must be at least 1")
        narrower = [pair for pair in pairwise(filters) if pair[1] < pair[0]]
        if narrower and not self.bottleneck:
            raise ConfigError(
                f"model.filters={format_value(filters)}: {narrower[0][1]} follow {narrower[0][0]} channels, and the "
                "shortcuts of basic units can only add some; let no number be below the one before it, or use "
                "model.bottleneck=true"
            )
        _check_norm_momentum(self.norm, self.norm_momentum)
        if self.kept_convs is None:
            return
        self.check_kept("model.kept_convs", self.kept_convs)
        if self.kept_convs > self.most_kept_convs:
            raise ConfigError(
                f"model.kept_convs={self.kept_convs}: {self.label} has {self.most_kept_convs} convolutions that can be "
                "kept; give no more"
            )


def _check_norm_momentum(norm: str, momentum: float) -> None:
    """Raise ConfigError if a momentum is set that no moving statistics have."""
    if norm != "batch" and momentum != NORM_MOMENTUM:
        raise ConfigError(
            f"model.norm_momentum={momentum}: model.norm={norm} has no moving statistics; leave it out, or use "
            "model.norm=batch"
        )


@dataclass(kw_only=True)
class ReversibleConfig(ModelConfig):
    """Keys of reversible models, whose streams are 32-bit fixed-point numbers, so that reversal is exact.

    `snap_bits`: bits behind the binary point of the streams. These must stay below 2^(30 - snap_bits). 0: plain floats,
    which reversal restores only up to rounding.
    """

    memory: Annotated[int | str, COUNT, MEMORY] = REVERSE
    snap_bits: Annotated[int, Range(0, MOST_SNAP_BITS + 1), RULE] = SNAP_BITS

    @property
    def policies(self) -> tuple[str, ...]:
        return MEMORIES

    @property
    def stream_bits(self) -> int | None:
        return self.snap_bits

    @property
    def of_float_streams(self) -> ModelConfig:
        return replace(self, snap_bits=0)


@dataclass(kw_only=True)
class RevNetConfig(ReversibleConfig, ResNetConfig):
    """Reversible residual network (Gomez et al. 2017, arXiv:1707.04585).

    `filters`: channels of the stem and of each stage, for both streams together, so the numbers are even. A bottleneck
    unit has 4 times as many outputs. Without model.bottleneck no stage may have fewer channels than the one before it.
    """

    kind: str = "revnet"
    filters: list[int] = field(default_factory=lambda: [32, 32, 64, 112])

    functions: ClassVar[int] = 2

    @property
    def label(self) -> str:
        return f"revnet{(6 if self.bottleneck else 4) * sum(self.units) + 2}"

    @property
    def stream_widths(self) -> list[int]:
        return [width // 2 for width in super().stream_widths]

    def convs_to_keep(self, stage: int, unit: int) -> int:
        changes_shape = unit == 0 and (stage > 0 or self.stream_widths[0] != self.stream_widths[1])
        # the reversal needs the output of the last one, too, but for a unit whose input is kept
        return super().convs_to_keep(stage, unit) + (0 if changes_shape else 1)

    def check(self) -> None:
        super().check()
        if any(number % 2 for number in self.filters):
            raise ConfigError(
                f"model.filters={format_value(self.filters)}: must be even, each stream of a RevNet carries half of "
                "them"
            )


@dataclass(kw_only=True)
class UNetConfig(ModelConfig):
    """U-Net, which tells a class for each pixel of images of any size (Ronneberger et al. 2015, arXiv:1505.04597).

    `norm`: normalisation of activations, within each example (group) or over the micro-batch (batch).
    `norm_momentum`: share of the moving statistics of batch norm that each update keeps.
    `filters`: channels of each level. Each level has half the height and width of the one before it.
    """

    SIZES: ClassVar[dict[tuple[int, ...], str]] = {(32, 64, 128, 256): "small", (64, 128, 256, 512, 1024): "base"}
    tells: ClassVar[tuple[str | None, ...]] = (EACH,)
    reversible_twin: ClassVar[str] = "a reversible one such as model=revunet_small"

    kind: str = "unet"
    norm: Annotated[str, OneOf(("group", "batch"))] = "group"
    norm_momentum: Annotated[float, FRACTION, RULE] = NORM_MOMENTUM
    filters: list[int] = field(default_factory=lambda: [32, 64, 128, 256])

    @property
    def label(self) -> str:
        size = self.SIZES.get(tuple(self.filters), f"{len(self.filters)}x{self.filters[0] if self.filters else 0}")
        return f"{self.kind}_{size}"

    @property
    def least_micro_batch(self) -> int:
        return super().least_micro_batch if self.norm == "batch" else 1

    @property
    def facts(self) -> list[str]:
        return [*super().facts, f"{self.norm} norm"]

    def check(self) -> None:
        super().check()
        if not self.filters or min(self.filters) < 1:
            raise ConfigError(
                f"model.filters={format_value(self.filters)}: must hold one number of at least 1 per level; use "
                "model.filters=[32,64,128,256]"
            )
        _check_norm_momentum(self.norm, self.norm_momentum)


@dataclass(kw_only=True)
class RevUNetConfig(ReversibleConfig, UNetConfig):
    """Reversible U-Net: reversible units at each resolution. Skip connections are added, and computed back to the bit.

    `filters`: channels of each level, for both streams together, so the numbers are even. Each level has half the
    height and width of the one before it.
    `units`: number of reversible units of each level, on the way down and again on the way up. Each has two 3 x 3
    convolutions.
    """

    kind: str = "revunet"
    units: list[int] = field(default_factory=lambda: [3, 3, 3, 3])

    def check(self) -> None:
        super().check()
        if any(number % 2 for number in self.filters):
            raise ConfigError(
                f"model.filters={format_value(self.filters)}: must be even, each stream of a reversible U-Net carries "
                "half of them"
            )
        if len(self.units) != len(self.filters) or min(self.units) < 1:
            raise ConfigError(
                f"model.units={format_value(self.units)}: must hold {len(self.filters)} numbers of at least 1, one "
                f"per level of model.filters={format_value(self.filters)}"
            )


@dataclass(kw_only=True)
class LeNetConfig(ModelConfig):
    """LeNet-5."""

    kind: str = "lenet"

    @property
    def label(self) -> str:
        return "lenet5"

    @property
    def least_micro_batch(self) -> int:
        return 1


@dataclass(kw_only=True)
class MlpConfig(ModelConfig):
    """Dense layers with ReLU, for rows of numbers.

    `width`: outputs of each hidden layer.
    `depth`: number of hidden layers.
    """

    takes: ClassVar[str] = "arrays"

    kind: str = "mlp"
    width: Annotated[int, COUNT] = 256
    depth: Annotated[int, COUNT] = 2

    @property
    def label(self) -> str:
        return "mlp"

    @property
    def least_micro_batch(self) -> int:
        return 1


class InBlocksConfig(ModelConfig):
    """A model of equal blocks, the last of which may keep all activations. Subclasses have the key `kept_blocks`."""

    kept_blocks: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        raise NotImplementedError

    @property
    def least_micro_batch(self) -> int:
        return 1

    def with_policy(self, memory: str) -> InBlocksConfig:
        return self._keeping(0 if memory == STORE else self.kept_blocks, memory)

    def memory_steps(self) -> Sequence[ModelConfig]:
        return [*(self._keeping(count, self.policies[-1]) for count in range(self.blocks)), self.with_policy(STORE)]

    def _keeping(self, count: int, memory: str) -> InBlocksConfig:
        return replace(self, memory=memory, kept_blocks=count)  # type: ignore[call-arg] # a key of subclasses

    @property
    def kept_in_words(self) -> str:
        if not self.kept_blocks:
            return self.policy
        return f"{self.policy} with {self.kept_blocks} of {self.blocks} blocks kept"

    def check_kept_blocks(self, of: str) -> None:
        """Raise ConfigError if more blocks are kept than there are. `of` says where their number is from."""
        blocks = self.blocks  # which may be read from a folder, and is refused if that can't be read
        if not self.kept_blocks:
            return
        self.check_kept("model.kept_blocks", self.kept_blocks)
        if self.kept_blocks > blocks:
            raise ConfigError(f"model.kept_blocks={self.kept_blocks}: there are {blocks} blocks{of}; give no more")


@dataclass(kw_only=True)
class KerasLayersConfig(ModelConfig):
    """Keys of every model of Keras layers.

    `args`: keyword arguments of its builder.
    `norm_momentum`: share of the moving statistics of batch norm that each update keeps; null: the model's own value.
    `kept_share`: share of all activations that is kept in addition to what model.memory=recompute keeps. Whole segments
    are kept, first those that save the most time for their memory.
    """

    same_bits_in_every_graph: ClassVar[bool] = False  # the graph optimizer rewrites Keras's operations

    args: dict[str, Any] = field(default_factory=dict)
    norm_momentum: Annotated[float | None, FRACTION, RULE] = None
    kept_share: Annotated[float, FRACTION, Role.MEMORY] = 0.0

    def with_policy(self, memory: str) -> KerasLayersConfig:
        return replace(self, memory=memory, kept_share=0.0 if memory == STORE else self.kept_share)

    def memory_steps(self) -> Sequence[ModelConfig]:
        shares = [replace(self, memory=RECOMPUTE, kept_share=part / DIAL_PARTS) for part in range(DIAL_PARTS)]
        return [*shares, self.with_policy(STORE)]

    @property
    def kept_in_words(self) -> str:
        return f"{self.policy} with {self.kept_share:.0%} of activations kept" if self.kept_share else self.policy

    def check(self) -> None:
        super().check()
        if self.kept_share:
            self.check_kept("model.kept_share", self.kept_share)


@dataclass(kw_only=True)
class KerasModelConfig(KerasLayersConfig):
    """A model of keras.applications.

    `name`: name of a function of keras.applications.
    """

    kind: str = "keras"
    name: str = required("MobileNetV2")

    @property
    def label(self) -> str:
        return self.name


MODELS: Registry[Entry[Any]] = Registry("model.kind")
MODELS.add(
    Entry(LeNetConfig, "accumtrain.models.lenet:build_lenet"),
    Entry(MlpConfig, "accumtrain.models.mlp:build_mlp"),
    Entry(ResNetConfig, "accumtrain.models.resnet.resnet:build_resnet"),
    Entry(RevNetConfig, "accumtrain.models.resnet.revnet:build_revnet"),
    Entry(UNetConfig, "accumtrain.models.unet.unet:build_unet"),
    Entry(RevUNetConfig, "accumtrain.models.unet.revunet:build_revunet"),
    Entry(KerasModelConfig, "accumtrain.models.keras.applications:build_keras"),
)
