"""A program that adds two tasks: an angle, learned as sine and cosine, and a number from two inputs.

`load <run>` as arguments predicts what images.npy holds, and prints it as JSON.
"""

import json
import sys
from typing import Any

import accumtrain  # before TensorFlow, whose log lines it hides

# isort: split
import numpy as np
import tensorflow as tf


def open_angles(config: Any, seed: Any) -> Any:
    random = np.random.default_rng(seed)
    images = random.uniform(size=[60, 8, 8, 1]).astype(np.float32)
    angles = random.uniform(0, 360, [60, 1]).astype(np.float32)
    train, test = (accumtrain.ArraySplit(images[part], angles[part]) for part in (slice(40), slice(40, None)))
    return accumtrain.Source(train, test, 2, class_names=["sin", "cos"])


class Angle(accumtrain.Objective):
    def prepare_targets(self, degrees: Any) -> Any:
        return tf.concat([tf.sin(degrees * (np.pi / 180)), tf.cos(degrees * (np.pi / 180))], axis=-1)


class Degrees(accumtrain.Answer):
    name = "degrees"

    @property
    def columns(self) -> list[str]:
        return ["angle"]

    def __call__(self, inputs: Any, outputs: Any) -> Any:
        outputs = tf.cast(outputs, tf.float32)
        return tf.atan2(outputs[:, :1], outputs[:, 1:]) * (180 / np.pi)


def build_distance(config: Any) -> Any:
    return lambda pairs, outputs: tf.reduce_sum((tf.cast(pairs, outputs.dtype) - outputs) ** 2, axis=-1)


class Two(accumtrain.Split):
    shape, channels = None, 1

    def __init__(self, rows: Any) -> None:
        self.size, self.rows, self.known_labels = len(rows), tf.constant(rows), rows[:, :1]

    def read(self, index: Any) -> Any:
        rows = tf.gather(self.rows, index)
        return {"left": rows[:, :2], "right": rows[:, 2:]}, rows[:, :1]


def open_two(config: Any, seed: Any) -> Any:
    rows = np.random.default_rng(seed).normal(size=[60, 4]).astype(np.float32)
    return accumtrain.Source(Two(rows[:40]), Two(rows[40:]), 1, class_names=["y"], inputs=accumtrain.Arrays(()))


class Joined(tf.Module):
    def __init__(self, init: Any) -> None:
        super().__init__()
        self.kernel = init.dense((4, 1))

    def __call__(self, x: Any, mode: Any) -> Any:
        return tf.concat([x["left"], x["right"]], axis=-1) @ self.kernel


def build_of_two(config: Any, spec: Any) -> Any:
    return accumtrain.Model([accumtrain.Chain(config.policy, [Joined(spec.init)])])


distance = accumtrain.register_loss("distance", build_distance, targets="pairs")
accumtrain.register_data("angles", open_angles, targets="pairs")
accumtrain.register_task("angle", Angle, answer=Degrees, loss=distance, targets="pairs")
accumtrain.register_model("of_two", build_of_two)
accumtrain.register_data("two", open_two, targets="numbers")

if __name__ == "__main__":
    if sys.argv[1] == "load":
        found = accumtrain.load_run(sys.argv[2]).predict(np.load("images.npy"))
        print(json.dumps({"names": found.names, "records": found.records}))
    else:
        accumtrain.main()
