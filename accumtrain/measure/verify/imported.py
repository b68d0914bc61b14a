"""Check an imported model: its hidden states and logits, beside those of a second implementation.

That one is in NumPy and float64, and reads the folder by itself (published/). Both get the run's first examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import EVALUATION, Mode
from accumtrain.console import format_things
from accumtrain.measure.verify.published.decoders import DECODERS, DecoderReference
from accumtrain.measure.verify.published.encoders import PublishedReference
from accumtrain.measure.verify.result import CheckResult, max_or_nan
from accumtrain.models.published.build import PublishedModel
from accumtrain.models.published.config import PretrainedConfig

EXAMPLES = 4  # a second of NumPy for a small BERT, ten for a large one
TOKENS = 1024  # of a decoder's examples, but one is whole
TOLD = 256  # the first tokens of each, whose next ones are compared: those of GPT-2 take 100 MB
BOUND = {"float32": 1e-5, "bfloat16": 5e-2, "float64": 1e-12}  # on a difference, relative to the largest value


def check_import(config: PretrainedConfig, model: PublishedModel, inputs: Any, precision: str) -> list[CheckResult]:
    """Compare a model that has the weights of its folder with the second implementation.

    Args:
        inputs: of the model, for some examples.
    """
    is_decoder = config.content["model_type"] in DECODERS
    reference = DecoderReference(config.path) if is_decoder else PublishedReference(config.path)
    length = tf.nest.flatten(inputs)[0].shape[1]
    number = min(EXAMPLES, max(1, TOKENS // length)) if is_decoder else EXAMPLES
    few = tf.nest.map_structure(lambda array: tf.constant(array[:number]), inputs)
    x, mode = model.begin(few, EVALUATION)
    side = {name: tensor.numpy() for name, tensor in mode.side.items()}
    theirs = reference.hidden_states(x.numpy(), side.get("documents" if is_decoder else "types"))
    *own, logits = _find_states(model, x, mode)
    shown = side["mask"] if "mask" in side else np.ones(own[0].shape[:2], bool)
    states = [_difference(mine[shown], their[shown]) for mine, their in zip(own, theirs, strict=False)]
    worst = max_or_nan(states)
    examples = format_things(len(shown), "example")
    result = CheckResult(
        "hidden states against those of the files, in float64",
        worst,
        BOUND[precision],
        f"of {examples} and {len(states)} states; the largest difference, relative to the largest value, is "
        f"{_name_state(states.index(worst))}",
    )
    of_tokens = logits.ndim > 2
    if is_decoder and of_tokens:
        logits = logits[:, :TOLD]
    expected, known = _find_logits(reference, x.numpy(), theirs[-1], side, of_tokens=of_tokens)
    if expected is None or expected.shape != logits.shape:
        return [result]
    difference = _difference(logits[known], expected[known])
    name = "logits against those of the files, in float64"
    return [result, CheckResult(name, difference, BOUND[precision], f"of {examples}, relative to the largest logit")]


def _find_states(model: PublishedModel, x: tf.Tensor, mode: Mode) -> list[np.ndarray]:
    """Return the output of each segment."""
    states = []
    for segment in model.segments:
        x = segment(x, mode)
        states.append(x.numpy())
    return states


def _find_logits(
    reference: PublishedReference | DecoderReference,
    inputs: np.ndarray,
    final: np.ndarray,
    side: Mapping[str, np.ndarray],
    *,
    of_tokens: bool,
) -> tuple[np.ndarray | None, Any]:
    """Return the logits of the head that the files have for the task, None if they have none; and which ones count."""
    if isinstance(reference, DecoderReference):
        if of_tokens:
            return reference.next_logits(final[:, :TOLD]), inputs[:, :TOLD] >= 0
        return reference.class_logits(final, inputs), ...
    if not of_tokens:
        return reference.class_logits(final), ...
    logits, positions = reference.token_logits(final), side["positions"]
    if logits is not None:
        logits = np.take_along_axis(logits, np.maximum(positions, 0)[..., np.newaxis], axis=1)
    return logits, positions >= 0


def _difference(own: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(own - expected).max() / np.abs(expected).max())


def _name_state(number: int) -> str:
    return f"behind block {number}" if number else "at the embeddings"
