"""Models from their configuration, and patterns of paths by which variables are frozen or learn at other rates."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from accumtrain.backprop.model import Model
from accumtrain.errors import ConfigError
from accumtrain.models.config import MODELS, ModelConfig
from accumtrain.models.layers import ModelSpec

NOT = "-"  # before a pattern of model.freeze whose paths are taken back
NEAREST = 3


def build_model(config: ModelConfig, spec: ModelSpec) -> Model:
    """Build a model with initial weights that are a pure function of `spec.seed`; model.freeze is applied.

    Raises:
        ConfigError: the model can't be built for these images, or model.freeze chooses nothing or everything.
    """
    model: Model = MODELS.build(config, spec)
    if config.freeze:
        learnable = {id(variable) for variable in model.learnable}
        paths = [path for path, variable in model.named.items() if id(variable) in learnable]
        model.freeze(find_frozen_paths(config.freeze, paths))
    return model


def find_frozen_paths(patterns: Sequence[str], paths: Sequence[str]) -> list[str]:
    """Return the paths that model.freeze chooses, in order of `paths`. The last pattern that matches a path decides.

    Raises:
        ConfigError: a pattern matches no path, or the patterns choose no path or all of them.
    """
    decided: dict[str, bool] = {}
    for pattern in patterns:
        matched = _match_paths(f"model.freeze={pattern}", pattern.removeprefix(NOT), paths)
        decided |= dict.fromkeys(matched, not pattern.startswith(NOT))
    frozen = [path for path in paths if decided.get(path)]
    some = f"{NOT}{paths[-1].rpartition('/')[0]}/*"
    if patterns and not frozen:
        raise ConfigError(
            f"model.freeze=[{','.join(patterns)}] freezes nothing: {NOT} takes back what the patterns before it chose; "
            f"begin with what is to be frozen, such as [*,{some}]"
        )
    if len(frozen) == len(paths):
        raise ConfigError(
            f"model.freeze=[{','.join(patterns)}] freezes all {len(paths)} variables, and nothing is left to train; "
            f"take some back, such as {some}"
        )
    return frozen


def find_rate_factors(factors: Mapping[str, float], paths: Sequence[str]) -> list[float]:
    """Return the factor on the rate of each path, by optim.rates, or 1. The last pattern that matches decides.

    Raises:
        ConfigError: a pattern matches no path.
    """
    decided: dict[str, float] = {}
    for pattern, factor in factors.items():
        decided |= dict.fromkeys(_match_paths(f"optim.rates={pattern}", pattern, paths), float(factor))
    return [decided.get(path, 1.0) for path in paths]


def _match_paths(given: str, pattern: str, paths: Sequence[str]) -> list[str]:
    matched = [path for path in paths if fnmatchcase(path, pattern)]
    if not matched:
        nearest = difflib.get_close_matches(pattern, paths, n=NEAREST, cutoff=0.0)
        raise ConfigError(
            f"{given}: no trained variable has such a path; the nearest are {', '.join(nearest)} "
            "(* stands for any text, / included)"
        )
    return matched
