"""The entries of a compiled Keras model that lives in a user's program: model, loss, optimizer, data and device.

`accumtrain.fit` chooses them. They build from the model that it runs with, in this process or a child of it. Nothing
here imports TensorFlow, because a child registers them before it sets TensorFlow up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar

from accumtrain.data.config import DataConfig
from accumtrain.data.sources.config import SOURCES, SourceEntry
from accumtrain.devices.config import DEVICES, DeviceConfig, DeviceEntry
from accumtrain.errors import ConfigError
from accumtrain.fields import Role
from accumtrain.models.config import MODELS, STORE, ModelConfig
from accumtrain.optim.config import OPTIMIZERS, OptimConfig
from accumtrain.registry import Entry, load
from accumtrain.tasks.config import LOSSES, TASKS, LossConfig, LossEntry, TaskConfig, TaskEntry

KIND = "compiled"
OR_SAY = ', or say loss="mean" if it is a mean over examples'  # to a user who did not ask for the whole batch

# returns an accumtrain.keras.run.compiled.CompiledModel
_compiled: ContextVar[Callable[[], Any]] = ContextVar("compiled")


@dataclass(kw_only=True)
class CompiledModelConfig(ModelConfig):
    """A model of the user's program.

    Attributes:
        title: its name; a continued run may have another.
        layers: digest of its layers and of the shapes of their weights.
        cuts: it may have cut points.
    """

    kind: str = KIND
    title: Annotated[str, Role.PLACE] = "model"
    layers: str = ""
    cuts: bool = True

    same_bits_in_every_graph: ClassVar[bool] = False  # the graph optimizer rewrites Keras's operations

    @property
    def label(self) -> str:
        return self.title

    @property
    def policies(self) -> tuple[str, ...]:
        return super().policies if self.cuts else (STORE,)


@dataclass(kw_only=True)
class CompiledTaskConfig(TaskConfig):
    """The loss and metrics of the model tell what it learns."""

    kind: str = KIND


@dataclass(kw_only=True)
class CompiledLossConfig(LossConfig):
    """The losses that the model is compiled with, described in `losses`."""

    kind: str = KIND
    losses: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class CompiledBatchLossConfig(CompiledLossConfig):
    """The same, computed for all examples of an update at once."""

    kind: str = f"{KIND}_batch"

    or_say: ClassVar[str] = OR_SAY


@dataclass(kw_only=True)
class CompiledOptimConfig(OptimConfig):
    """An optimizer of the class `name` and the configuration `args`, which has its rate, decay and clipping in it."""

    kind: str = KIND
    lr: float | None = None
    name: str = ""
    args: dict[str, Any] = field(default_factory=dict)

    has_own_rate: ClassVar[bool] = True

    def with_schedule(self, schedule: str) -> str:
        return f"{self.name}, as compiled"


@dataclass(kw_only=True)
class GivenDataConfig(DataConfig):
    kind: str = KIND

    @property
    def label(self) -> str:
        return "given"


@dataclass(kw_only=True)
class CurrentDeviceConfig(DeviceConfig):
    """The first GPU, or the CPU, as TensorFlow has them in this process. Its limit is for planning alone."""

    kind: str = KIND
    as_it_is: ClassVar[bool] = True
    may_run_jax: ClassVar[bool] = True


MODELS.add(Entry(CompiledModelConfig, "accumtrain.keras.run.compiled:build_model"), listed=False)
OF_EXAMPLES = LossEntry(CompiledLossConfig, "accumtrain.keras.run.compiled:build_loss", targets=(KIND,))
OF_BATCHES = replace(
    OF_EXAMPLES,
    config=CompiledBatchLossConfig,
    build="accumtrain.keras.run.compiled:build_batch_loss",
    whole_batch=True,
)
TASKS.add(
    TaskEntry(
        CompiledTaskConfig,
        "accumtrain.keras.run.compiled:CompiledObjective",
        loss=CompiledLossConfig,
        metrics=(),
        targets=KIND,
        mixes=False,
        balances=False,
        chooses_metrics=False,
    ),
    listed=False,
)
LOSSES.add(OF_EXAMPLES, listed=False)
LOSSES.add(OF_BATCHES, listed=False)
OPTIMIZERS.add(Entry(CompiledOptimConfig, "accumtrain.keras.run.compiled:build_optimizer"), listed=False)
SOURCES.add(SourceEntry(GivenDataConfig, "accumtrain.keras.run.compiled:open_given", (KIND,)), listed=False)
DEVICES.add(DeviceEntry(CurrentDeviceConfig, "accumtrain.devices.resolve:resolve_current"), listed=False)


@contextmanager
def running_with(compiled: Any) -> Iterator[None]:
    """Have the entries build from `compiled`, an `accumtrain.keras.run.compiled.CompiledModel`, within this context."""
    token = _compiled.set(lambda: compiled)
    try:
        yield
    finally:
        _compiled.reset(token)


def load_in_child(folder: str) -> None:
    """Have the entries build from the model in a folder of `write_compiled`. It is read when it is needed."""
    _compiled.set(cache(lambda: load("accumtrain.keras.run.compiled:read_compiled")(Path(folder))))


def running() -> Any:
    """Return the `accumtrain.keras.run.compiled.CompiledModel` that the entries build from."""
    compiled = _compiled.get(None)
    if compiled is None:
        raise ConfigError(f"kind={KIND}: stands for the model that accumtrain.fit is given; choose another kind")
    return compiled()
