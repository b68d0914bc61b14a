"""The models: keys, rules and builder of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar

from accumtrain.kinds.model_keys import RECOMPUTE, STORE, ModelConfig
from accumtrain.kinds.resnets import ResNetConfig, RevNetConfig
from accumtrain.kinds.table import Kind, Table, required
from accumtrain.kinds.values import FRACTION

DIAL_PARTS = 32  # of a Keras model's activations


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
class KerasModelConfig(ModelConfig):
    """A model of keras.applications.

    `name`: a function of keras.applications.
    `args`: its keyword arguments.
    `norm_momentum`: what an update keeps of the moving statistics of batch norm; null is the model's own.
    `kept_share`: share of all activations that is kept beside what model.memory=recompute keeps: whole segments, those
    first that spare most for their memory.
    """

    same_bits_in_every_graph: ClassVar[bool] = False  # the graph optimizer rewrites Keras's operations

    kind: str = "keras"
    name: str = required("MobileNetV2")
    args: dict[str, Any] = field(default_factory=dict)
    norm_momentum: Annotated[float | None, FRACTION] = None
    kept_share: Annotated[float, FRACTION] = 0.0

    @property
    def label(self) -> str:
        return self.name

    def with_policy(self, memory: str) -> KerasModelConfig:
        return replace(self, memory=memory, kept_share=0.0 if memory == STORE else self.kept_share)

    def dial(self) -> Sequence[ModelConfig]:
        shares = [replace(self, memory=RECOMPUTE, kept_share=part / DIAL_PARTS) for part in range(DIAL_PARTS)]
        return [*shares, self.with_policy(STORE)]

    @property
    def kept_in_words(self) -> str:
        return f"{self.policy} with {self.kept_share:.0%} of activations kept" if self.kept_share else self.policy

    def check(self) -> None:
        super().check()
        if self.kept_share:
            self.check_kept("model.kept_share", self.kept_share)


MODELS: Table[Kind[ModelConfig]] = Table("model.kind")
MODELS.add(
    Kind(LeNetConfig, "accumtrain.models.lenet:build_lenet"),
    Kind(ResNetConfig, "accumtrain.models.resnet:build_resnet"),
    Kind(RevNetConfig, "accumtrain.models.revnet:build_revnet"),
    Kind(KerasModelConfig, "accumtrain.models.keras_applications:build_keras"),
)
