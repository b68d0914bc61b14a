"""Parts of the tasks that learn tokens of texts: loss and metrics, names, and what job=evaluate finds."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.source import Split
from accumtrain.data.text.vocabulary import Vocabulary
from accumtrain.engine.losses import (
    Batch,
    Collector,
    PerExample,
    PerPosition,
    accuracy,
    compute_by_position,
    cross_entropy,
    example_weights,
)
from accumtrain.engine.sums import sum_buffer
from accumtrain.errors import ConfigError
from accumtrain.fields import NONE
from accumtrain.report.tokens import TokenReport, TokenResult
from accumtrain.tasks.answer import round_float32
from accumtrain.tasks.config import TokenCrossEntropyConfig
from accumtrain.tasks.objective import Facts, Objective

SMALL = 1e-6  # share of a token that no training example has
CHUNK = 16384  # examples that are read at a time
LARGEST_LOSS = math.log(sys.float_info.max)  # its exponential is finite


class TokenObjective(Objective):
    """Tokens of a text are learned. The model returns logits [N, P, V] of the V tokens of the vocabulary."""

    @property
    def _tokens(self) -> Tokens:
        """The inputs. Raise DataError for others than the task takes."""
        raise NotImplementedError

    def count_targets(self, split: Split) -> np.ndarray:
        """Return how often each token may be a target in a split, int64 [V]."""
        raise NotImplementedError

    @cached_property
    def class_names(self) -> list[str]:
        """The tokens in words."""
        return name_tokens(self._tokens.vocabulary)

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model that knows the share of each token, and nothing of its context."""
        if not isinstance(self.config.loss, TokenCrossEntropyConfig):
            return {}
        counts = {name: self.count_targets(split) for name, split in self.stored.splits.items()}
        log_share = np.log(np.maximum(counts["train"] / max(counts["train"].sum(), 1), SMALL))
        return {name: float(-np.average(log_share, weights=count)) for name, count in counts.items() if count.any()}

    def collectors(self, split: str, batch: int, replicas: int, *, reports: bool) -> list[Collector]:
        """Return what counts the predicted tokens. Raise ConfigError for a metric that takes all outputs."""
        if self.whole_metrics:
            raise ConfigError(
                f"eval.metrics: {', '.join(self.whole_metrics)} takes the outputs of a whole split, and those of "
                "tokens are too many; register a metric that is a mean over examples"
            )
        return [TokenFinder(self.stored.num_classes)] if reports else []

    def report(self, collectors: Sequence[Collector], split: str, facts: Facts) -> TokenReport:
        (found,) = (collector for collector in collectors if isinstance(collector, TokenFinder))
        return TokenReport(found.read(self.class_names))


def name_tokens(vocabulary: Vocabulary) -> list[str]:
    """Return a name of each token: its text, or its number in angle brackets if it has none that can be printed."""

    def name(number: int) -> str:
        text = vocabulary.decode([number])
        return text if text and text.isprintable() and "\ufffd" not in text else f"<{number}>"

    return [name(number) for number in range(vocabulary.size)]


def count_ids(split: Split, size: int, row: int | None = None) -> np.ndarray:
    """Return how often each of the ids 0..size-1 stands in a split, int64 [size].

    Args:
        row: of stored examples [n, R, T], the one to count; None of examples [n, T].
    """
    counts = np.zeros(size, np.int64)
    for start in range(0, split.size, CHUNK):
        _, stored = split.read(tf.range(start, min(start + CHUNK, split.size), dtype=tf.int64))
        found = stored.numpy() if row is None else stored.numpy()[:, row]
        counts += np.bincount(found[found >= 0], minlength=size)
    return counts


# ---- losses and metrics ----------------------------------------------------------------------------------------------
# Functions of true ids, int32 [N, P], and logits [N, P, V] to values [N]. The id is NONE where there is no token to
# predict. The value of an example is the mean over its other positions, or 0 if it has none. Its weight is their
# number, so weighted means are means over all tokens.


token_cross_entropy = PerPosition(cross_entropy)
token_accuracy = PerPosition(accuracy)


def perplexity(loss: float) -> float:
    """Return exp(loss); infinity beyond the largest number."""
    return math.inf if loss > LARGEST_LOSS else math.exp(loss)


def build_token_cross_entropy(config: TokenCrossEntropyConfig) -> PerExample:
    return token_cross_entropy


# ---- answers in words ------------------------------------------------------------------------------------------------


def most_probable(probabilities: np.ndarray, names: Sequence[str], top: int) -> list[dict[str, Any]]:
    ranked = np.argsort(-probabilities, kind="stable")[:top].tolist()
    return [{"token": names[number], "probability": round_float32(float(probabilities[number]))} for number in ranked]


def list_tokens(tokens: Any) -> str:
    return ", ".join(f"{each['token']!r} {each['probability']:.4f}" for each in tokens)


# ---- what job=evaluate finds -----------------------------------------------------------------------------------------


class TokenFinder:
    """Sums over the positions of each token in an evaluation. Create it inside the strategy's scope.

    Args:
        size: of the vocabulary; the memory taken is 24 bytes for each token on each replica.
    """

    names: Sequence[str] = ()
    takes_linear_logits = True

    def __init__(self, size: int) -> None:
        self._size = size
        self._sums = sum_buffer([size, 3], tf.float64)  # of 1, the loss and right answers

    @property
    def facts(self) -> Facts:
        return {}

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._sums]

    def update(self, batch: Batch, outputs: Any) -> None:
        """Add the part of a batch that a replica has: ids [N, P], logits [N, P, V] or their `LinearLogits`."""
        ids = tf.where((example_weights(batch) > 0)[:, tf.newaxis], batch["targets"], NONE)
        losses, right = compute_by_position([cross_entropy, accuracy], ids, outputs)
        columns = tf.stack([tf.cast(each, tf.float64) for each in (tf.ones_like(losses), losses, right)], axis=-1)
        # ids below 0 are left out
        self._sums.assign_add(tf.math.unsorted_segment_sum(columns, ids, self._size))

    @tf.function(autograph=False)
    def reset(self) -> None:
        self._sums.assign(tf.zeros_like(self._sums))

    def take(self) -> dict[str, float]:
        return {}

    def read(self, names: Sequence[str]) -> list[TokenResult]:
        """Return the results of the tokens that had to be predicted, the largest part of the loss first."""
        counts, losses, right = self._read().numpy().T
        found = np.flatnonzero(counts)
        order = found[np.argsort(-losses[found], kind="stable")].tolist()
        total = float(losses.sum()) or 1.0
        return [
            TokenResult(
                names[number],
                positions=int(counts[number]),
                loss=float(losses[number] / counts[number]),
                part_of_loss=float(losses[number] / total),
                accuracy=float(right[number] / counts[number]),
            )
            for number in order
        ]

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._sums)
