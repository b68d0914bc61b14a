"""VGG16 of keras.applications on digits of 32 x 32 pixels: updates from 64 images, in the memory of 16."""

import keras
import numpy as np

from accumtrain.keras import accumulate, load_digits


def enlarge(digits: np.ndarray) -> np.ndarray:
    """Return 8 x 8 digits as colour images of 32 x 32 pixels, the smallest for VGG16, with its own preprocessing."""
    pixels = digits.repeat(4, axis=1).repeat(4, axis=2).repeat(3, axis=3) * (255 / 16)
    return keras.applications.vgg16.preprocess_input(pixels)


(x_train, y_train), (x_test, y_test) = load_digits()
x_train, x_test = enlarge(x_train), enlarge(x_test)

keras.utils.set_random_seed(0)
features = keras.applications.VGG16(include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg")
model = keras.Sequential([features, keras.layers.Dense(10)])
model.compile(
    keras.optimizers.Adam(1e-4),
    keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
accumulate(model, steps=4)  # without batch norm or dropout: the gradient of the whole batch, to rounding

model.fit(x_train, y_train, batch_size=64, epochs=2, validation_data=(x_test, y_test), verbose=2)
