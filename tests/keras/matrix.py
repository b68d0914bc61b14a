"""A program, with TF_CONFIG one of several workers, that compares updates by micro-batches with one big batch in Keras.

Prints as JSON "door model optimizer steps" -> distance of the weights over the distance they have gone, and in half
precision "error model optimizer" -> that of the big batch from the same in float32.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from accumtrain.keras import Accumulate, MultiWorkerMirroredStrategy, accumulate
from tests.keras.cases import CASES, EXAMPLES, OPTIMIZERS, Case
from tests.keras.programs import mirrored

Weights = list[np.ndarray]
FLOAT64 = 1e-12  # of the distance the weights have gone


def data_of(case: Case, updates: int, dtype: str) -> tuple[np.ndarray, Any]:
    draw = np.random.default_rng(0)
    count = updates * EXAMPLES
    inputs = case.inputs(draw, count)
    return inputs.astype(dtype) if inputs.dtype.kind == "f" else inputs, case.targets(draw, count)


def built(case: Case, policy: str) -> keras.Model:
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(7)
    return case.build()


def train(
    model: keras.Model, optimizer: Any, case: Case, data: tuple[np.ndarray, Any], batch: int, jit: bool
) -> Weights:
    model.compile(optimizer, case.losses, loss_weights=case.loss_weights, jit_compile=jit)
    model.fit(*data, batch_size=batch, shuffle=False, verbose=0)
    return model.get_weights()


def train_at_once(model: keras.Model, optimizer: Any, case: Case, data: tuple[np.ndarray, Any], jit: bool) -> Weights:
    """One big batch for each update, of dense gradients: Keras squares rows of a sparse one apart, also of one word."""
    model.compile(optimizer, case.losses, loss_weights=case.loss_weights)
    optimizer = model.optimizer  # with a loss scale, if the policy is mixed_float16

    @tf.function(jit_compile=jit)
    def update(inputs: Any, targets: Any) -> None:
        with tf.GradientTape() as tape:
            loss = optimizer.scale_loss(model.compute_loss(inputs, targets, model(inputs, training=True)))
        weights = model.trainable_variables
        optimizer.apply([tf.convert_to_tensor(each) for each in tape.gradient(loss, weights)], weights)

    for batch in tf.data.Dataset.from_tensor_slices(data).batch(EXAMPLES):
        update(*batch)
    optimizer.finalize_variable_values(model.trainable_variables)
    return model.get_weights()


def difference(first: Weights, second: Weights, start: Weights) -> float:
    """The distance between two sets of weights, over that which the first has gone."""
    return norm(first, second) / norm(first, start)


def norm(first: Weights, second: Weights) -> float:
    squares = [np.square(a.astype(np.float64) - b).sum() for a, b in zip(first, second, strict=True)]
    return float(np.sqrt(sum(squares)))


def beyond(found: dict[str, float], bound: float = FLOAT64) -> dict[str, float]:
    return {case: apart for case, apart in found.items() if not apart <= bound}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--optimizers", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    parser.add_argument("--steps", nargs="+", type=int, default=[2, 4, 8])
    parser.add_argument("--doors", nargs="+", default=["Accumulate", "accumulate"])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--policy", default="float64")
    parser.add_argument("--jit", action="store_true")
    wanted = parser.parse_args()
    strategy = tf.distribute.get_strategy()
    if "TF_CONFIG" in os.environ:
        strategy = MultiWorkerMirroredStrategy()
    elif wanted.replicas > 1:
        strategy = mirrored(wanted.replicas)
    if wanted.policy == "float64":
        keras.config.set_floatx("float64")

    found = {}
    for name in wanted.models:
        case = CASES[name]
        data = data_of(case, wanted.updates, keras.config.floatx())
        for kind in wanted.optimizers:
            model = built(case, wanted.policy)
            start = model.get_weights()
            expected = train_at_once(model, OPTIMIZERS[kind](), case, data, wanted.jit)
            if wanted.policy.startswith("mixed"):
                exact = train_at_once(built(case, "float32"), OPTIMIZERS[kind](), case, data, wanted.jit)
                found[f"error {name} {kind}"] = difference(exact, expected, start)
            for steps in wanted.steps:
                for door in wanted.doors:
                    with strategy.scope():
                        optimizer = OPTIMIZERS[kind]()
                        model, batch = built(case, wanted.policy), EXAMPLES
                        if door == "Accumulate":
                            optimizer, batch = Accumulate(optimizer, steps), EXAMPLES // steps
                        else:
                            accumulate(model, steps)
                        if batch % strategy.num_replicas_in_sync:
                            continue  # a replica would have no example
                        weights = train(model, optimizer, case, data, batch, wanted.jit)
                    found[f"{door} {name} {kind} {steps}"] = difference(expected, weights, start)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
