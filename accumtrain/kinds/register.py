"""Rows of users: models, optimizers, losses, data sources and jobs of one's own program or of an installed package.

A row is added before the command line is read. A configuration then chooses it by name; it never names code itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from accumtrain.kinds.jobs import JOBS, Job
from accumtrain.kinds.losses import LOSSES, LossConfig
from accumtrain.kinds.models import MODELS, ModelConfig
from accumtrain.kinds.optimizers import OPTIMIZERS, OptimConfig
from accumtrain.kinds.sources import SOURCES, DataConfig
from accumtrain.kinds.table import Choice, Kind, Table, named

Code = str | Callable[..., Any]
Keys = TypeVar("Keys", bound=Choice)


def register_model(name: str, build: Code, config: type[ModelConfig] = ModelConfig) -> type[ModelConfig]:
    """Makes `model=<name>` a choice.

    Args:
        build: (config, spec: ModelSpec) -> Model, or "module:function" that is imported on first use.
        config: a dataclass that inherits from ModelConfig and declares the model's own keys with their defaults.

    Returns:
        The dataclass of the row, to write a configuration in Python with.

    Raises:
        ValueError: the name is taken or is no plain word.
        TypeError: `config` is no such dataclass.
    """
    return _register(MODELS, name, build, config)


def register_optimizer(name: str, build: Code, config: type[OptimConfig] = OptimConfig) -> type[OptimConfig]:
    """Makes `optim=<name>` a choice.

    Args:
        build: the class of the optimizer, a subclass of Optimizer; it is called with the keys of `config` but `kind`
            and `clip_norm`, `lr` as `learning_rate`. Or "module:class".
        config, returns, raises: as of `register_model`, with OptimConfig.
    """
    return _register(OPTIMIZERS, name, build, config)


def register_loss(name: str, build: Code, config: type[LossConfig] = LossConfig) -> type[LossConfig]:
    """Makes `loss=<name>` a choice.

    Args:
        build: (config) -> a function (labels [N], logits [N, classes]) -> losses [N]. Or "module:function".
        config, returns, raises: as of `register_model`, with LossConfig.
    """
    return _register(LOSSES, name, build, config)


def register_data(name: str, build: Code, config: type[DataConfig] = DataConfig) -> type[DataConfig]:
    """Makes `data=<name>` a choice.

    Args:
        build: (config, seed) -> Source. Or "module:function".
        config, returns, raises: as of `register_model`, with DataConfig.
    """
    return _register(SOURCES, name, build, config)


def register_job(name: str, run: Code, file: str | None = None, **row: Any) -> None:
    """Makes `job=<name>` a choice.

    Args:
        run: (config: Config) -> the content of the job's file, a dict. Or "module:function". The run's folder is there
            by then, and TensorFlow is ready.
        file: what the result is written to in the run's folder; None is `<name>.json`.
        row: other attributes of `kinds.jobs.Job`, such as `needs_a_run=True`.

    Raises:
        ValueError: the name is taken or is no plain word.
    """
    JOBS.add(Job(name, run, file or f"{name}.json", **row))


def _register(table: Table[Any], name: str, build: Code, config: type[Keys]) -> type[Keys]:
    keys: Any = named(name, config)
    table.add(Kind(keys, build))
    return keys
