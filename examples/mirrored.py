"""Two replicas, here two virtual CPUs. Gradients are reduced once per update, not for each micro-batch."""

import keras
import tensorflow as tf

from accumtrain.keras import Accumulate, load_digits

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])  # with GPUs: tf.distribute.MirroredStrategy()

(x_train, y_train), (x_test, y_test) = load_digits()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        Accumulate(keras.optimizers.Adam(3e-3), steps=4, at_end="flush"),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
model.fit(x_train, y_train, batch_size=32, epochs=15, validation_data=(x_test, y_test), verbose=2)
