"""The rows of a compiled Keras model that lives in a user's program: model, loss, optimizer, data and device.

They are offered while `accumtrain.fit` runs, and in its child processes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

from accumtrain.kinds.devices import DEVICES, Device, DeviceConfig
from accumtrain.kinds.losses import LOSSES, LossConfig, LossKind
from accumtrain.kinds.model_keys import STORE, ModelConfig
from accumtrain.kinds.models import MODELS
from accumtrain.kinds.sources import SOURCES, DataConfig
from accumtrain.kinds.table import Kind, Table, load
from accumtrain.optim.config import OPTIMIZERS, OptimConfig

KIND = "compiled"
PACKAGE = "accumtrain.keras"
METRICS = "metrics.json"  # file of the names of the metrics, for child processes


@dataclass(kw_only=True)
class CompiledModelConfig(ModelConfig):
    """A model of the user's program.

    Attributes:
        title: its name; a continued run may have another.
        layers: digest of its layers and of the shapes of their weights.
        cuts: whether it may have cut points.
    """

    kind: str = KIND
    title: str = "model"
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
class CompiledLossConfig(LossConfig):
    """`losses` describes the losses that the model is compiled with."""

    kind: str = KIND
    losses: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class CompiledOptimConfig(OptimConfig):
    """`name` is the optimizer's class, `args` its configuration. It has its rate, decay and clipping in it."""

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
    """The first GPU, or the CPU, as TensorFlow has them in this process. A limit is only planned with."""

    kind: str = KIND
    as_it_is: ClassVar[bool] = True
    may_compute_on_cpu: ClassVar[bool] = False  # under a limit: it holds in probes alone


@contextmanager
def offered(compiled: Callable[[], Any], metrics: Sequence[str], folder: str | None) -> Iterator[None]:
    """Within this context the rows can be chosen.

    Args:
        compiled: returns the `accumtrain.keras.compiled.Compiled` of this process.
        metrics: names of what is measured beside the loss, on micro-batches too.
        folder: where child processes find the model; None if there are none.
    """
    with ExitStack() as stack:
        for table, row in _rows(compiled, metrics, folder):
            stack.enter_context(table.offering(row))
        yield


def offer_carried(folder: str) -> None:
    """Offers the rows in a child process, from what `accumtrain.keras.compiled` has written to `folder`."""
    metrics = json.loads((Path(folder) / METRICS).read_text(encoding="utf-8"))
    compiled = cache(lambda: load(f"{PACKAGE}.compiled:read_compiled")(Path(folder)))
    for table, row in _rows(compiled, metrics, folder):
        table.add(row)


def _rows(compiled: Callable[[], Any], metrics: Sequence[str], folder: str | None) -> Iterator[tuple[Table[Any], Any]]:
    """Each row with its table."""

    def build(target: str) -> Callable[..., Any]:
        return lambda *arguments, **keywords: load(f"{PACKAGE}.{target}")(compiled(), *arguments, **keywords)

    carried = None if folder is None else ("accumtrain.kinds.compiled:offer_carried", folder)
    yield MODELS, Kind(CompiledModelConfig, build("compiled_model:build_model"), carried)
    measured = {name: partial(build("compiled_loss:metric"), name) for name in metrics}
    split_metrics = build("compiled_loss:build_split_metrics")
    yield LOSSES, LossKind(CompiledLossConfig, build("compiled_loss:build_loss"), None, measured, split_metrics)
    yield OPTIMIZERS, Kind(CompiledOptimConfig, build("compiled_optimizer:build_optimizer"))
    yield SOURCES, Kind(GivenDataConfig, build("compiled:open_given"))
    yield DEVICES, Device(CurrentDeviceConfig, "accumtrain.devices.current:resolve_current")
