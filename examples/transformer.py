"""A small transformer reads digits pixel by pixel. Adafactor trains it in batches of 256, in 4 micro-batches."""

import keras
import numpy as np

from accumtrain.keras import Adafactor, accumulate, load_digits

(x_train, y_train), (x_test, y_test) = load_digits()
WORDS, LENGTH, WIDTH = 17, 64, 32  # a pixel is a word


class Embed(keras.layers.Layer):
    """Turn words into vectors, and add the vectors of their places."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.words, self.places = keras.layers.Embedding(WORDS, WIDTH), keras.layers.Embedding(LENGTH, WIDTH)

    def call(self, words):
        return self.words(words) + self.places(keras.ops.arange(LENGTH))


inputs = keras.Input((LENGTH,), dtype="int32")
x = Embed()(inputs)
for _ in range(2):
    normed = keras.layers.LayerNormalization()(x)
    x = x + keras.layers.MultiHeadAttention(4, WIDTH // 4)(normed, normed)
    normed = keras.layers.LayerNormalization()(x)
    x = x + keras.layers.Dense(WIDTH)(keras.layers.Dense(2 * WIDTH, activation="gelu")(normed))
x = keras.layers.GlobalAveragePooling1D()(keras.layers.LayerNormalization()(x))
model = accumulate(keras.Model(inputs, keras.layers.Dense(10)(x)), steps=4)

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(Adafactor(0.05), loss, metrics=["accuracy"])
texts, test_texts = (images.reshape(-1, LENGTH).astype(np.int32) for images in (x_train, x_test))
model.fit(texts, y_train, batch_size=256, epochs=15, validation_data=(test_texts, y_test), verbose=2)
