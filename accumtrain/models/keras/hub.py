"""Backbones of KerasHub, their weights, and a layer of logits on top."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.utils.naming import reset_uids

from accumtrain.errors import ConfigError, first_line
from accumtrain.fields import NEXT, format_value
from accumtrain.models.keras.applications import POLICIES, dtype_policy, set_norm_momentum
from accumtrain.models.keras.config import KerasHubConfig
from accumtrain.models.keras.cuts import SEED
from accumtrain.models.keras.hub_folder import PresetFolder
from accumtrain.models.keras.model import KerasModel
from accumtrain.models.layers import ModelSpec
from accumtrain.models.published.folder import CONFIG

TOKENS, MASK, TYPES = "token_ids", "padding_mask", "segment_ids"  # of KerasHub's inputs
SIZES = ("vocabulary_size", "vocab_size")  # attributes of backbones
UNKNOWN = "Unknown preset identifier"  # the beginning of KerasHub's error


class HubModel(KerasModel):
    """A backbone of KerasHub with a layer of logits.

    It takes what the data gives: images, or int32 tokens [N, T] with -1 behind them, alone or in {"tokens", "types"}.
    """

    def cast(self, inputs: Any) -> Any:
        names = self.whole().input
        if not isinstance(names, Mapping):
            return super().cast(inputs)
        if TOKENS not in names:
            return {name: super(HubModel, self).cast(inputs) for name in names}
        side = dict(inputs) if isinstance(inputs, Mapping) else {"tokens": inputs}
        tokens = tf.cast(side["tokens"], tf.int32)
        present = tf.cast(tokens >= 0, tf.int32)
        types = tf.cast(side.get("types", tf.zeros_like(tokens)), tf.int32)
        taken = {TOKENS: tf.maximum(tokens, 0), MASK: present, TYPES: types}
        return {name: taken[name] for name in names}


def build_kerashub(config: KerasHubConfig, spec: ModelSpec) -> HubModel:
    """Return the backbone of a preset with initial weights, and a dense layer from its pooled output to logits.

    Without a pooled output the mean over the positions of its output is taken, where tokens are.

    Raises:
        ConfigError: KerasHub is not installed or refuses the preset. Or the backbone takes other inputs than the data
            has, or model.memory=recompute would save nothing.
    """
    if spec.tells:
        raise ConfigError(
            f"{config.given}: backbones of KerasHub have no head for tokens here; use "
            f"{'model=decoder_tiny' if spec.tells == NEXT else 'model=pretrained, or model=encoder_tiny'}"
        )
    keras.utils.set_random_seed(spec.seed)
    with dtype_policy(POLICIES[spec.precision]):
        backbone = load_backbone(config, with_weights=False)
        inputs = _find_inputs(config, backbone, spec)
        body = keras.models.clone_model(backbone, input_tensors=inputs, clone_function=lambda layer: layer)
        mask = inputs.get(MASK) if isinstance(inputs, Mapping) else None
        logits = keras.layers.Dense(spec.num_classes, name="logits")(_pool(config, body.output, mask))
        model = keras.Model(inputs, logits)
        return set_norm_momentum(config, HubModel(config, model, spec.variable_dtype, kept_share=config.kept_share))


def _find_inputs(config: KerasHubConfig, backbone: keras.Model, spec: ModelSpec) -> Any:
    """Return the inputs of a backbone, with the sizes of the data. Raise ConfigError if it takes other ones."""
    taken = backbone.input
    if not isinstance(taken, Mapping):
        return _make_images(config, taken, spec)
    if len(taken) == 1 and TOKENS not in taken:
        return {name: _make_images(config, images, spec) for name, images in taken.items()}
    if not {TOKENS} <= taken.keys() <= {TOKENS, MASK, TYPES}:
        raise ConfigError(
            f"{config.given}: takes {format_value(sorted(taken))}, and texts have {TOKENS}, {MASK} and {TYPES} here; "
            "choose a preset of texts or of images alone"
        )
    _check_tokens(config, backbone, spec)
    return {name: keras.Input(spec.shape[-1:], dtype="int32", name=name) for name in taken}


def _make_images(config: KerasHubConfig, taken: Any, spec: ModelSpec) -> Any:
    """Return an input of images of the data. Raise ConfigError if the backbone takes other ones."""
    expected = tuple(taken.shape[1:])
    if "pixels" not in spec.inputs:
        raise ConfigError(
            f"{config.given}: takes images, and an example of the data is {spec.inputs[0]} {list(spec.shape)}; choose "
            "images, or a preset of texts"
        )
    if len(expected) != len(spec.shape) or any(
        size not in (None, given) for size, given in zip(expected, spec.shape, strict=True)
    ):
        size = "" if None in expected[:-1] else f"data.image_size={format_value(list(expected[:-1]))}, and "
        raise ConfigError(
            f"{config.given}: takes images of {format_value(list(expected))}, and those of the data are "
            f"{list(spec.shape)}; give {size}images of {expected[-1]} channels"
        )
    return keras.Input(spec.shape, dtype=taken.dtype, name=taken.name)


def _check_tokens(config: KerasHubConfig, backbone: keras.Model, spec: ModelSpec) -> None:
    if "tokens" not in spec.inputs:
        raise ConfigError(
            f"{config.given}: takes tokens, and an example of the data is {spec.inputs[0]} {list(spec.shape)}; choose "
            "texts, or a preset of images"
        )
    sizes = [getattr(backbone, name) for name in SIZES if hasattr(backbone, name)]
    if not sizes:
        raise ConfigError(f"{config.given}: does not tell how many tokens it knows; choose another preset")
    spec.check_tokens(config.given, sizes[0], getattr(backbone, "max_sequence_length", None))


def _pool(config: KerasHubConfig, output: Any, mask: Any) -> Any:
    """Return one vector for each example."""
    if isinstance(output, Mapping):
        if "pooled_output" in output:
            return output["pooled_output"]
        output = output.get("sequence_output")
    layers = {2: keras.layers.Identity, 3: keras.layers.GlobalAveragePooling1D, 4: keras.layers.GlobalAveragePooling2D}
    if output is None or len(output.shape) not in layers:
        raise ConfigError(f"{config.given}: its output is no vector, row of vectors or image; choose another preset")
    pooling = layers[len(output.shape)](name="pool")
    return pooling(output) if mask is None else pooling(output, mask=mask)


# ---- presets ----


def load_backbone(config: KerasHubConfig, *, with_weights: bool) -> keras.Model:
    """Return the backbone of a preset, with its weights or with initial ones.

    Raises:
        ConfigError: KerasHub is not installed, refuses the preset, or has no argument of model.args.
    """
    try:
        from keras_hub.models import Backbone
    except ImportError as error:
        raise ConfigError(
            f"{config.given}: KerasHub can't be imported ({first_line(error)}); with Python 3.11 or newer: pip install "
            "'accumtrain[kerashub]'"
        ) from error
    reset_uids()  # so that the paths of its variables are the same each time that it is built
    with TemporaryDirectory() as made:
        place = config.preset
        if config.architecture and not with_weights:
            Path(made, CONFIG).write_text(json.dumps(config.architecture), encoding="utf-8")
            place = made  # the run needs its folder no more
        try:
            backbone = Backbone.from_preset(
                place, load_weights=with_weights, dtype=keras.config.dtype_policy().name, **config.args
            )
        except Exception as error:  # of any kind: KerasHub has one for each file, family and source
            if str(error).startswith(UNKNOWN):
                near = PresetFolder(Path(config.preset)).suggest_near()
                raise ConfigError(
                    f"{config.given} is neither a folder nor a handle that KerasHub knows; {near}give one of these"
                ) from error
            raise ConfigError(
                f"{config.given}: KerasHub refuses it: {first_line(error)}; give a folder with {CONFIG} and weights, a "
                "handle that KerasHub knows, or other model.args"
            ) from error
    if unknown := sorted(config.args.keys() - backbone.get_config().keys()):
        raise ConfigError(
            f"model.args={format_value(config.args)}: {type(backbone).__name__} has no {unknown[0]}; leave it out"
        )
    return backbone


def read_preset(config: KerasHubConfig) -> dict[str, np.ndarray]:
    """Return the weights of a preset by the path of their variable. Raise what `load_backbone` raises."""
    with dtype_policy("float32"):
        backbone = load_backbone(config, with_weights=True)
    return {variable.path: np.array(variable) for variable in backbone.variables if SEED not in variable.path}
