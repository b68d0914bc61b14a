"""Keras's updates: one call of `fit` with gradient_accumulation_steps, on one batch in memory.

`fit` runs once, over an endless data set; a callback holds it between updates. XLA is off: on CPU it is slower.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

from turns import Turns, arguments, units_of

options = arguments()
turns = Turns(units_of(options))
os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3")
if options.memory:
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"  # the allocator that counts, as accumtrain's runs have it

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from keras import layers  # noqa: E402
from keras_transformers import build_decoder, build_encoder, build_vit  # noqa: E402
from sizes import DECODERS, ENCODERS, VITS  # noqa: E402

UNITS = {"resnet20": 3, "resnet32": 5}  # of each of three stages
FILTERS = (16, 16, 32, 64)
CLASSES = {32: 10, 224: 1000}  # by the image size
OPTIMIZERS = {"adam": keras.optimizers.Adam, "adafactor": keras.optimizers.Adafactor}


def main() -> None:
    if options.precision == "bfloat16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    per_token = options.texts is not None and options.texts.task != "classify"
    model, (inputs, labels) = build(), one_batch()
    accumulated = options.steps if options.steps > 1 else None
    model.compile(
        OPTIMIZERS[options.optimizer](1e-3, gradient_accumulation_steps=accumulated),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1 if per_token else None),
        metrics=[] if per_token else ["accuracy"],
        jit_compile=False,
    )
    dataset = tf.data.Dataset.from_tensors((inputs, labels)).repeat()
    model.fit(dataset, steps_per_epoch=10**9, shuffle=False, verbose=0, callbacks=[Hold(model)])


def build() -> keras.Model:
    if options.model in DECODERS:
        return build_decoder(DECODERS[options.model], options.texts)
    if options.model in ENCODERS:
        return build_encoder(ENCODERS[options.model], options.texts)
    if options.model in VITS:
        return build_vit(VITS[options.model], options.image_size, CLASSES[options.image_size])
    if options.model in UNITS:
        return cifar_resnet(UNITS[options.model], CLASSES[options.image_size])
    return imagenet_resnet(CLASSES[options.image_size])


def one_batch() -> tuple[Any, tf.Tensor]:
    """Return inputs and labels: normal noise with classes in turn, or texts."""
    if options.texts:
        found = options.texts.examples(options.micro_batch)
        inputs = {name: tf.constant(found[name]) for name in ("tokens", "positions") if name in found}
        return inputs if len(inputs) > 1 else inputs["tokens"], tf.constant(found["targets"])
    size = options.image_size
    images = np.random.default_rng(0).standard_normal((options.micro_batch, size, size, 3), np.float32)
    return tf.constant(images), tf.range(options.micro_batch) % CLASSES[size]


class Hold(keras.callbacks.Callback):
    """Answers after each update and waits for the next turn."""

    def __init__(self, model: keras.Model):
        super().__init__()
        self._facts: dict[str, float] = {
            "parameters": sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
        }

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 0:
            turns.next()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if (batch + 1) % options.steps == 0:
            turns.stop()
            if options.memory:
                self._facts["tensor_peak_bytes"] = tf.config.experimental.get_memory_info("CPU:0")["peak"]
                tf.config.experimental.reset_memory_stats("CPU:0")  # of the first update it holds what was built
            turns.done(**self._facts)
            self._facts = {}
            if not turns.next():
                raise SystemExit


def imagenet_resnet(classes: int) -> keras.Model:
    """The one Keras brings: post-activation, with biases, of as many convolutions."""
    build = {"resnet50": keras.applications.ResNet50, "resnet101": keras.applications.ResNet101}[options.model]
    return build(weights=None, classes=classes, classifier_activation=None)


def cifar_resnet(units: int, classes: int) -> keras.Model:
    """The pre-activation ResNet of He et al. 2016 as accumtrain's, layer for layer."""
    image = keras.Input((options.image_size, options.image_size, 3))
    x = activated(convolved(image, FILTERS[0]))
    for stage, (inputs, outputs) in enumerate(itertools.pairwise(FILTERS)):
        for unit in range(units):
            stride = 2 if stage > 0 and unit == 0 else 1
            y = convolved(activated(x) if stage or unit else x, outputs, stride)
            y = convolved(activated(y), outputs)
            if stride == 2:
                side = (outputs - inputs) // 2
                x = keras.ops.pad(layers.AveragePooling2D(2)(x), [[0, 0], [0, 0], [0, 0], [side, side]])
            x = layers.Add()([y, x])
    x = layers.GlobalAveragePooling2D()(activated(x))
    return keras.Model(image, layers.Dense(classes, dtype="float32")(x))


def activated(x: keras.KerasTensor) -> keras.KerasTensor:
    return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))


def convolved(x: keras.KerasTensor, filters: int, stride: int = 1) -> keras.KerasTensor:
    return layers.Conv2D(filters, 3, stride, padding="same", use_bias=False)(x)


if __name__ == "__main__":
    main()
