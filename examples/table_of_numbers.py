"""A task of your own in one file: a number from other numbers, on the whole command line.

Each row of a CSV file is an example. Its first row names the columns, and the last column is the number to learn.

    python examples/table_of_numbers.py task=number_from_row data=rows data.path=houses.csv model=mlp run.name=houses
    python examples/table_of_numbers.py job=evaluate run.name=houses
    python examples/table_of_numbers.py job=predict run.name=houses predict.input=new_houses.csv
"""

from dataclasses import dataclass
from pathlib import Path

import accumtrain  # before TensorFlow, whose log lines it hides

# isort: split
import numpy as np
import tensorflow as tf


@dataclass(kw_only=True)
class RowsConfig(accumtrain.DataConfig):
    """Rows of numbers, the last of which is to be learned.

    `path`: the CSV file.
    `test_every`: every so many rows, one is a test example.
    """

    path: str = "rows.csv"
    test_every: int = 5


def read_rows(path):
    with Path(path).open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
        return names, np.loadtxt(file, delimiter=",", dtype=np.float32, ndmin=2)


def open_rows(config, seed):
    names, rows = read_rows(config.path)
    is_test = np.arange(len(rows)) % config.test_every == 0
    train, test = (accumtrain.ArraySplit(part[:, :-1], part[:, -1:]) for part in (rows[~is_test], rows[is_test]))
    return accumtrain.Source(train, test, 1, class_names=names[-1:], plain=True)


class NumberFromRow(accumtrain.Regress):
    """The inputs are standardised as the number to learn is."""

    def fit(self, data):
        inputs, _ = data.train.read(tf.range(data.train.size, dtype=tf.int64))
        scale = {"input_mean": inputs.numpy().mean(0).tolist(), "input_std": (inputs.numpy().std(0) + 1e-6).tolist()}
        return {**super().fit(data), **scale}

    def take(self, inputs, facts):
        return (inputs - tf.constant(facts["input_mean"])) / tf.constant(facts["input_std"])

    def read_inputs(self, text):
        _, rows = read_rows(text)
        return [f"row {number}" for number in range(1, len(rows) + 1)], rows


class Layer(tf.Module):
    def __init__(self, init, inputs, outputs, activation=tf.identity):
        super().__init__()
        self.kernel = init.dense((inputs, outputs))
        self.bias = init.constant(0.0, outputs, "bias")
        self.activation = activation

    def __call__(self, x, mode):
        return self.activation(x @ tf.cast(self.kernel, x.dtype) + tf.cast(self.bias, x.dtype))


def build_mlp(config, spec):
    (inputs,) = spec.shape
    hidden = [Layer(spec.init, inputs, 64, tf.nn.relu), Layer(spec.init, 64, 64, tf.nn.relu)]
    layers = accumtrain.Chain(config.policy, [*hidden, Layer(spec.init, 64, spec.num_classes)])
    return accumtrain.Model([layers], spec.compute_dtype)


accumtrain.register_data("rows", open_rows, RowsConfig, targets="numbers")
accumtrain.register_model("mlp", build_mlp)
accumtrain.register_task(
    "number_from_row",
    NumberFromRow,
    loss=accumtrain.SquaredErrorConfig,
    metrics=["mae", "rmse", "r2"],
    targets="numbers",
)

if __name__ == "__main__":
    accumtrain.main()
