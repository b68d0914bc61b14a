"""Every model, with each norm, under each memory policy, in each precision: one update, and the same gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.config.schema import PRECISIONS, AccumConfig, Config, LossScaleConfig, RunConfig
from accumtrain.data.open_data import open_data
from accumtrain.engine.build_window import build_window
from accumtrain.engine.checks.result import ROUNDING, relative_difference
from accumtrain.engine.step import Step
from accumtrain.errors import ConfigError
from accumtrain.kinds.models import MODELS, STORE
from accumtrain.kinds.optimizers import SgdConfig
from accumtrain.kinds.schedules import ConstantConfig
from accumtrain.kinds.sources import SyntheticConfig
from accumtrain.models.build_model import build_model
from accumtrain.models.spec import ModelSpec
from tests.contract.examples import IMAGE_SIZES, example_of
from tests.engine.small import CLASSES, examples

EXAMPLES, STEPS = 8, 2
ROUNDING_16 = ROUNDING["bfloat16"]  # float16 keeps more bits, job=verify has no bound for it


@dataclass(frozen=True)
class Case:
    """A row with values of its keys, in a precision."""

    name: str
    norm: str | None
    precision: str
    memory: str = STORE
    seed: int = 0

    @property
    def config(self):
        model = example_of("model", self.name)
        return replace(model, memory=self.memory, **({} if self.norm is None else {"norm": self.norm}))

    def __str__(self) -> str:
        return "-".join(filter(None, (self.name, self.norm, self.precision, self.memory)))


def norms(name: str) -> tuple[str | None, ...]:
    """The values that the key `norm` of a model may have."""
    annotations = {each.name: each.type for each in fields(MODELS[name].config)}
    if "norm" not in annotations:
        return (None,)
    import typing

    hint = typing.get_type_hints(MODELS[name].config, include_extras=True)["norm"]
    return hint.__metadata__[0].choices


def cases() -> Iterator[Case]:
    for row in MODELS:
        for norm in norms(row.name):
            for precision in PRECISIONS:
                yield Case(row.name, norm, precision)
