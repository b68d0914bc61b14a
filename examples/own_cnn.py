"""Your own network in batches of 256, computed 64 images at a time. One line is added to plain Keras."""

import keras

from accumtrain.keras import accumulate, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Rescaling(1 / 16),
        keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.Conv2D(64, 3, strides=2, padding="same", activation="relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ]
)
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
accumulate(model, steps=4)  # the batch of each update is computed in 4 micro-batches

model.fit(x_train, y_train, batch_size=256, epochs=15, validation_data=(x_test, y_test), verbose=2)
