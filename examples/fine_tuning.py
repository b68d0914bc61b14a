"""Fine-tuning within a memory limit by accumtrain.fit: a network that knows five digits learns all ten."""

import keras
import numpy as np

import accumtrain
from accumtrain.keras import load_digits

(images, labels), test = load_digits()


def convolution(x, channels, strides):
    x = keras.layers.Conv2D(channels, 3, strides, padding="same", use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization(momentum=0.9)(x))


# Stands for keras.applications.MobileNetV2(include_top=False, pooling="avg"), whose weights must be downloaded.
inputs = x = keras.Input((8, 8, 1))
x = keras.layers.UpSampling2D(6)(x)
for channels, strides in ((16, 1), (32, 2), (32, 1), (64, 2)):
    x = convolution(x, channels, strides)
base = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(x))

loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
five = np.flatnonzero(labels < 5)
pretrained = keras.Sequential([base, keras.layers.Dense(5)])
pretrained.compile("adam", loss, metrics=["accuracy"])
pretrained.fit(images[five], labels[five], batch_size=32, epochs=2, verbose=2)

model = keras.Model(base.input, keras.layers.Dense(10)(base.output), name="ten-digits")
model.compile(keras.optimizers.Adam(3e-3), loss, metrics=["accuracy"])
summary = accumtrain.fit(
    model,
    (images, labels),
    validation_data=test,
    epochs=6,
    batch_size=128,  # images per update
    memory_limit_mb=60,  # of tensors; the largest micro-batch that fits is found
)
micro_batches = f"{summary['accum_steps']} micro-batches of {summary['micro_batch_size']}"
print(f"{micro_batches}, val accuracy {summary['val']['accuracy']:.3f}")
