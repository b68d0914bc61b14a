"""model.weights=imagenet: the models of keras.applications that have such weights, and the pixels that they expect."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from accumtrain.data.config import DataConfig
from accumtrain.errors import ConfigError
from accumtrain.fields import format_value, suggest_names
from accumtrain.models.config import KerasModelConfig, ModelConfig

IMAGENET = "imagenet"  # as model.weights
SAME = 1e-3  # difference of two numbers that counts as rounding, relative
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of the pixels of ImageNet, from 0 to 1
WHITE = 255.0


@dataclass(frozen=True)
class ExpectedPixels:
    """Pixels on which published weights were trained: (x - mean) / std of pixels x from 0 to 1.

    Attributes:
        mean: one number, or those of red, green and blue.
        std: one number, or those of red, green and blue.
        blue_first: the first kernel of the published file expects blue, green and red. It is turned when it is loaded.
        in_file: the published file has mean and std in a layer of its own, which stays an identity here.
    """

    mean: list[float]
    std: list[float]
    blue_first: bool = False
    in_file: bool = False


def show_pixels(given: ExpectedPixels | DataConfig) -> str:
    """Return mean and std as a command gives them."""
    return f"data.mean={format_value(given.mean)} data.std={format_value(given.std)}"


_BY_FAMILY = [
    (
        "EfficientNetV2B0 EfficientNetV2B1 EfficientNetV2B2 EfficientNetV2B3 EfficientNetV2S EfficientNetV2M "
        "EfficientNetV2L ConvNeXtTiny ConvNeXtSmall ConvNeXtBase ConvNeXtLarge ConvNeXtXLarge MobileNetV3Small "
        "MobileNetV3Large",
        ExpectedPixels([0.0], [1 / WHITE]),
    ),
    (
        "MobileNetV2 MobileNet InceptionV3 InceptionResNetV2 Xception NASNetMobile NASNetLarge ResNet50V2 ResNet101V2 "
        "ResNet152V2",
        ExpectedPixels([0.5], [0.5]),
    ),
    ("DenseNet121 DenseNet169 DenseNet201", ExpectedPixels(MEAN, STD)),
    (
        "ResNet50 ResNet101 ResNet152 VGG16 VGG19",
        ExpectedPixels([123.68 / WHITE, 116.779 / WHITE, 103.939 / WHITE], [1 / WHITE], blue_first=True),
    ),
    (
        "EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4 EfficientNetB5 EfficientNetB6 "
        "EfficientNetB7",
        ExpectedPixels(MEAN, [value / WHITE for value in STD], in_file=True),
    ),
]
PUBLISHED = {name: pixels for names, pixels in _BY_FAMILY for name in names.split()}  # by model.name


def find_published(word: str) -> str | None:
    """Return the model of keras.applications that a word means: its name, or the first whose name begins with it."""
    plain = re.sub(r"[-_]", "", word).lower()
    by_lower = {name.lower(): name for name in PUBLISHED}
    return by_lower.get(plain) or next(
        (name for lower, name in by_lower.items() if plain and lower.startswith(plain)), None
    )


def check_imagenet(model: ModelConfig, data: DataConfig) -> None:
    """Raise ConfigError if model.weights=imagenet does not go with the other keys. Other weights pass."""
    if model.weights != IMAGENET:
        return
    if not isinstance(model, KerasModelConfig):
        raise ConfigError(
            f"model.weights={IMAGENET}: Keras has no such weights for {model.label}; choose model=keras "
            "model.name=EfficientNetV2B0, or another of its models. A run of that name is given by its folder, such as "
            f"runs/{IMAGENET}"
        )
    if model.name not in PUBLISHED:
        raise ConfigError(
            f"model.name={model.name} and model.weights={IMAGENET}: Keras has no such model; "
            f"{suggest_names(model.name, PUBLISHED)}"
        )
    if "include_preprocessing" in model.args:
        raise ConfigError(
            f"model.args={format_value(model.args)} and model.weights={IMAGENET}: data.mean and data.std are set for "
            "the default of include_preprocessing; leave model.args out, or only that argument"
        )
    pixels = PUBLISHED[model.name]
    for key, given, expected in (("mean", data.mean, pixels.mean), ("std", data.std, pixels.std)):
        if not _are_same(given, expected):
            raise ConfigError(
                f"data.{key}={format_value(given)}: {model.name} with model.weights={IMAGENET} expects the colour "
                f"images of its training; give {show_pixels(pixels)}, or leave both out, which sets them"
            )


def _are_same(given: Sequence[float], expected: Sequence[float]) -> bool:
    """Compare numbers of one or of all channels, to rounding."""
    count = max(len(given), len(expected))
    if not {len(given), len(expected)} <= {1, count}:
        return False
    pairs = zip(list(given) * (count // len(given)), list(expected) * (count // len(expected)), strict=True)
    return all(math.isclose(one, other, rel_tol=SAME) for one, other in pairs)
