"""Reversible units in plain Keras: the activations of 24 units take the memory of one."""

import keras

from accumtrain.keras import ReversibleSequence, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()


def residual(channels: int) -> keras.Sequential:
    layers = [keras.layers.BatchNormalization(momentum=0.9), keras.layers.ReLU()]
    return keras.Sequential([*layers, keras.layers.Conv2D(channels, 3, padding="same")])


inputs = keras.Input((8, 8, 1))
x = keras.layers.Rescaling(1 / 16)(inputs)
x = keras.layers.Conv2D(16, 3, padding="same")(x)
x = ReversibleSequence([(residual(8), residual(8)) for _ in range(24)])(x)  # keeps its output only
x = keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))
x = keras.layers.GlobalAveragePooling2D()(x)
model = keras.Model(inputs, keras.layers.Dense(10)(x))

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=64, epochs=5, validation_data=(x_test, y_test), verbose=2)
