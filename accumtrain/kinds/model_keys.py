"""The keys of every model, and the policies of its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.kinds.table import Choice
from accumtrain.kinds.values import COUNT, LOCAL_PATH, NotEmpty, OneOf

STORE, RECOMPUTE, REVERSE = "store", "recompute", "reverse"
MEMORIES = (STORE, RECOMPUTE, REVERSE)  # each takes less memory than the one before
LEAST_WITH_BATCH_NORM = 2  # examples of a micro-batch: the statistics of one say nothing of others
MEMORY = OneOf(MEMORIES, number="a number of MB that all tensors may take")


@dataclass(kw_only=True)
class ModelConfig(Choice):
    """Keys of every model.

    `memory`: how the backward pass gets activations. store: all are kept. recompute: those at cut points are kept, the
    others computed again. reverse: the last ones are kept, the others computed back from them (RevNets only). A number:
    what all tensors may take, in MB; as much is kept as fits.
    `weights`: a run, by its name or folder, or a file of Keras weights to start from. null: initial values.
    `freeze`: patterns of paths of variables that keep their values. One that begins with - takes its paths back.

    Attributes:
        same_bits_in_every_graph: the model's operations give the same bits in every graph, as job=verify then requires.
    """

    memory: Annotated[int | str, COUNT, MEMORY] = STORE
    weights: Annotated[str | None, NotEmpty("leave it out to start from initial values"), LOCAL_PATH] = None
    freeze: list[str] = field(default_factory=list)

    same_bits_in_every_graph: ClassVar[bool] = True

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
        """The same model with another policy, without what is set for the policy that it has."""
        return replace(self, memory=memory)

    def dial(self) -> Sequence[ModelConfig]:
        """The same model, from what keeps least for the backward pass to what keeps all. None changes a bit."""
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
        """How often the model halves height and width, as far as it is known; 0 for models that take any size."""
        return 0

    @property
    def kept_in_words(self) -> str:
        """The memory policy, and what is kept beside it."""
        return self.policy

    @property
    def facts(self) -> list[str]:
        """What the banner says about the model."""
        return [f"memory={self.kept_in_words}"]

    def check(self) -> None:
        if self.memory in self.policies or isinstance(self.memory, int):
            return
        if self.memory == REVERSE:
            raise ConfigError(
                f"model.memory=reverse: {self.label} is not reversible; "
                f"use model.memory={self.policies[-1]}, or a RevNet such as model=revnet38"
            )
        raise ConfigError(
            f"model.memory={self.memory}: {self.label} has no cut points between which computing again would "
            f"save memory; use model.memory={self.policies[-1]}"
        )

    def check_kept(self, key: str, value: float) -> None:
        """Raises ConfigError if model.memory decides what `key`, which was set to `value`, says."""
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
        """Raises ConfigError if the model does not compute in `precision`."""
