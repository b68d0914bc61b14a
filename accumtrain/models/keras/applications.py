"""The classifiers of keras.applications, the weights that Keras publishes for them, and those in a file of Keras."""

from __future__ import annotations

import io
import os
import re
import zipfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import h5py
import keras
import numpy as np
from keras.src.utils.naming import reset_uids, to_snake_case

from accumtrain.config.imagenet import IMAGENET, PUBLISHED, SAME, WHITE, ExpectedPixels, show_pixels
from accumtrain.errors import CheckpointError, ConfigError, first_line
from accumtrain.fields import format_value, suggest_names
from accumtrain.models.config import KerasLayersConfig, KerasModelConfig
from accumtrain.models.keras.model import KerasModel
from accumtrain.models.layers import ModelSpec
from accumtrain.models.resnet.blocks import with_norm_momentum

Built = TypeVar("Built", bound=KerasModel)
POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16", "float64": "float64"}
WEIGHTS = "model.weights.h5"  # in a .keras file
SEED = "seed_generator"  # part of the key of the state of random numbers, which is no weight
OPTIMIZER = "optimizer"  # group of a file that holds a training, too


@contextmanager
def dtype_policy(name: str) -> Iterator[None]:
    """Build Keras layers with another dtype policy."""
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def build_keras(config: KerasModelConfig, spec: ModelSpec) -> KerasModel:
    """Return keras.applications.<name>(weights=None, ...) with logits instead of probabilities.

    Raises:
        ConfigError: the name is unknown, Keras refuses an argument, or the images are too small for the model. Or its
            output is no row of logits, or model.memory=recompute would save nothing.
    """
    builders = {name: value for name, value in vars(keras.applications).items() if name[0].isupper()}
    if config.name not in builders:
        raise ConfigError(
            f"model.name={config.name} is not in keras.applications; {suggest_names(config.name, sorted(builders))}"
        )
    fixed = {
        "weights": None,
        "input_tensor": None,
        "input_shape": spec.shape,
        "include_top": True,
        "classes": spec.num_classes,
        "classifier_activation": None,
    }
    taken = fixed.keys() & config.args.keys()
    if taken:
        raise ConfigError(
            f"model.args may not set {', '.join(sorted(taken))}: the data and the loss decide input and output; "
            "leave it out"
        )
    keras.utils.set_random_seed(spec.seed)
    reset_uids()  # so that the paths of its variables are the same each time that it is built
    with dtype_policy(POLICIES[spec.precision]):
        try:
            model = builders[config.name](**fixed, **config.args)
        except (TypeError, ValueError) as error:
            given, other = "", "images of another size"
            if config.args:
                given, other = f" with model.args={format_value(config.args)}", "other arguments"
            raise ConfigError(
                f"keras.applications.{config.name} refuses {spec.shape} images{given}: {error}; "
                f"choose {other}, or another model.name"
            ) from error
        logits = (None, spec.num_classes)
        if model.output_shape != logits:
            raise ConfigError(
                f"keras.applications.{config.name} with model.args={format_value(config.args)} has outputs of shape "
                f"{model.output_shape}: must be {logits}, one logit for each class of the data; leave arguments out, "
                "or choose another model.name"
            )
        return set_norm_momentum(config, KerasModel(config, model, spec.variable_dtype, kept_share=config.kept_share))


def set_norm_momentum(config: KerasLayersConfig, model: Built) -> Built:
    """Return the model with model.norm_momentum, if that is given. Raise ConfigError if it has no batch norm."""
    if config.norm_momentum is None:
        return model
    if not model.norms:
        raise ConfigError(
            f"model.norm_momentum={config.norm_momentum}: {config.label} has no batch normalisation; leave it out"
        )
    return with_norm_momentum(model, config.norm_momentum)


# ---- published weights ----

NOT_FETCHED = re.compile(r"URL fetch failure on (\S+): (?:None -- )?(.*)", re.DOTALL)
IN_CACHE = {"NASNet-mobile.h5": "nasnet_mobile.h5", "NASNet-large.h5": "nasnet_large.h5"}  # all others have one name


def read_published(config: KerasModelConfig) -> dict[str, np.ndarray]:
    """Return the weights trained on ImageNet that Keras publishes for a model, by the path of their variable.

    Keras finds them in its cache or downloads them. They are for images with red first and with the pixels of
    `PUBLISHED`. A first kernel that expects blue first is turned.

    Raises:
        ConfigError: they are neither in the cache nor can they be downloaded, or Keras has none for model.args.
        CheckpointError: the file in the cache is damaged, or it is another.
    """
    reset_uids()  # so that the paths of its variables are those of the model that is built for the data
    with dtype_policy("float32"):
        try:
            builder = getattr(keras.applications, config.name)
            model = builder(weights=IMAGENET, classifier_activation=None, **config.args)
        except Exception as error:  # Keras raises this very class if a download fails
            if failed := NOT_FETCHED.match(str(error)):
                raise ConfigError(_explain_absence(config.name, failed[1], failed[2])) from error
            if not isinstance(error, OSError | KeyError | TypeError | ValueError):
                raise
            if config.args and isinstance(error, TypeError | ValueError):
                raise ConfigError(
                    f"model.weights={IMAGENET}: Keras has no such weights for {config.name} with "
                    f"model.args={format_value(config.args)}: {first_line(error)}; give other arguments, or leave "
                    "model.args out"
                ) from error
            raise CheckpointError(
                f"model.weights={IMAGENET}: Keras can't read the weights of {config.name} in {_cache_folder()}: "
                f"{first_line(error)}; remove the file, so that it is downloaded again"
            ) from error
    arrays = {variable.path: np.array(variable) for variable in model.variables if SEED not in variable.path}
    pixels = PUBLISHED[config.name]
    if pixels.blue_first:
        first = next(layer for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
        arrays[first.kernel.path] = arrays[first.kernel.path][:, :, ::-1]
    if pixels.in_file:
        _undo_normalisation(arrays, model, pixels)
    return arrays


def _cache_folder() -> Path:
    """Return the folder in which Keras keeps what it has downloaded of its applications."""
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras", "models")


def _explain_absence(name: str, address: str, reason: str) -> str:
    """Return the message for weights that are not in the cache and could not be downloaded."""
    pixels, published = PUBLISHED[name], PurePosixPath(address).name
    by_path = "" if pixels.blue_first or pixels.in_file else f", or give model.weights=<file> {show_pixels(pixels)}"
    return (
        f"model.weights={IMAGENET}: the weights of {name} are not in Keras's cache and could not be downloaded "
        f"({reason.strip()}); fetch them where there is a network, by keras.applications.{name}(), and put "
        f"{IN_CACHE.get(published, published)} of its ~/.keras/models into {_cache_folder()}{by_path}"
    )


def _undo_normalisation(arrays: MutableMapping[str, np.ndarray], model: keras.Model, pixels: ExpectedPixels) -> None:
    """Make an identity of the normalisation that a published file holds, as data.mean and data.std do the same.

    Keras divides by the square root of the variance in the file, and once more by that of the standard deviation. So
    their product is the square of the latter.

    Raises:
        CheckpointError: the file has another mean or variance than ImageNet.
    """
    layer = next(layer for layer in model.layers if isinstance(layer, keras.layers.Normalization))
    mean, variance, count = (variable.path for variable in layer.variables)
    if not (
        np.allclose(arrays[mean], pixels.mean, rtol=SAME)
        and np.allclose(arrays[variance], WHITE * np.array(pixels.std), rtol=SAME)
    ):
        raise CheckpointError(
            f"model.weights={IMAGENET}: {layer.name} in the file has mean {arrays[mean]} and variance "
            f"{arrays[variance]}, which are not those of ImageNet: the file in {_cache_folder()} is not the one that "
            "Keras publishes; remove it, so that it is downloaded again"
        )
    for path, value in ((mean, 0), (variance, 1), (count, 0)):
        arrays[path] = np.full_like(arrays[path], value)


# ---- weights in a file ----


def read_keras_file(file: Path, model: keras.Model) -> dict[str, np.ndarray]:
    """Return the arrays of a file by the path of the variable of `model` they belong to, others by their key there.

    A file is a .keras, .weights.h5 or .h5 file, also of earlier versions of Keras. No code in it is run.

    Raises:
        CheckpointError: the file is damaged or of another kind.
    """
    try:
        with zipfile.ZipFile(file) if zipfile.is_zipfile(file) else file.open("rb") as opened:
            source = io.BytesIO(opened.read(WEIGHTS)) if isinstance(opened, zipfile.ZipFile) else opened
            with h5py.File(source, "r") as content:
                whole = content.get("model_weights", content)
                arrays = _read_arrays(whole)
                keys = _map_legacy_keys(whole, model) if "layer_names" in whole.attrs else _map_keys(model)
    except (OSError, KeyError, ValueError, RuntimeError, zipfile.BadZipFile) as error:
        reason = first_line(error)
        raise CheckpointError(
            f"model.weights={file} can't be read as a file of Keras weights: {reason}; give a .keras, .weights.h5 or "
            ".h5 file, or a run"
        ) from error
    return {keys.get(key, key): array for key, array in arrays.items()}


def _read_arrays(content: h5py.Group) -> dict[str, np.ndarray]:
    """Return every array by its key, but for those of the optimizer and of seed generators."""
    found: dict[str, np.ndarray] = {}

    def visit(key: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not key.startswith(OPTIMIZER) and SEED not in key:
            found[key] = np.asarray(item)

    content.visititems(visit)
    return found


def _saved_variables(layer: keras.Layer) -> Mapping[str, keras.Variable]:
    """Return the variables of a layer by the keys under which it saves them."""
    store: dict[str, keras.Variable] = {}
    layer.save_own_variables(store)
    return store


def _map_keys(model: keras.Model) -> dict[str, str]:
    """Map keys in the file to paths of variables. Layers are numbered by class, in the order of the model."""
    numbers: dict[str, int] = {}
    keys: dict[str, str] = {}
    for layer in model.layers:
        kind = to_snake_case(type(layer).__name__)
        numbers[kind] = numbers.get(kind, -1) + 1
        name = f"{kind}_{numbers[kind]}" if numbers[kind] else kind
        keys |= {f"layers/{name}/vars/{key}": variable.path for key, variable in _saved_variables(layer).items()}
    return keys


def _map_legacy_keys(content: h5py.Group, model: keras.Model) -> dict[str, str]:
    """Do the same for files that name their layers. The variables of a layer stand in the same order."""
    keys: dict[str, str] = {}
    for layer in model.layers:
        group = content.get(layer.name)
        if group is not None and "weight_names" in group.attrs:
            names = [name if isinstance(name, str) else name.decode() for name in group.attrs["weight_names"]]
            variables = _saved_variables(layer).values()
            keys |= {f"{layer.name}/{name}": var.path for name, var in zip(names, variables, strict=False)}
    return keys
