"""task=masked_tokens: some tokens of a text are masked, and predicted from the others."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, TypedDict

import numpy as np
import tensorflow as tf

from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.tokens import NONE, Tokens
from accumtrain.data.source import Split, Stream
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
from accumtrain.errors import ConfigError, DataError
from accumtrain.fields import COUNT
from accumtrain.report.tokens import TokenReport, TokenResult
from accumtrain.tasks.answer import Answer, AnswersInWords, round_float32
from accumtrain.tasks.config import MaskedTokensConfig, TokenCrossEntropyConfig
from accumtrain.tasks.masking import mask_tokens, most_positions
from accumtrain.tasks.objective import Facts, Objective

POSITIONS = "positions"  # a fact: P, the most positions of an example to predict
SMALL = 1e-6  # share of a token that no training example has
CHUNK = 16384  # examples that are read at a time
LARGEST_LOSS = math.log(sys.float_info.max)  # its exponential is finite


class MaskedTokens(Objective):
    """The masked tokens of a text are learned (Devlin et al. 2018, arXiv:1810.04805).

    The model takes tokens, int32 [N, T], and the positions to predict, int32 [N, P]. It returns logits [N, P, V] of the
    V tokens of the vocabulary, and needs no memory for those of the other positions.
    """

    def find_facts(self) -> dict[str, Any]:
        """Return P, the number of positions of an example to predict."""
        return {POSITIONS: most_positions(self._keys.share, self._tokens.shape[0])}

    @property
    def _keys(self) -> MaskedTokensConfig:
        assert isinstance(self.config.task, MaskedTokensConfig)
        return self.config.task

    @property
    def _tokens(self) -> Tokens:
        """The inputs. Raise DataError if they are no tokens, or a stream, which has no keys to draw masks from."""
        if not isinstance(self.stored.inputs, Tokens) or isinstance(self.stored.train, Stream):
            raise DataError(
                f"task=masked_tokens: the examples of {self.config.data.label} are no splits of tokens [N, T] with a "
                "vocabulary; choose data=texts, or give a Source with inputs=accumtrain.Tokens(...)"
            )
        return self.stored.inputs

    @cached_property
    def class_names(self) -> list[str]:
        """The tokens in words."""
        return name_tokens(self._tokens.vocabulary)

    @property
    def asked(self) -> Inputs:
        """Tokens with a mask in the place of each token to predict."""
        return replace(self._tokens, masks=self.facts[POSITIONS])

    def make_batch(self, examples: dict[str, Any]) -> dict[str, Any]:
        """Return a batch whose weights of examples are their numbers of positions to predict."""
        tokens, key = tf.cast(examples["inputs"], tf.int32), examples["key"]
        masked = mask_tokens(tokens, key, self._tokens.vocabulary, self._keys, self.facts[POSITIONS])
        return {
            "inputs": {"tokens": masked.tokens, "positions": masked.positions},
            "targets": masked.ids,
            "weight": examples["weight"] * tf.cast(masked.counts, tf.float32),
        }

    def guess(self) -> dict[str, float]:
        """Return the losses by split of a model that knows the share of each token, and nothing of its context."""
        if not isinstance(self.config.loss, TokenCrossEntropyConfig):
            return {}
        vocabulary = self._tokens.vocabulary
        counts = {name: count_tokens(split, vocabulary) for name, split in self.stored.splits.items()}
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


class TokenFacts(TypedDict):
    positions: Annotated[int, COUNT]


class TokenAnswer(Answer):
    """The probabilities of tokens at each mask, [N, P, V]; zeros where an input has fewer masks."""

    name = "probabilities"
    facts_type = TokenFacts

    def __call__(self, inputs: Any, outputs: tf.Tensor) -> tf.Tensor:
        """Return the softmax of the logits, [N, P, V]."""
        is_mask = tf.cast(inputs["positions"] >= 0, tf.float32)
        return tf.cast(tf.nn.softmax(outputs), tf.float32) * is_mask[..., tf.newaxis]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.facts[POSITIONS], len(self.columns)

    def tell(self, answers: np.ndarray) -> AnswersInWords:
        """Tell the predict.top most probable tokens for each mask, falling."""
        names = self.columns
        top = min(self.config.predict.top, len(names))
        ranked = [
            [_most_probable(probabilities, names, top) for probabilities in row if probabilities.any()]
            for row in answers
        ]
        masks = range(1, 1 + max(map(len, ranked), default=0))
        blank = ["", ""]
        firsts = [[[each[0]["token"], each[0]["probability"]] for each in row] for row in ranked]
        return AnswersInWords(
            columns=[
                f"{column}{'' if mask == 1 else f'_{mask}'}" for mask in masks for column in ("token", "probability")
            ],
            rows=[[value for pair in (row + len(masks) * [blank])[: len(masks)] for value in pair] for row in firsts],
            records=[{"masks": [{**each[0], "top": each} for each in row]} for row in ranked],
            titles=["tokens", "or"],
            shown=[[_list(each[0] for each in row), "; ".join(_list(each[1:]) for each in row)] for row in ranked],
            summary={"masks": sum(map(len, ranked))},
        )


def name_tokens(vocabulary: Vocabulary) -> list[str]:
    """Return a name of each token: its text, or its number in angle brackets if it has none that can be printed."""

    def name(number: int) -> str:
        text = vocabulary.decode([number])
        return text if text and text.isprintable() and "\ufffd" not in text else f"<{number}>"

    return [name(number) for number in range(vocabulary.size)]


def count_tokens(split: Split, vocabulary: Vocabulary) -> np.ndarray:
    """Return how often each token stands in a split, int64 [V]; 0 for special ones, which are never masked."""
    counts = np.zeros(vocabulary.size, np.int64)
    for start in range(0, split.size, CHUNK):
        _, ids = split.read(tf.range(start, min(start + CHUNK, split.size), dtype=tf.int64))
        found = ids.numpy()
        counts += np.bincount(found[found >= 0], minlength=vocabulary.size)
    counts[list(vocabulary.special)] = 0
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


def _most_probable(probabilities: np.ndarray, names: Sequence[str], top: int) -> list[dict[str, Any]]:
    ranked = np.argsort(-probabilities, kind="stable")[:top].tolist()
    return [{"token": names[number], "probability": round_float32(float(probabilities[number]))} for number in ranked]


def _list(tokens: Any) -> str:
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
