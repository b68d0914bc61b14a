"""The U-Net of examples/unet.py: one gradient for all policies, seamless prediction, and the IoU by hand."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import keras
import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop.kernels import is_emulated
from tests.keras.gradients import assert_same_bits


@pytest.fixture
def unet(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    yield import_module("unet")
    keras.config.set_dtype_policy("float32")


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("shape", [(16, 24), (12, 8, 16)], ids=["2D", "3D"])
def test_all_policies_have_the_bits_of_one_gradient(unet, shape, policy):
    keras.config.set_dtype_policy(policy)
    x = tf.random.stateless_normal([2, *shape, 1], [0, 1])
    labels = tf.random.stateless_uniform([2, *shape], [0, 1], 0, len(unet.CLASSES), tf.int32)

    def found(memory: str) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        model = unet.unet(len(shape), memory, levels=2)

        @tf.function
        def step() -> list[tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(unet.dice_and_cross_entropy(labels, model(x, training=True)))
            return [loss, *tape.gradient(loss, [weight.value for weight in model.trainable_variables])]

        return [value.numpy() for value in step()]

    stored, recomputed, reversed_ = map(found, ("store", "recompute", "reverse"))
    assert_same_bits(stored, recomputed)
    assert_same_bits(stored, reversed_)


@pytest.mark.parametrize("side", [1, 3, 4, 6])  # not 2, as docs/segmentation.md says
def test_kernels_of_volumes_have_their_gradient_in_bfloat16(side):
    x = tf.random.stateless_normal([2, side, side, side, 8], [0, 1])
    kernel = tf.random.stateless_normal([3, 3, 3, 8, 8], [0, 2])

    def gradient(dtype: tf.DType) -> np.ndarray:
        volumes, weights = tf.cast(x, dtype), tf.cast(kernel, dtype)
        with tf.GradientTape() as tape:
            tape.watch(weights)
            y = tf.nn.conv3d(volumes, weights, [1] * 5, "SAME")
        return tf.cast(tape.gradient(y, weights, output_gradients=volumes), tf.float32).numpy()

    exact = gradient(tf.float32)
    bound = 0.03 if is_emulated(tf.bfloat16) else 0.01
    assert np.linalg.norm(gradient(tf.bfloat16) - exact) < bound * np.linalg.norm(exact)


class Reader:
    """A network that reads the class of a pixel from its value."""

    def predict_on_batch(self, pictures: np.ndarray) -> np.ndarray:
        return np.float32(10) * (pictures == np.arange(5))


@pytest.mark.parametrize(("shape", "patch"), [((64, 64), 64), ((65, 97), 64), ((101, 130), 33), ((20, 21, 33), 16)])
def test_windows_cover_the_picture_up_to_its_edges(unet, shape, patch):
    labels = np.random.default_rng(0).integers(0, 5, shape)
    np.testing.assert_array_equal(unet.predict(Reader(), labels[..., np.newaxis].astype("float32"), patch), labels)


def test_iou_by_hand(unet):
    truth, found = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 1, 1, 3])
    np.testing.assert_array_equal(unet.iou(truth, found), [1 / 2, 2 / 3, 0, 0, np.nan])
