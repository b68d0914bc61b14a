"""Check gradients that JAX computes, by bounds. XLA fuses the operations of each program in its own way, so the bits of
two programs differ, and with them those of a stream that is computed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from accumtrain.engine.runtime import Runtime
from accumtrain.engine.step import Step
from accumtrain.engine.window import Window
from accumtrain.measure.verify.result import CheckResult, relative_difference
from accumtrain.measure.verify.window import WindowOfExamples, mean_gradient

# Bound on the relative difference of gradients.
BOUND = {"float64": 1e-9, "float32": 1e-2, "bfloat16": 2e-1}


def check_on_jax(
    window_for: Callable[[str], Window],
    new_runtime: Callable[[], Runtime],
    policies: Sequence[str],
    examples: WindowOfExamples,
    precision: str,
) -> list[CheckResult]:
    """Compare the gradient of stored activations with TensorFlow's and with one batch's, and other policies with it.

    Args:
        window_for: policy -> a window at update 0.
        new_runtime: JAX on its device, without the state of another window.
        policies: the one that stores activations is the first.
    """
    stores, *others = policies
    window = window_for(stores)
    by_tensorflow = mean_gradient(window, Step(window), examples.micro_batches(), examples.steps)

    window = window_for(stores)
    step = new_runtime().build_step(window)
    stored = mean_gradient(window, step, examples.micro_batches(), examples.steps)
    step.drop()
    whole = mean_gradient(window, step, examples.micro_batches(steps=1), 1)

    def check(name: str, found: list[np.ndarray], expected: list[np.ndarray], *, note: str = "") -> CheckResult:
        bound = None if note else BOUND[precision]
        return CheckResult(name, relative_difference(found, expected), bound, note)

    note = "no bound can hold with batch norm: each micro-batch is normalised by its own statistics"
    results = [
        check("gradient against TensorFlow's", stored, by_tensorflow),
        check(
            f"gradient of {examples.steps} micro-batches against one batch",
            stored,
            whole,
            note=note if window.model.norms else "",
        ),
    ]
    for policy in others:
        del window, step  # frees their memory for the next ones
        window = window_for(policy)
        step = new_runtime().build_step(window)
        found = mean_gradient(window, step, examples.micro_batches(), examples.steps)
        results.append(check(f"gradient of memory={policy} against memory={stores}", found, stored))
    return results
