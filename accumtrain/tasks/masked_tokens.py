"""task=masked_tokens: some tokens of a text are masked, and predicted from the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.config.jobs import cell
from accumtrain.console import say, table
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.tokens import NONE, Tokens
from accumtrain.data.source import Dataset, Split, Stream
from accumtrain.data.text.vocabulary import Vocabulary
from accumtrain.engine.losses import Batch, Collector, example_weights
from accumtrain.engine.sums import sum_buffer
from accumtrain.errors import ConfigError, DataError
from accumtrain.tasks.config import MaskedTokensConfig, TokenCrossEntropyConfig
from accumtrain.tasks.masking import mask_tokens, most_positions
from accumtrain.tasks.task import Answers, Facts, Task, round_float32

POSITIONS = "positions"  # a fact: P, the most positions of an example to predict
SMALL = 1e-6  # share of a token that no training example has
SHOWN, WRITTEN = 15, 100  # tokens that are printed, and that are written down
CHUNK = 16384  # examples that are read at a time


class MaskedTokens(Task):
    """The masked tokens of a text are predicted (Devlin et al. 2018, arXiv:1810.04805).

    The model takes tokens, int32 [N, T], and the positions to predict, int32 [N, P]. It returns logits [N, P, V] of the
    V tokens of the vocabulary, and needs no memory for those of the other positions.
    """

    output = "probabilities"

    @property
    def _keys(self) -> MaskedTokensConfig:
        assert isinstance(self.config.task, MaskedTokensConfig)
        return self.config.task

    # ---- inputs and targets

    def fit(self, data: Dataset) -> dict[str, Any]:
        """Return P, the number of positions of an example to predict.

        Raises:
            DataError: the examples are no tokens of one length, or a stream, which has no keys to draw masks from.
        """
        if not isinstance(data.inputs, Tokens) or isinstance(data.train, Stream):
            raise DataError(
                f"task=masked_tokens: the examples of {self.config.data.label} are no splits of tokens [N, T] with a "
                "vocabulary; choose data=texts, or give a Source with inputs=accumtrain.Tokens(...)"
            )
        return {POSITIONS: most_positions(self._keys.share, data.shape[0])}

    def prepare(self, data: Dataset, facts: Facts) -> Dataset:
        """Return the data with masked tokens. Its classes are the tokens, by their names."""
        assert isinstance(data.inputs, Tokens)
        vocabulary = data.inputs.vocabulary
        make_batch = partial(self._mask, vocabulary, most_positions(self._keys.share, data.shape[0]))
        return replace(super().prepare(data, facts), make_batch=make_batch, class_names=name_tokens(vocabulary))

    def asked(self, inputs: Inputs, facts: Facts) -> Inputs:
        """Return tokens in which masks stand for those to tell."""
        assert isinstance(inputs, Tokens)
        return replace(inputs, masks=facts[POSITIONS])

    def _mask(self, vocabulary: Vocabulary, most: int, examples: dict[str, Any]) -> dict[str, Any]:
        """Return a batch whose weights of examples are their numbers of positions to predict."""
        masked = mask_tokens(tf.cast(examples["inputs"], tf.int32), examples["key"], vocabulary, self._keys, most)
        return {
            "inputs": {"tokens": masked.tokens, "positions": masked.positions},
            "targets": masked.ids,
            "weight": examples["weight"] * tf.cast(masked.counts, tf.float32),
        }

    def target_spec(self, data: Dataset, examples: int) -> tf.TensorSpec:
        """Return the form of the ids to predict: int32 [N, P]."""
        return tf.TensorSpec([examples, data.task_facts[POSITIONS]], tf.int32)

    # ---- measures

    def guess(self, data: Dataset) -> dict[str, float]:
        """Return the losses by split of a model that knows the share of each token, and nothing of its context."""
        if not (isinstance(self.config.loss, TokenCrossEntropyConfig) and isinstance(data.inputs, Tokens)):
            return {}
        vocabulary = data.inputs.vocabulary
        counts = {name: count_tokens(split, vocabulary) for name, split in data.splits.items()}
        log_share = np.log(np.maximum(counts["train"] / max(counts["train"].sum(), 1), SMALL))
        return {name: float(-np.average(log_share, weights=count)) for name, count in counts.items() if count.any()}

    def collectors(self, data: Dataset, split: str, batch: int, replicas: int, *, finding: bool) -> list[Collector]:
        """Return what counts the predicted tokens. Raise ConfigError for a metric that takes all outputs."""
        if self._whole_metrics:
            raise ConfigError(
                f"eval.metrics: {', '.join(self._whole_metrics)} takes the outputs of a whole split, and those of "
                "tokens are too many; register a metric that is a mean over examples"
            )
        return [TokenFinder(data.num_classes)] if finding else []

    def find(self, collectors: Sequence[Collector], data: Dataset, split: str, facts: Facts) -> TokenFindings:
        (found,) = (collector for collector in collectors if isinstance(collector, TokenFinder))
        return TokenFindings(data.classes, *found.read())

    # ---- answers

    def answer(self, outputs: tf.Tensor, facts: Facts) -> tf.Tensor:
        """Return the softmax of the logits, [N, P, V]."""
        return tf.cast(tf.nn.softmax(outputs), tf.float32)

    def answer_inputs(self, inputs: Any, outputs: tf.Tensor, facts: Facts) -> tf.Tensor:
        """Return the probabilities of tokens at each mask, [N, P, V]; zeros where an input has fewer masks."""
        is_mask = tf.cast(inputs["positions"] >= 0, tf.float32)
        return self.answer(outputs, facts) * is_mask[..., tf.newaxis]

    def answer_shape(self, names: Sequence[str], facts: Facts) -> tuple[int, ...]:
        return facts[POSITIONS], len(names)

    def tell(self, answers: np.ndarray, names: Sequence[str], facts: Facts) -> Answers:
        """Tell the predict.top most probable tokens for each mask, falling."""
        top = min(self.config.predict.top, len(names))
        ranked = [
            [_most_probable(probabilities, names, top) for probabilities in row if probabilities.any()]
            for row in answers
        ]
        masks = range(1, 1 + max(map(len, ranked), default=0))
        blank = ["", ""]
        firsts = [[[each[0]["token"], each[0]["probability"]] for each in row] for row in ranked]
        return Answers(
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

    def __init__(self, size: int) -> None:
        self._size = size
        self._sums = sum_buffer([size, 3], tf.float64)  # of 1, the loss and right answers

    @property
    def facts(self) -> Facts:
        return {}

    @property
    def variables(self) -> list[tf.Variable]:
        return [self._sums]

    def update(self, batch: Batch, outputs: tf.Tensor) -> None:
        """Add the part of a batch that a replica has: ids [N, P], logits [N, P, V]."""
        ids = tf.where((example_weights(batch) > 0)[:, tf.newaxis], batch["targets"], NONE)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.maximum(ids, 0), outputs)
        right = tf.equal(tf.argmax(outputs, axis=-1, output_type=ids.dtype), ids)
        columns = tf.stack([tf.cast(each, tf.float64) for each in (tf.ones_like(losses), losses, right)], axis=-1)
        # ids below 0 are left out
        self._sums.assign_add(tf.math.unsorted_segment_sum(columns, ids, self._size))

    @tf.function(autograph=False)
    def reset(self) -> None:
        self._sums.assign(tf.zeros_like(self._sums))

    def take(self) -> dict[str, float]:
        return {}

    def read(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return for each token, float64 [V]: the number of positions, the sum of losses, that of right answers."""
        counts, losses, right = self._read().numpy().T
        return counts, losses, right

    @tf.function(autograph=False)
    def _read(self) -> tf.Tensor:
        return tf.convert_to_tensor(self._sums)


@dataclass(frozen=True)
class TokenResult:
    """The answers at all positions of a token: mean loss in nats, the part of all losses, the share of right ones."""

    token: str
    positions: int
    loss: float
    part_of_loss: float
    accuracy: float


@dataclass(frozen=True)
class TokenFindings:
    """Of each token of the vocabulary, [V]: the number of positions, the sum of losses, the number of right answers."""

    names: list[str]
    counts: np.ndarray
    losses: np.ndarray
    right: np.ndarray

    @property
    def results(self) -> list[TokenResult]:
        """The results of the predicted tokens, the largest part of the loss first."""
        found = np.flatnonzero(self.counts)
        order = found[np.argsort(-self.losses[found], kind="stable")].tolist()
        total = float(self.losses.sum()) or 1.0
        return [
            TokenResult(
                self.names[number],
                positions=int(self.counts[number]),
                loss=float(self.losses[number] / self.counts[number]),
                part_of_loss=float(self.losses[number] / total),
                accuracy=float(self.right[number] / self.counts[number]),
            )
            for number in order
        ]

    def describe(self) -> dict[str, Any]:
        return {"tokens": [asdict(result) for result in self.results[:WRITTEN]]}

    def show(self) -> None:
        results = self.results
        rows = [
            (
                repr(result.token),
                f"{result.positions:,}",
                cell(result.loss, ".4f"),
                cell(result.part_of_loss, ".2%"),
                cell(result.accuracy, ".4f"),
            )
            for result in results[:SHOWN]
        ]
        table(
            "tokens, largest part of the loss first",
            ("token", "positions", "loss", "part of the loss", "accuracy"),
            rows,
        )
        if len(results) > SHOWN:
            say(f"... and {len(results) - SHOWN:,} more")

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw nothing."""
        return []
