"""The noise scale that windows measure, beside that of the gradients of all examples, one by one (minutes).

    .venv/bin/python benchmarks/noise_scale.py           # on the digits
    .venv/bin/python benchmarks/noise_scale.py --cost    # seconds of an update with and without, by turns

The weights are those after some updates, and stay. Both parts are means over 400 windows. Their expectation is known:
the windows take each example of the finite data once, as a sample of more.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from micro_step import Images, MicroStep, tf
from workbench import Table, by_rounds, compose, in_turn

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.data.pipeline import make_train_batches
from accumtrain.engine.losses import cross_entropy
from accumtrain.engine.noise import KEPT
from accumtrain.engine.step import Step
from accumtrain.tasks.objective import Objective, open_objective
from accumtrain.train.build import build_window

MODELS = {"LeNet-5": "model=lenet5", "ResNet-20, group norm": "model=resnet20 model.norm=group"}
TRAINING, WINDOWS = 20, 400
BATCH, STEPS = 64, 4
ROUNDS = 15


def measure(model: str) -> tuple[np.ndarray, Model, Objective]:
    """Return |G|^2 and the trace of the covariance as means over windows at fixed weights, float64 [2]."""
    keys = (*model.split(), "data=digits", "optim=sgd", f"batch_size={BATCH}", f"accum.steps={STEPS}", "log.noise=true")
    trained, still = compose(*keys, "optim.lr=0.05"), compose(*keys, "optim.lr=1e-30", "optim.weight_decay=0")
    objective, strategy = open_objective(trained), tf.distribute.get_strategy()
    batches = iter(make_train_batches(objective.data, batch=BATCH // STEPS, first=0, seed=0))
    window = build_window(trained, objective, TRAINING, strategy)
    step = Step(window)
    for _ in range(TRAINING):
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

    @tf.function(autograph=False)
    def gradient_of(image: Any, label: Any) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = cross_entropy(label, model(image, Mode(training=True)))
        found = tape.gradient(loss, model.trainable_variables)
        return tf.cast(tf.concat([tf.reshape(each, [-1]) for each in found], 0), tf.float64)

    examples = make_train_batches(objective.data, batch=1, first=0, seed=0).take(objective.data.train.size)
    total, squares, count = 0.0, 0.0, 0
    for batch in examples:
        gradient = gradient_of(batch["inputs"], batch["targets"]).numpy()
        total, squares, count = total + gradient, squares + gradient @ gradient, count + 1
    square = np.sum((total / count) ** 2)
    variance = (squares - count * square) / (count - 1)
    return np.array([square - variance / count, variance])


def show_values() -> None:
    table = Table("model", "noise scale by windows", "exact", "ratio", "|G|^2, ratio", "variance, ratio")
    for name, model in MODELS.items():
        found, trained, objective = measure(model)
        exact = compute_exactly(trained, objective)
        scales = found[1] / found[0], exact[1] / exact[0]
        ratios = (f"{ratio:.3f}" for ratio in (scales[0] / scales[1], *found / exact))
        table.row(name, *(f"{scale:.1f}" for scale in scales), *ratios)


def show_cost() -> None:
    table = Table("model", "update with / without")
    for name, model in MODELS.items():
        turns = {}
        for noise in ("true", "false"):
            run = MicroStep(compose(*model.split(), "optim=adam", f"log.noise={noise}"), Images((32, 32, 3), 10))
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
