"""The noise scale that windows measure, beside that of the gradients of all examples, one by one (minutes).

    .venv/bin/python benchmarks/noise_scale.py           # on the digits, and on chapters of a book
    .venv/bin/python benchmarks/noise_scale.py --cost    # seconds of an update with and without, by turns

The weights are those after some updates, and stay. Both parts are means over 400 windows. Their expectation is known:
the windows take each example of the finite data once, as a sample of more. Examples of the decoder are packed rows, all
of 64 tokens but the last. Its noise scale is a number of tokens.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from debian_texts import fetch_texts, write_texts
from micro_step import Images, MicroStep, tf
from texts import Texts
from workbench import Table, by_rounds, compose, in_turn

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.data.pipeline import make_train_batches
from accumtrain.engine.noise import KEPT
from accumtrain.engine.step import Step
from accumtrain.tasks.objective import Objective, open_objective
from accumtrain.train.build import build_window

CHAPTERS, TOKENS = 20, 64  # of the book, and of a row


class Case(NamedTuple):
    """A model, the data that it learns for some updates, and examples like these to measure seconds on."""

    model: str
    data: str
    updates: int
    like: Images | Texts


DIGITS, ROWS = Images((32, 32, 3), 10), Texts(TOKENS, 257, "next_token")
BOOK = f"data=table data.path={{texts}} data.text_column=text data.length={TOKENS} task=next_token"
CASES = {
    "LeNet-5": Case("model=lenet5", "data=digits", 20, DIGITS),
    "ResNet-20, group norm": Case("model=resnet20 model.norm=group", "data=digits", 20, DIGITS),
    "decoder of bytes": Case("model=decoder_tiny model.width=32", BOOK, 200, ROWS),
}
WINDOWS = 400
BATCH, STEPS = 64, 4
ROUNDS = 15


def measure(updates: int, *overrides: str) -> tuple[np.ndarray, Model, Objective]:
    """Return |G|^2 and the trace of the covariance as means over windows at fixed weights, float64 [2]."""
    keys = (*overrides, "optim=sgd", f"batch_size={BATCH}", f"accum.steps={STEPS}", "log.noise=true")
    trained, still = compose(*keys, "optim.lr=0.05"), compose(*keys, "optim.lr=1e-30", "optim.weight_decay=0")
    objective, strategy = open_objective(trained), tf.distribute.get_strategy()
    batches = iter(make_train_batches(objective.data, batch=BATCH // STEPS, first=0, seed=0))
    window = build_window(trained, objective, updates, strategy)
    step = Step(window)
    for _ in range(updates):
        step.accumulate(batches, STEPS)
        step.commit()
    step = Step(build_window(still, objective, WINDOWS, strategy, model=window.model))
    means = np.zeros([WINDOWS + 1, 2])
    for number in range(1, WINDOWS + 1):
        step.accumulate(batches, STEPS)
        found = step.commit()
        share = 1 - KEPT**number
        means[number] = share * found["gradient_square"].numpy(), share * found["gradient_variance"].numpy()
    of_each = (means[1:] - KEPT * means[:-1]) / (1 - KEPT)
    return of_each.mean(axis=0), window.model, objective


def compute_exactly(model: Model, objective: Objective) -> np.ndarray:
    """Return the expectation of the same, from the gradients of all training examples, float64 [2]."""
    loss_of = objective.loss
    assert callable(loss_of), "a loss of examples"

    @tf.function(autograph=False)
    def gradient_of(batch: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(batch["targets"], model(batch["inputs"], Mode(training=True)))
        found = tape.gradient(loss, model.trainable_variables)
        return tf.cast(tf.concat([tf.reshape(each, [-1]) for each in found], 0), tf.float64)

    examples = make_train_batches(objective.data, batch=1, first=0, seed=0).take(objective.data.train.size)
    total, squares, weights, count = 0.0, 0.0, 0.0, 0
    for batch in examples:
        gradient, weight = gradient_of(batch).numpy(), float(batch["weight"][0])
        total, squares = total + weight * gradient, squares + weight * (gradient @ gradient)
        weights, count = weights + weight, count + 1
    square = np.sum((total / weights) ** 2)
    variance = (squares - weights * square) / (count - 1)
    return np.array([square - variance / weights, variance])


def show_values() -> None:
    table = Table("model", "noise scale by windows", "exact", "ratio", "|G|^2, ratio", "variance, ratio")
    with tempfile.TemporaryDirectory() as scratch:
        texts = Path(scratch) / "chapters.jsonl"
        write_texts(fetch_texts("book")[:CHAPTERS], texts)
        for name, case in CASES.items():
            overrides = f"{case.model} {case.data}".format(texts=texts).split()
            found, trained, objective = measure(case.updates, *overrides)
            exact = compute_exactly(trained, objective)
            scales = found[1] / found[0], exact[1] / exact[0]
            ratios = (f"{ratio:.3f}" for ratio in (scales[0] / scales[1], *found / exact))
            table.row(name, *(f"{scale:.1f}" for scale in scales), *ratios)


def show_cost() -> None:
    table = Table("model", "update with / without")
    for name, case in CASES.items():
        turns = {}
        for noise in ("true", "false"):
            run = MicroStep(compose(*case.model.split(), "optim=adam", f"log.noise={noise}"), case.like)
            turns[noise] = partial(run.update, BATCH // STEPS, STEPS)
        in_turn(turns, 2)  # traces
        taken = {noise: [each.seconds for each in found] for noise, found in in_turn(turns, ROUNDS).items()}
        table.row(name, f"{by_rounds(taken['true'], taken['false']):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cost", action="store_true")
    if parser.parse_args().cost:
        show_cost()
    else:
        show_values()
