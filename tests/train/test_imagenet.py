"""model.weights=imagenet: what Keras's own model gives for an image is given here, on the pixels that are set with it.

Nothing is downloaded: files of random weights stand in Keras's cache, by the names of the published ones.
"""

import os
import shutil
import socket
from inspect import getmodule
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.config.imagenet import MEAN, PUBLISHED, STD, find_published
from accumtrain.data.inputs.pixels import make_pixels
from accumtrain.errors import CheckpointError, ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.keras.applications import read_keras_file, read_published
from accumtrain.models.layers import ModelSpec
from accumtrain.train.weights import begin_with_weights, digest
from tests.train.conftest import json_of

CACHE = Path(os.environ["KERAS_HOME"], "models")
MOBILENET, SMALL = "mobilenet_2_5_224_tf.h5", "model.args={alpha:0.25}"  # Keras knows no checksum of it
APPLICATIONS = {  # one of each kind of pixels, with the name of its file
    "MobileNetV2": "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224.h5",
    "DenseNet121": "densenet121_weights_tf_dim_ordering_tf_kernels.h5",
    "ResNet50": "resnet50_weights_tf_dim_ordering_tf_kernels.h5",
    "EfficientNetV2B0": "efficientnetv2-b0.h5",
    "EfficientNetB0": "efficientnetb0.h5",
}


def pixels_of(name):
    return (f"data.mean={PUBLISHED[name].mean}", f"data.std={PUBLISHED[name].std}")


def cache(name, file, seed=0, **arguments):
    """Put a file of random weights, also of normalisations, where Keras looks for the published one."""
    model = getattr(keras.applications, name)(weights=None, classifier_activation=None, **arguments)
    draw = np.random.default_rng(seed)
    for variable in model.variables:
        if variable.path.startswith("normalization"):
            variable.assign({"mean": MEAN, "variance": STD}.get(variable.name, variable))
        elif variable.name == "moving_variance":
            variable.assign(draw.uniform(0.5, 1.5, variable.shape))
        elif len(variable.shape) == 1:
            variable.assign(variable + draw.normal(0, 0.1, variable.shape))
    CACHE.mkdir(parents=True, exist_ok=True)
    model.save(CACHE / file)


@pytest.fixture
def config(compose, tmp_path):
    def of(name, *more):
        head = ("model=keras", f"model.name={name}", "model.weights=imagenet", f"run.dir={tmp_path}", "run.name=one")
        return compose(*head, *pixels_of(name), "data=synthetic", *more)

    return of


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The file of the smallest MobileNet, elsewhere."""
    cache("MobileNet", MOBILENET, alpha=0.25)
    return (CACHE / MOBILENET).rename(tmp_path_factory.mktemp("kept") / MOBILENET)


@pytest.fixture
def mobilenet(kept):
    """The same file in Keras's cache."""
    yield Path(shutil.copy(kept, CACHE))
    (CACHE / MOBILENET).unlink(missing_ok=True)


@pytest.fixture
def no_network(monkeypatch):
    def fail(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


def begun(config, shape=(64, 64, 3), classes=10):
    model = build_model(config.model, ModelSpec(shape, classes, config.precision))
    return begin_with_weights(config, model), model


def logits_of(config, model, image):
    """Those of an image of numbers from 0 to 255, which is prepared as the configuration says."""
    prepare = make_pixels(config.data, image.shape[1:], 255)
    pixels = prepare.batch(tf.constant(image), tf.zeros([1], tf.uint64), training=False)
    return np.asarray(model(model.cast(pixels), Mode(training=False)))


def keras_logits(name, image):
    application = getattr(keras.applications, name)
    model = application(weights="imagenet", classifier_activation=None)
    return np.asarray(model(getmodule(application).preprocess_input(image.astype(np.float32))))


def assert_as_in_keras(config, name):
    image = np.random.default_rng(1).integers(0, 256, (1, 224, 224, 3)).astype(np.uint8)
    started, model = begun(config, (224, 224, 3), 1000)
    assert (started.left, started.unused) == ({}, [])
    expected = keras_logits(name, image)
    here = logits_of(config, model, image)
    assert np.ptp(expected) > 1e-3, "the logits tell one image from another"
    np.testing.assert_allclose(here, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
    other = logits_of(config, model, image[..., ::-1])
    assert np.abs(other - expected).max() > 100 * np.abs(here - expected).max(), "the order of colours matters"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "file"), APPLICATIONS.items())
def test_logits_are_those_of_keras_for_each_kind_of_pixels(config, name, file, monkeypatch):
    monkeypatch.setattr("keras.src.utils.file_utils.validate_file", lambda *_, **__: True)  # of the published file
    cache(name, file)
    try:
        assert_as_in_keras(config(name, "data.image_size=224"), name)
    finally:
        (CACHE / file).unlink()


def test_a_kernel_that_expects_blue_first_is_turned_to_the_bit(config, monkeypatch):
    """With a small model in the place of ResNet50."""
    inputs = keras.Input((32, 32, 3))
    head = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, name="first")(inputs))
    small = keras.Model(inputs, keras.layers.Dense(10, name="head")(head))
    monkeypatch.setattr(keras.applications, "ResNet50", lambda **_: small)
    before = np.array(small.get_layer("first").kernel)
    _, model = begun(config("ResNet50"), (32, 32, 3))
    np.testing.assert_array_equal(model.named["first/kernel"].numpy(), before[:, :, [2, 1, 0]])


@pytest.mark.parametrize("name", PUBLISHED)
def test_pixels_are_those_of_preprocess_input(name):
    pixels = PUBLISHED[name]
    images = np.random.default_rng(0).integers(0, 256, (2, 4, 4, 3)).astype(np.float64)
    here = (images / 255 - pixels.mean) / pixels.std
    if pixels.in_file:  # preprocess_input changes nothing: rescaling and normalisation are in the model
        expected = 255 * (images / 255 - MEAN) / STD
    else:
        expected = getmodule(getattr(keras.applications, name)).preprocess_input(images.copy())
    np.testing.assert_allclose(here[..., ::-1] if pixels.blue_first else here, expected, rtol=1e-6, atol=1e-6)


def test_all_models_of_keras_have_pixels():
    assert PUBLISHED.keys() == {name for name in vars(keras.applications) if name[0].isupper()}


def test_another_number_of_classes_gets_a_new_head(config, mobilenet):
    started, model = begun(config("MobileNet", SMALL))
    in_file = read_keras_file(mobilenet, model.whole())
    assert len(started.loaded) == 135
    assert all(np.array_equal(model.named[path].numpy(), in_file[path]) for path in started.loaded)
    assert started.left == {
        "conv_preds/kernel": "[1,1,256,1000] there, [1,1,256,10] here",
        "conv_preds/bias": "[1000] there, [10] here",
    }


@pytest.mark.slow
def test_a_run_sets_its_pixels_goes_on_without_the_file_and_is_evaluated(command, mobilenet, tmp_path):
    """A run named imagenet is no matter. A second stage is told of the pixels of the first."""
    base = ("model=keras", "model.name=MobileNet", SMALL, "data=synthetic", "data.channels=3", "batch_size=8")
    first = (*base, "model.weights=imagenet", "run.name=imagenet", "model.freeze=[*,-conv_preds/*]")
    answer = command(*first, "train.steps=1")
    assert answer.code == 0, answer.err
    assert "imagenet: 135 of 137 variables loaded" in answer.out
    assert "MobileNet expects pixels with data.mean=[0.5] data.std=[0.5]" in " ".join(answer.out.split())
    assert json_of(tmp_path / "runs/imagenet", "weights")["model.weights"] == "imagenet"
    mobilenet.unlink()
    for more in (("train.steps=2",), ("job=evaluate",)):
        answer = command("run.name=imagenet", *more)
        assert answer.code == 0, answer.err
    answer = command(*base, "model.weights=runs/imagenet", "run.name=two", "train.steps=1")
    assert answer.code == 0, answer.err
    told = "runs/imagenet was trained on pixels with data.mean=[0.5] data.std=[0.5], and this run has data.mean=[0.5]"
    assert told in " ".join(answer.out.split())


def test_the_command_sets_the_pixels_it_does_not_give(command, seen):
    base = ("model=keras", "model.name=VGG16", "model.weights=imagenet", "data=cifar10")
    for more in ((), ("data.std=[0.0039216]",), ("data.mean=[0.48502,0.45796,0.4076]",)):
        assert command(*base, *more).code == 0
    assert command("model=keras", "model.name=VGG16", "data=cifar10").code == 0
    given = [(config.data.mean, config.data.std) for config in seen]
    blue_first = PUBLISHED["VGG16"]
    assert given == [
        (blue_first.mean, blue_first.std),
        (blue_first.mean, [0.0039216]),
        ([0.48502, 0.45796, 0.4076], blue_first.std),
        ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    ]


def test_weights_that_are_not_there(config, no_network):
    with pytest.raises(ConfigError) as refused:
        begun(config("MobileNet", SMALL))
    for said in (f"put {MOBILENET} of its ~/.keras/models into {CACHE}", "Name or service not known", "data.std=[0.5]"):
        assert said in str(refused.value)
    assert "http" not in str(refused.value)


@pytest.mark.slow
def test_the_name_in_the_cache_is_told_where_the_address_has_another(config, no_network):
    with pytest.raises(ConfigError, match=r"put nasnet_mobile\.h5 of its"):
        begun(config("NASNetMobile"))


@pytest.mark.parametrize("name", ["VGG16", "EfficientNetB0"])
def test_where_a_published_file_alone_would_not_do_none_is_offered(name, config, monkeypatch):
    def fail(**_):
        raise Exception("URL fetch failure on https://host/models/published.h5: None -- [Errno -2] no network")

    monkeypatch.setattr(keras.applications, name, fail)
    with pytest.raises(ConfigError, match=r"downloaded \(\[Errno -2\] no network\).* put published\.h5 of") as refused:
        read_published(config(name).model)
    assert "model.weights=<file>" not in str(refused.value)


@pytest.mark.parametrize(("mean", "refused"), [(MEAN, False), ([0.5, 0.5, 0.5], True)])
def test_the_normalisation_in_a_file_must_be_that_of_imagenet(mean, refused, config, monkeypatch):
    """With a small model in the place of EfficientNetB0."""
    inputs = keras.Input((32, 32, 3))
    normalised = keras.layers.Normalization(name="normalization")(inputs)
    small = keras.Model(inputs, keras.layers.Conv2D(4, 3, name="stem_conv")(normalised))
    for variable in small.get_layer("normalization").variables:
        variable.assign({"mean": mean, "variance": STD}.get(variable.name, 0))
    monkeypatch.setattr(keras.applications, "EfficientNetB0", lambda **_: small)
    if refused:
        with pytest.raises(CheckpointError, match="which are not those of ImageNet"):
            read_published(config("EfficientNetB0").model)
    else:
        arrays = read_published(config("EfficientNetB0").model)
        assert [arrays[f"normalization/{name}"].tolist() for name in ("mean", "variance")] == [[0] * 3, [1] * 3]


def test_arguments_without_published_weights(config):
    with pytest.raises(ConfigError, match=r"no such weights for MobileNet with model\.args=\{alpha:0\.3\}"):
        begun(config("MobileNet", "model.args={alpha:0.3}"))


def test_a_damaged_file(config, mobilenet):
    mobilenet.write_bytes(mobilenet.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="remove the file, so that it is downloaded again"):
        begun(config("MobileNet", SMALL))


def test_a_file_of_another_model(config, monkeypatch):
    def fail(**_):
        raise ValueError("Layer count mismatch when loading weights from file.")

    monkeypatch.setattr(keras.applications, "VGG16", fail)
    with pytest.raises(CheckpointError, match=r"VGG16 in \S*models: Layer count mismatch .*; remove the file"):
        read_published(config("VGG16").model)


def test_grey_images_are_refused(config, mobilenet):
    with pytest.raises(ConfigError, match="are for images of 3 channels, and these have 1; give colour images"):
        begun(config("MobileNet", SMALL), (64, 64, 1))


def test_the_word_and_no_path_is_what_a_run_began_with(config):
    assert digest(config("VGG16")) == {"model.weights": "imagenet"}


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("efficientnet", "EfficientNetV2B0"),
        ("efficientnet_b0", "EfficientNetB0"),
        ("efficientnetb0", "EfficientNetB0"),
        ("mobilenet", "MobileNet"),
        ("mobilenet-v2", "MobileNetV2"),
        ("VGG16", "VGG16"),
        ("convnext", "ConvNeXtTiny"),
        ("yolo", None),
        ("-", None),
    ],
)
def test_names_of_models(word, name):
    assert find_published(word) == name
