"""Models from their configuration, and patterns of paths by which variables are frozen or learn at other rates."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from accumtrain.backprop.model import Model
from accumtrain.errors import ConfigError
from accumtrain.fields import EACH
from accumtrain.models.config import MODELS, ModelConfig
from accumtrain.models.layers import ModelSpec
from accumtrain.registry import module_of

NOT = "-"  # before a pattern of model.freeze whose paths are taken back
NEAREST = 3
LAYER = re.compile(r"segments/\d+(/segment)*(/units/\d+)?/")  # a segment with skip connections has one in it


def build_model(config: ModelConfig, spec: ModelSpec) -> Model:
    """Build a model with initial weights that are a pure function of `spec.seed`; model.freeze is applied.

    Raises:
        ConfigError: the model can't be built for these images, or model.freeze chooses nothing or everything.
    """
    if module_of(MODELS[config.kind].build).startswith("accumtrain.models"):
        _check_inputs(config, spec)
        _check_told(config, spec)
    model: Model = MODELS.build(config, spec)
    if config.freeze:
        learnable = {id(variable) for variable in model.learnable}
        paths = [path for path, variable in model.named.items() if id(variable) in learnable]
        trained = set(model.trainable_paths)
        model.freeze(find_frozen_paths(config.freeze, paths, [path for path in paths if path not in trained]))
    return model


def _check_inputs(config: ModelConfig, spec: ModelSpec) -> None:
    """Raise ConfigError if the inputs are not those that a model of accumtrain takes."""
    if config.inputs is None or config.inputs in spec.inputs:
        return
    able = sorted(entry.name for entry in MODELS if entry.config.takes in spec.inputs)
    models = " or ".join(f"a model of kind {name}" for name in able)
    raise ConfigError(
        f"model={config.label}: takes {config.inputs}, and an example of the data is {spec.inputs[0]} "
        f"{list(spec.shape)}; choose {models or 'a model for such inputs, as register_model adds one'}, or data with "
        f"{config.inputs}"
    )


def _check_told(config: ModelConfig, spec: ModelSpec) -> None:
    """Raise ConfigError if a class is asked for each pixel or token, and the model tells none, or the other way.

    Builders check the rest: a model may tell masked tokens and no next ones.
    """
    position = "pixel" if "pixels" in spec.inputs else "token"
    if spec.tells == EACH and EACH not in config.tells:
        told, asked = "one answer for an example", f"a class for each {position}"
    elif spec.tells != EACH and config.tells == (EACH,):
        told, asked = f"a class for each {position}", "something else"
    else:
        return
    able = sorted(
        entry.name for entry in MODELS if spec.tells in entry.config.tells and entry.config.takes in spec.inputs
    )
    models = f"a model of kind {' or '.join(able)}, or " if able else ""
    raise ConfigError(f"model={config.label}: tells {told}, and the task asks for {asked}; choose {models}another task")


def find_frozen_paths(patterns: Sequence[str], paths: Sequence[str], frozen: Iterable[str] = ()) -> list[str]:
    """Return the paths that model.freeze chooses, in order of `paths`. The last pattern that matches a path decides.

    Args:
        frozen: those that are frozen unless a pattern takes them back.

    Raises:
        ConfigError: a pattern matches no path, or the patterns choose no path or all of them.
    """
    rows = [(f"model.freeze={text}", text.removeprefix(NOT), not text.startswith(NOT)) for text in patterns]
    decided = dict.fromkeys(frozen, True) | _decide(rows, paths)
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


def find_rate_factors(factors: Mapping[str, float], paths: Sequence[str], layer_decay: float = 1.0) -> list[float]:
    """Return the factor on the rate of each path: that of optim.rates, or 1, times that of optim.layer_decay.

    The last pattern of optim.rates that matches decides.

    Raises:
        ConfigError: a pattern matches no path, or the model has a single layer.
    """
    decided = _decide([(f"optim.rates={pattern}", pattern, factor) for pattern, factor in factors.items()], paths)
    behind = _count_layers_behind(paths)
    if layer_decay < 1 and not any(behind):
        raise ConfigError(
            f"optim.layer_decay={layer_decay}: the trained variables are of one layer, or of Keras layers; leave it "
            "out, or give optim.rates factors by patterns of paths"
        )
    return [float(decided.get(path, 1.0)) * layer_decay**count for path, count in zip(paths, behind, strict=True)]


def _count_layers_behind(paths: Sequence[str]) -> list[int]:
    """Return the number of layers behind that of each path. A layer is a segment, or a unit of a stage."""
    layers = [match.group() if (match := LAYER.match(path)) else "" for path in paths]
    order = sorted(set(layers), key=lambda layer: [int(number) for number in re.findall(r"\d+", layer)])
    return [len(order) - 1 - order.index(layer) for layer in layers]


def _decide(rows: Iterable[tuple[str, str, Any]], paths: Sequence[str]) -> dict[str, Any]:
    """Return the value for each path that a pattern matches, from rows of what is given, its pattern and its value."""
    decided: dict[str, Any] = {}
    for given, pattern, value in rows:
        matched = [path for path in paths if fnmatchcase(path, pattern)]
        if not matched:
            nearest = difflib.get_close_matches(pattern, paths, n=NEAREST, cutoff=0.0)
            raise ConfigError(
                f"{given}: no trained variable has such a path; the nearest are {', '.join(nearest)} "
                "(* stands for any text, / included)"
            )
        decided |= dict.fromkeys(matched, value)
    return decided
