"""Check gradients that JAX computes, by bounds.

XLA fuses the operations of each program in its own way, so the bits of two programs differ. So do those of a stream
that is computed back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from accumtrain.engine.runtime import Runtime, TensorFlowRuntime
from accumtrain.engine.window import Window
from accumtrain.measure.verify.float64 import is_random
from accumtrain.measure.verify.result import CheckResult, relative_difference
from accumtrain.measure.verify.window import WindowOfExamples, mean_gradient

# Bound on the relative difference of gradients. Measured in float64: 4e-15 at most. In float32: 1e-6, and 8e-4 where a
# stream of a RevNet fell on the next point of its grid. In bfloat16: 9e-2 between two programs of JAX.
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
    random = is_random(window, examples)  # then TensorFlow's own kernels draw other numbers than XLA
    tensorflow = TensorFlowRuntime(xla=random)
    by_tensorflow = mean_gradient(
        window, tensorflow.build_step(window), tensorflow, examples.micro_batches(), examples.steps
    )

    window, runtime = window_for(stores), new_runtime()
    step = runtime.build_step(window)
    stored = mean_gradient(window, step, runtime, examples.micro_batches(), examples.steps)
    step.drop()
    whole = mean_gradient(window, step, runtime, examples.micro_batches(steps=1), 1)

    def check(name: str, found: list[np.ndarray], expected: list[np.ndarray], *, note: str = "") -> CheckResult:
        bound = None if note else BOUND[precision]
        return CheckResult(name, relative_difference(found, expected), bound, note)

    of_kernels, of_batches = "", ""
    if precision == "bfloat16":
        of_kernels = "no bound can hold in bfloat16: XLA keeps float32 within what it fuses"
    if window.model.norms:
        of_batches = "no bound can hold with batch norm: each micro-batch is normalised by its own statistics"
        of_kernels = of_batches if runtime.replicas > 1 else of_kernels  # TensorFlow computes on one replica here
    elif random:
        of_batches = "no bound can hold: each micro-batch draws its own random numbers"
    results = [
        check("gradient against TensorFlow's", stored, by_tensorflow, note=of_kernels),
        check(f"gradient of {examples.steps} micro-batches against one batch", stored, whole, note=of_batches),
    ]
    for policy in others:
        del window, step, runtime  # frees their memory for the next ones
        window, runtime = window_for(policy), new_runtime()
        step = runtime.build_step(window)
        found = mean_gradient(window, step, runtime, examples.micro_batches(), examples.steps)
        results.append(check(f"gradient of memory={policy} against memory={stores}", found, stored))
    return results
