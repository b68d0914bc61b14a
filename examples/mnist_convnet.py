"""A network like that of Keras's MNIST tutorial, on accumtrain's digits. One line differs from plain Keras."""

import keras

from accumtrain.keras import Accumulate, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()
x_train, x_test = x_train / 16.0, x_test / 16.0
y_train, y_test = keras.utils.to_categorical(y_train, 10), keras.utils.to_categorical(y_test, 10)

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(64, 2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(10, activation="softmax"),
    ]
)
model.compile(
    loss="categorical_crossentropy",
    optimizer=Accumulate(keras.optimizers.Adam(), steps=4, at_end="flush"),  # plain Keras: keras.optimizers.Adam()
    metrics=["accuracy"],
)
model.fit(x_train, y_train, batch_size=32, epochs=15, validation_split=0.1, verbose=2)  # updates of 4 x 32 images
print("test accuracy", model.evaluate(x_test, y_test, verbose=0)[1])
