"""Accumulation in Keras's `fit`: Keras's own gradient_accumulation_steps beside Accumulate and accumulate.

.venv/bin/python benchmarks/keras_accumulation.py right    # does it run, and is it the update of the big batch
.venv/bin/python benchmarks/keras_accumulation.py speed    # images/s, by rounds in which each way trains in turn
.venv/bin/python benchmarks/keras_accumulation.py memory   # peak of TensorFlow's allocator, a process for each
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "memory" in sys.argv:
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "true"  # which counts what it hands out

import keras
import numpy as np
import tensorflow as tf
from workbench import Table, by_rounds, in_turn, timed

from accumtrain.keras import Accumulate, accumulate

WAYS = ("keras", "Accumulate", "accumulate", "own loss", "declared")
STEPS = 4
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
Optimizer = Callable[..., keras.optimizers.Optimizer]


def own_loss(y_true: Any, y_pred: Any) -> Any:
    """The same mean as `LOSS`, as a function of the user's own."""
    return keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True))


def compiled(way: str, model: keras.Model, optimizer: Optimizer, steps: int = STEPS) -> keras.Model:
    """A model that makes each update from `steps` micro-batches in one of the ways, or from one batch."""
    if way == "keras":
        model.compile(optimizer(gradient_accumulation_steps=steps), LOSS)
    elif way == "Accumulate":
        model.compile(Accumulate(optimizer(), steps, at_end="flush"), LOSS)
    else:
        model.compile(optimizer(), own_loss if way in ("own loss", "declared") else LOSS)
    if way not in ("accumulate", "own loss", "declared"):
        return model
    return accumulate(model, steps, loss="mean" if way == "declared" else None)


def batch_of(way: str, size: int, steps: int = STEPS) -> int:
    return size // steps if way in ("keras", "Accumulate") else size


# --- right ------------------------------------------------------------------------------------------------------------


def mlp() -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(4)])


def words() -> keras.Model:
    layers = [keras.layers.Embedding(9, 8), keras.layers.Flatten(), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((6,), dtype="int32"), *layers])


def normed() -> keras.Model:
    layers = [keras.layers.BatchNormalization(momentum=0.7), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((6,)), *layers])


def schedule() -> keras.optimizers.schedules.LearningRateSchedule:
    return keras.optimizers.schedules.CosineDecay(0.01, 6)


@dataclass(frozen=True)
class Case:
    """A model and an optimizer; `examples` a multiple of 16 unless the last window is not full."""

    build: Callable[[], keras.Model]
    optimizer: Optimizer
    examples: int = 80
    replicas: int = 1

    def data(self) -> tuple[np.ndarray, np.ndarray]:
        draw = np.random.default_rng(0)
        integers = self.build is words
        x = draw.integers(0, 9, (self.examples, 6)) if integers else 3 * draw.normal(size=(self.examples, 6)) + 1
        return x, draw.integers(0, 4, self.examples)


def of(kind: str, **arguments: Any) -> Optimizer:
    return lambda **more: getattr(keras.optimizers, kind)(**arguments, **more)


RIGHT = {
    "Adam": Case(mlp, of("Adam", learning_rate=0.01)),
    "a cosine schedule": Case(mlp, lambda **more: keras.optimizers.Adam(schedule(), **more)),
    "weight decay, global clipping": Case(mlp, of("AdamW", learning_rate=0.01, weight_decay=0.1, global_clipnorm=0.1)),
    "a moving average of the weights": Case(mlp, of("SGD", learning_rate=0.1, use_ema=True, ema_momentum=0.5)),
    "an embedding, SGD": Case(words, of("SGD", learning_rate=0.1)),
    "the end of fit in mid-window": Case(mlp, of("SGD", learning_rate=0.1), examples=72),
    "two replicas": Case(mlp, of("Adam", learning_rate=0.01), replicas=2),
    "two replicas, global clipping": Case(mlp, of("SGD", learning_rate=0.1, global_clipnorm=0.1), replicas=2),
    "moving statistics": Case(normed, of("SGD", learning_rate=0.0)),
}


def right() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    keras.config.set_floatx("float64")
    print("distance from the weights of the big batch, over the distance they have gone, float64\n")
    table = Table("case", *WAYS)
    for name, case in RIGHT.items():
        expected, start = trained("whole", case, tf.distribute.get_strategy())
        cells = []
        for way in WAYS:
            try:
                found, _ = trained(way, case, mirrored if case.replicas > 1 else tf.distribute.get_strategy())
                cells.append(f"{norm(found, expected) / norm(start, expected):.1e}")
            except (RuntimeError, ValueError) as error:
                cells.append(f"raises {type(error).__name__}")
        table.row(name, *cells)


def trained(way: str, case: Case, strategy: tf.distribute.Strategy) -> tuple[list[np.ndarray], list[np.ndarray]]:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = compiled(way, case.build(), case.optimizer)
    start = model.get_weights()
    model.fit(*case.data(), batch_size=batch_of(way, 16), shuffle=False, verbose=0)
    return model.get_weights(), start


def norm(first: list[np.ndarray], second: list[np.ndarray]) -> float:
    return float(np.sqrt(sum(np.square(a - b).sum() for a, b in zip(first, second, strict=True))))


# --- speed and memory -------------------------------------------------------------------------------------------------


def cnn(size: int) -> keras.Model:
    layers = [keras.layers.Conv2D(width, 3, strides=2, activation="relu") for width in (32, 64, 128)]
    return keras.Sequential([keras.Input((size, size, 3)), *layers, keras.layers.Flatten(), keras.layers.Dense(10)])


def application(name: str) -> Callable[[int], keras.Model]:
    arguments = {"weights": None, "classes": 10, "classifier_activation": None}
    return lambda size: getattr(keras.applications, name)(input_shape=(size, size, 3), **arguments)


MODELS: dict[str, tuple[Callable[[int], keras.Model], int, int]] = {  # build, pixels, batch
    "cnn": (cnn, 64, 256),
    "MobileNetV3Small": (application("MobileNetV3Small"), 96, 64),
    "ResNet50": (application("ResNet50"), 96, 32),
}


def prepared(way: str, name: str) -> Callable[[], Any]:
    """Trains two updates with each call."""
    build, size, batch = MODELS[name]
    draw = np.random.default_rng(0)
    data = draw.normal(size=(2 * batch, size, size, 3)).astype(np.float32), draw.integers(0, 10, 2 * batch)
    model = compiled(way, build(size), of("Adam", learning_rate=1e-3))
    return lambda: model.fit(*data, batch_size=batch_of(way, batch), shuffle=False, verbose=0)


def speed(names: list[str], rounds: int) -> None:
    print("images/s, median of the rounds; ratios to Keras's own within a round, median\n")
    table = Table("model", "way", "images/s", "by the clock", "by processor time")
    for name in names:
        runs = {way: prepared(way, name) for way in WAYS}
        turns = {way: partial(timed, run) for way, run in runs.items()}
        in_turn(turns, 1)  # traces
        taken = in_turn(turns, rounds)
        for way in WAYS:
            images = 2 * MODELS[name][2] / statistics.median(each.seconds for each in taken[way])
            ratios = [
                by_rounds([each[which] for each in taken["keras"]], [each[which] for each in taken[way]])
                for which in (0, 1)
            ]
            table.row(name, way, f"{images:.1f}", *(f"{ratio:.3f}" for ratio in ratios))


def memory(names: list[str]) -> None:
    print("peak of the allocator in MB, weights and optimizer state included\n")
    table = Table("model", *WAYS)
    for name in names:
        command = [sys.executable, __file__, "memory", "--models", name, "--way"]
        peaks = [json.loads(subprocess.check_output([*command, way], stderr=subprocess.DEVNULL)) for way in WAYS]
        table.row(name, *(f"{peak:.1f}" for peak in peaks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("right", "speed", "memory"))
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--way", choices=WAYS, help="memory of one way only, as a number")
    asked = parser.parse_args()
    if asked.what == "right":
        right()
    elif asked.what == "speed":
        speed(asked.models, asked.rounds)
    elif asked.way:
        prepared(asked.way, asked.models[0])()
        print(tf.config.experimental.get_memory_info("CPU:0")["peak"] / 2**20)
    else:
        memory(asked.models)


if __name__ == "__main__":
    main()
