"""The classifiers of keras.applications."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras
from keras.src.utils.naming import reset_uids

from accumtrain.errors import ConfigError
from accumtrain.kinds.models import KerasModelConfig
from accumtrain.kinds.values import show, suggest
from accumtrain.models.blocks import with_norm_momentum
from accumtrain.models.keras_model import KerasModel
from accumtrain.models.spec import ModelSpec

POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16", "float16": "mixed_float16", "float64": "float64"}


@contextmanager
def _dtype_policy(name: str) -> Iterator[None]:
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(previous)


def build_keras(config: KerasModelConfig, spec: ModelSpec) -> KerasModel:
    """keras.applications.<name>(weights=None, ...) with logits instead of probabilities.

    Raises:
        ConfigError: the name is unknown, Keras refuses an argument, the images are too small for the model, its output
            is no row of logits, or model.memory=recompute would save nothing.
    """
    builders = {name: value for name, value in vars(keras.applications).items() if name[0].isupper()}
    if config.name not in builders:
        raise ConfigError(
            f"model.name={config.name} is not in keras.applications; {suggest(config.name, sorted(builders))}"
        )
    fixed = {
        "weights": None,
        "input_tensor": None,
        "input_shape": spec.image_shape,
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
    with _dtype_policy(POLICIES[spec.precision]):
        try:
            model = builders[config.name](**fixed, **config.args)
        except (TypeError, ValueError) as error:
            given, other = "", "images of another size"
            if config.args:
                given, other = f" with model.args={show(config.args)}", "other arguments"
            raise ConfigError(
                f"keras.applications.{config.name} refuses {spec.image_shape} images{given}: {error}; "
                f"choose {other}, or another model.name"
            ) from error
        logits = (None, spec.num_classes)
        if model.output_shape != logits:
            raise ConfigError(
                f"keras.applications.{config.name} with model.args={show(config.args)} has outputs of shape "
                f"{model.output_shape}: must be {logits}, one logit for each class of the data; leave arguments out, "
                "or choose another model.name"
            )
        built = KerasModel(config, model, spec.variable_dtype, kept_share=config.kept_share)
    if config.norm_momentum is None:
        return built
    if not built.norms:
        raise ConfigError(
            f"model.norm_momentum={config.norm_momentum}: {config.name} has no batch normalisation; leave it out"
        )
    return with_norm_momentum(built, config.norm_momentum)
