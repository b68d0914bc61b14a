"""A multilayer perceptron in batches of 256, computed 32 digits at a time. One line is added to plain Keras."""

import keras

from accumtrain.keras import accumulate, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
accumulate(model, steps=8)  # the batch of each update is computed in 8 micro-batches

model.fit(x_train, y_train, batch_size=256, epochs=20, validation_data=(x_test, y_test), verbose=2)
