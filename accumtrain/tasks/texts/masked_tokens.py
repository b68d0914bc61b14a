"""task=masked_tokens: some tokens of a text are masked, and predicted from the others."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, TypedDict

import numpy as np
import tensorflow as tf

from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.source import Split, Stream
from accumtrain.errors import DataError
from accumtrain.fields import COUNT
from accumtrain.tasks.answer import Answer, AnswersInWords
from accumtrain.tasks.config import MaskedTokensConfig
from accumtrain.tasks.texts.masking import count_masked, mask_tokens, most_positions
from accumtrain.tasks.texts.tokens import CHUNK, TokenObjective, count_ids, list_tokens, most_probable

POSITIONS = "positions"  # a fact: P, the most positions of an example to predict


class MaskedTokens(TokenObjective):
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

    @cached_property
    def told_per_example(self) -> float:
        train, vocabulary, share = self.stored.train, self._tokens.vocabulary, self._keys.share
        indices = tf.data.Dataset.range(train.size).batch(CHUNK)
        counts = [count_masked(train.read(chunk)[0], vocabulary, share).numpy().sum() for chunk in indices]
        return float(sum(counts) / train.size)

    def count_targets(self, split: Split) -> np.ndarray:
        """Return how often each token stands in a split, int64 [V]; 0 for special ones, which are never masked."""
        vocabulary = self._tokens.vocabulary
        counts = count_ids(split, vocabulary.size)
        counts[list(vocabulary.special)] = 0
        return counts


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
            [most_probable(probabilities, names, top) for probabilities in row if probabilities.any()]
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
            shown=[
                [list_tokens(each[0] for each in row), "; ".join(list_tokens(each[1:]) for each in row)]
                for row in ranked
            ],
            summary={"masks": sum(map(len, ranked))},
        )
