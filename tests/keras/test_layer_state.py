"""State that layers write in their forward pass under accumulation: what docs/keras_details.md says of it."""

from typing import Any

import keras
import numpy as np
import pytest

from accumtrain.keras import Accumulate, accumulate

STEPS, DECAY = 4, 0.9
X = np.random.default_rng(0).normal(1.0, 1.0, (16, 6)).astype("float32")
Y = np.arange(16) % 3


class CodeBook(keras.layers.Layer):
    """A moving average of what it sees, as those of a VQ-VAE are."""

    def __init__(self, decay: float):
        super().__init__()
        self.decay = decay

    def build(self, shape: Any) -> None:
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.mean.assign(self.decay * self.mean + (1.0 - self.decay) * keras.ops.mean(inputs, axis=0))
            self.calls.assign(self.calls + 1.0)
        return inputs - self.mean


def trained(layer: keras.layers.Layer, steps: int = 1, optimizer: Any = "sgd", batch: int = 16) -> keras.layers.Layer:
    """The layer after an epoch: one update."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layer, keras.layers.Dense(3)])
    if steps > 1:
        accumulate(model, steps)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(X, Y, batch_size=batch, shuffle=False, verbose=0)
    return layer


def by_optimizer(layer: keras.layers.Layer) -> keras.layers.Layer:
    return trained(layer, optimizer=Accumulate(keras.optimizers.SGD(0.01), steps=STEPS), batch=16 // STEPS)


@pytest.mark.parametrize("train", [lambda layer: trained(layer, STEPS), by_optimizer], ids=["accumulate", "Accumulate"])
def test_a_code_book_moves_with_each_micro_batch(train):
    whole = trained(CodeBook(DECAY)).mean.numpy()
    split = train(CodeBook(DECAY))
    means = X.reshape(STEPS, -1, 6).mean(axis=1)
    expected = sum((1 - DECAY) * DECAY ** (STEPS - 1 - place) * mean for place, mean in enumerate(means))
    np.testing.assert_allclose(split.mean.numpy(), expected, rtol=1e-5)
    assert float(split.calls.value) == STEPS
    assert np.linalg.norm(split.mean.numpy() - whole) > 2 * np.linalg.norm(whole), "3.4 times as far"
    remedied = train(CodeBook(DECAY ** (1 / STEPS))).mean.numpy()
    assert np.linalg.norm(remedied - whole) < 0.05 * np.linalg.norm(whole)


def test_spectral_normalization_assigns_its_kernel_and_goes_with_the_optimizer():
    """It divides the trained kernel by its norm, so the micro-batches of one update would have different weights."""
    with pytest.raises(ValueError, match=r"assigns its weight .*kernel during its call, .*keras\.Accumulate"):
        trained(keras.layers.SpectralNormalization(keras.layers.Dense(6)), STEPS)
    layer = keras.layers.SpectralNormalization(keras.layers.Dense(6), power_iterations=20)
    before = by_optimizer(layer).layer.kernel.numpy()
    assert np.linalg.norm(before, 2) == pytest.approx(1.0, abs=0.05), "normalised in each micro-batch, then updated"
