"""Two outputs with two losses. AdamW makes updates of 4 x 32 images, and its schedule counts updates."""

import keras
import numpy as np

from accumtrain.keras import Accumulate, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()

inputs = keras.Input((8, 8, 1))
x = keras.layers.Flatten()(keras.layers.Rescaling(1 / 16)(inputs))
x = keras.layers.Dense(64, activation="relu")(x)
outputs = {"digit": keras.layers.Dense(10, name="digit")(x), "ink": keras.layers.Dense(1, name="ink")(x)}
model = keras.Model(inputs, outputs)


def targets(images: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    return {"digit": labels, "ink": images.mean(axis=(1, 2))}


updates = 20 * len(x_train) // 128
rate = keras.optimizers.schedules.CosineDecay(3e-3, updates)
model.compile(
    Accumulate(keras.optimizers.AdamW(rate, weight_decay=0.01), steps=4, at_end="flush"),
    loss={"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "ink": "mse"},
    loss_weights={"digit": 1.0, "ink": 0.1},
    metrics={"digit": "accuracy"},
)
model.fit(x_train, targets(x_train, y_train), batch_size=32, epochs=20, verbose=2)
model.evaluate(x_test, targets(x_test, y_test), verbose=2)
