"""examples/own_transformer.py: a reversible transformer from outside, on texts with padding; and its parts."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from accumtrain.backprop import tape
from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.backprop.segments import Chain, Stage
from accumtrain.backprop.streams import JoinStreams, TwoStreams, couple
from tests.programs import run_python

PROGRAM = Path(__file__).parents[3] / "examples" / "own_transformer.py"
DATA = ("data=table", "data.path=texts.jsonl", "data.text_column=text", "data.length=24")
KEYS = ("model=mine", "model.depth=2", "model.width=16", *DATA)
TRAINING = (*KEYS, "optim=adam", "optim.lr=0.01", "batch_size=16", "accum.steps=2", "train.epochs=6")


class Tanh(tf.Module):
    """A function of the values and of what lies beside them."""

    def __init__(self, seed):
        super().__init__()
        self.kernel = tf.Variable(tf.random.stateless_normal([6, 6], [seed, 1]))

    def __call__(self, x, mode):
        return tf.tanh(tf.matmul(x, tf.cast(self.kernel, x.dtype))) * mode.side["shown"]


class Total(tf.Module):
    def __call__(self, x, mode):
        return tf.reduce_sum(x, axis=1)


def gradients(memory, inputs):
    units = [couple(Tanh(2 * place), Tanh(2 * place + 1)) for place in range(5)]
    segments = [Chain("store", [TwoStreams()]), Stage(memory, units), Chain("store", [JoinStreams(), Total()])]
    model = Model(segments, split_inputs=lambda given: (given["x"], {"shown": given["shown"]}))
    found = {}

    def consume(pairs):
        found.update((variable.ref(), gradient) for variable, gradient in pairs)
        return []

    @tf.function(autograph=False)
    def run():
        mode = Mode(training=True, recording=True)
        value, _ = tape.gradient(model, inputs, lambda outputs: tf.reduce_sum(outputs**2), mode, consume)
        return value, [found[variable.ref()] for variable in model.trainable_variables], mode.inexact

    return run(), model


@pytest.mark.parametrize("memory", ["recompute", "reverse"])
def test_units_of_any_functions_are_reversed_to_the_bit(memory):
    inputs = {"x": tf.random.stateless_normal([4, 3, 6], [1, 2]), "shown": tf.constant([[[1.0], [0.0], [1.0]]] * 4)}
    (value, stored, _), model = gradients("store", inputs)
    (other, found, inexact), _ = gradients(memory, inputs)
    assert value == other
    assert all(np.any(gradient) for gradient in stored)
    assert not any(inexact)
    for gradient, wanted in zip(found, stored, strict=True):
        np.testing.assert_array_equal(gradient, wanted)
    x1 = x2 = inputs["x"]
    for unit in model.segments[1].units:
        x1 = x1 + tf.tanh(x2 @ unit.f.function.function.kernel) * inputs["shown"]
        x2 = x2 + tf.tanh(x1 @ unit.g.function.function.kernel) * inputs["shown"]
    plain = tf.reduce_sum(tf.reduce_sum(tf.concat([x1, x2], -1), 1) ** 2)
    np.testing.assert_allclose(value, plain, rtol=1e-5)


def call(folder, *arguments):
    done = run_python(PROGRAM, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_the_example_learns_alike_stored_and_reversed_and_is_verified(tmp_path):
    random = np.random.default_rng(0)
    rows = [
        {"text": "".join(random.choice([*"xyz "], random.integers(3, 20))) + "ab"[label] * 3, "label": "ab"[label]}
        for label in random.integers(0, 2, 300)
    ]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = {}
    for memory in ("store", "reverse"):
        call(tmp_path, *TRAINING, f"model.memory={memory}", f"run.name={memory}")
        lines = (tmp_path / "runs" / memory / "metrics.jsonl").read_text().splitlines()
        told = ("loss", "accuracy", "grad_norm")
        found[memory] = [{key: row.get(key) for key in told} for row in map(json.loads, lines)]
    assert found["store"] == found["reverse"]
    assert json.loads((tmp_path / "runs" / "reverse" / "summary.json").read_text())["test"]["accuracy"] > 0.9
    call(tmp_path, *KEYS, "batch_size=8", "accum.steps=2", "job=verify")
