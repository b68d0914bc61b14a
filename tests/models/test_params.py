"""Parameter counts, to the digit where the authors' code (renmengye/revnet-public) fixes them."""

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.errors import ConfigError
from accumtrain.models.build import build_model
from accumtrain.models.layers import ModelSpec

CIFAR, IMAGENET = (32, 32, 3), (224, 224, 3)


@pytest.fixture
def build(compose):
    def of(name, shape, classes, *overrides, precision="float32", seed=0):
        model = compose(f"model={name}", *overrides).model
        return build_model(model, ModelSpec(shape, classes, precision, seed))

    return of


@pytest.mark.parametrize(
    ("name", "shape", "classes", "params"),
    [
        ("lenet5", (32, 32, 1), 10, 61_706),
        ("lenet5", (28, 28, 1), 10, 61_706),
        ("resnet20", CIFAR, 10, 269_722),
        ("resnet32", CIFAR, 10, 464_154),
        ("resnet110", CIFAR, 10, 1_727_962),
        ("resnet164", CIFAR, 10, 1_703_258),
        ("resnet50", IMAGENET, 1000, 25_549_352),
        pytest.param("resnet101", IMAGENET, 1000, 44_541_480, marks=pytest.mark.slow),
        ("revnet38", CIFAR, 10, 464_890),
        pytest.param("revnet110", CIFAR, 10, 1_729_194, marks=pytest.mark.slow),
        pytest.param("revnet164", CIFAR, 10, 1_748_778, marks=pytest.mark.slow),
        ("revnet56", IMAGENET, 1000, 27_553_128),
        ("revnet104", IMAGENET, 1000, 45_428_072),
    ],
)
def test_parameter_count(build, name, shape, classes, params):
    assert build(name, shape, classes).params == params


@pytest.mark.parametrize("name", ["lenet5", "resnet20", "revnet38"])
def test_initial_weights_are_a_function_of_the_seed(build, name):
    first, again, other = (build(name, (8, 8, 1), 10, seed=seed).trainable_variables for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_first_unit_of_a_revnet_is_preactivated_in_g_only(build):
    first = build("revnet38", CIFAR, 10).segments[1].units[0]
    assert first.f.function.activations[0] is None
    assert first.g.function.activations[0] is not None


def test_weight_decay_applies_to_kernels_only(build):
    model = build("revnet38", CIFAR, 10)
    for variable, decayed in zip(model.trainable_variables, model.decayed, strict=True):
        assert decayed == (len(variable.shape) >= 2)


@pytest.mark.parametrize("name", ["resnet20", "revnet38"])
def test_a_bottleneck_may_be_narrower_than_the_one_before(build, name):
    keys = ("model.units=[1,1]", "model.filters=[16,8,4]", "model.bottleneck=true")
    assert build(name, (8, 8, 1), 10, *keys)(tf.zeros([2, 8, 8, 1])).shape == [2, 10]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_keras_model_moves_its_state_only_through_the_mode(build, precision):
    model = build("keras", CIFAR, 10, "model.name=MobileNetV3Small", precision=precision)
    before = [variable.numpy() for variable in model.segments[0].model.non_trainable_variables]
    images = tf.random.stateless_uniform((4, 32, 32, 3), (1, 2))
    modes = [Mode(training=True, recording=True, seed=tf.constant([1, seed])) for seed in (0, 0, 1)]
    logits = [model(images, mode).numpy() for mode in modes]
    assert logits[0].dtype == np.float32
    assert np.array_equal(logits[0], logits[1]), "the same seed draws the same dropout"
    assert not np.array_equal(logits[0], logits[2]), "another seed draws another"
    assert len(modes[0].statistics) == len(model.norms) > 0
    after = model.segments[0].model.non_trainable_variables
    assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_keras_batch_statistics_are_those_of_the_batch(build):
    model = build("keras", CIFAR, 10, "model.name=MobileNet")
    images = tf.random.stateless_normal((8, 32, 32, 3), (1, 2))
    mode = Mode(training=True, recording=True, seed=tf.constant([1, 0]))
    model(images, mode)
    keras_model = model.segments[0].model
    first = next(layer for layer in keras_model.layers if hasattr(layer, "moving_mean"))
    features = keras_model.layers[1](images).numpy().astype(np.float64)  # the convolution before it
    mean, variance = mode.statistics[model.norms[0]]
    assert model.norms[0].moving_mean is first.moving_mean.value
    np.testing.assert_allclose(mean, features.mean((0, 1, 2)), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, features.var((0, 1, 2)), rtol=1e-4)


def test_unknown_keras_model_names_close_ones(build):
    with pytest.raises(ConfigError, match="ResNet50"):
        build("keras", CIFAR, 10, "model.name=ResNet5O")
