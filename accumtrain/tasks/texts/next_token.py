"""task=next_token: each token of a text is learned from those before it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model
from accumtrain.data.inputs.base import Inputs
from accumtrain.data.inputs.tokens import Tokens
from accumtrain.data.source import Split
from accumtrain.data.text.rows import TARGETS, RowSplit
from accumtrain.data.text.vocabulary import Vocabulary
from accumtrain.engine.losses import Batch, PerExample
from accumtrain.errors import DataError
from accumtrain.fields import NONE
from accumtrain.models.transformers.continuation import Choose, Sampling, choose_best, continue_texts, take_logits
from accumtrain.tasks.answer import Answer, AnswersInWords
from accumtrain.tasks.texts.tokens import TokenObjective, count_ids, list_tokens, most_probable, token_cross_entropy

SHOWN = 48  # characters of a continuation on the screen


class NextToken(TokenObjective):
    """The next token of a text is learned, as by GPT (Radford et al. 2018) and its followers.

    The model takes tokens, int32 [N, T], and for packed rows the numbers of their documents. It returns logits
    [N, T, V] of the token behind each.
    """

    def find_facts(self) -> dict[str, Any]:
        """Return no facts. Raise DataError for other examples than rows of documents."""
        _ = self._tokens
        return {}

    @property
    def _tokens(self) -> Tokens:
        """The inputs. Raise DataError if they are no rows of documents."""
        inputs = self.stored.inputs
        if not isinstance(inputs, Tokens) or not inputs.rows:
            raise DataError(
                f"task=next_token: the examples of {self.config.data.label} are no rows of documents; choose "
                "data=texts, table or npz"
            )
        return inputs

    @property
    def asked(self) -> Inputs:
        """Texts, of which the model tells what follows."""
        return replace(self._tokens, rows="", buckets=(), continues=True)

    def make_batch(self, examples: dict[str, Any]) -> dict[str, Any]:
        """Return a batch whose weights of examples are their numbers of targets."""
        inputs = examples["inputs"]
        tokens = inputs["tokens"] if isinstance(inputs, Mapping) else inputs
        targets = examples["targets"][:, TARGETS, : tf.shape(tokens)[1]]  # buckets have cut the tokens
        counts = tf.reduce_sum(tf.cast(targets != NONE, tf.float32), axis=1)
        return {
            "inputs": inputs,
            "targets": tf.ensure_shape(targets, tokens.shape),
            "weight": examples["weight"] * counts,
        }

    def of_means(self, split: str) -> dict[str, tuple[PerExample, Callable[[float], float]]]:
        """Return perplexity, and bits per byte where the bytes of the texts of all splits are known."""
        found, told = super().of_means(split), self._told
        if told is None:
            return found
        return {**found, "bits_per_byte": (token_cross_entropy, partial(bits_per_byte, *told[split]))}

    @property
    def notes(self) -> list[str]:
        if self._told is not None or not self._tokens.vocabulary.tokenizer:
            return []
        return ["bits_per_byte is not measured: the first token of a text ends within a character, or stands for none"]

    @property
    def _told(self) -> dict[str, tuple[int, int]] | None:
        """The targets of each split, and the bytes that they stand for; None where these are not known."""
        told = dict[str, tuple[int, int]]()
        for name, split in self.stored.splits.items():
            if not isinstance(split, RowSplit) or not split.bytes_told:
                return None
            told[name] = (split.targets, split.bytes_told)
        return told

    @cached_property
    def told_per_example(self) -> float:
        train = self.stored.train
        return float(self.count_targets(train).sum() / train.size)

    def count_targets(self, split: Split) -> np.ndarray:
        """Return how often each token is a target in a split, int64 [V]."""
        return count_ids(split, self._tokens.vocabulary.size, TARGETS)


def bits_per_byte(tokens: int, size: int, loss: float) -> float:
    """Return a loss in nats of each of so many tokens as bits of each of the `size` bytes that they stand for."""
    return loss / math.log(2) * tokens / size


class NextTokenAnswer(Answer):
    """The probabilities of the token behind each text, [N, V]; of job=predict, the tokens that continue it."""

    name = "probabilities"

    def answer(self, model: Model, inputs: Any) -> tf.Tensor:
        return self(inputs, model(inputs, Mode(training=False, defers_logits=True)))

    def predict(self, model: Model, batch: Batch) -> tf.Tensor:
        """Return the tokens that continue each text, int32 [N, n], NONE behind the last one."""
        keys, (number,) = self.config.predict, tf.nest.flatten(batch["targets"])
        if not self._most_tokens:
            return super().predict(model, batch)
        sampling = Sampling(keys.temperature, keys.top_k, keys.top_p)
        draws = tf.map_fn(
            lambda text: tf.random.stateless_uniform([self._most_tokens], tf.stack([keys.draw, text])),
            tf.cast(number, tf.int32),
            fn_output_signature=tf.float32,
        )
        return self._continue(model, batch["inputs"], lambda logits, index: sampling.choose(logits, draws[:, index]))

    @property
    def further(self) -> Mapping[str, Callable[[Model, Any], tf.Tensor]]:
        """The most probable tokens that continue each text, as `predict` tells them without draws."""
        if not self._most_tokens:
            return {}
        return {"continuation": partial(self._continue, choose=lambda logits, index: choose_best(logits))}

    def _continue(self, model: Model, tokens: tf.Tensor, choose: Choose) -> tf.Tensor:
        end = self._vocabulary.template.single[-1].ids[-1:]
        return continue_texts(model, tokens, self._most_tokens, choose, end[0] if end else None)

    @property
    def _most_tokens(self) -> int:
        """The most tokens that are written: a text and they have room for data.length."""
        return min(self.config.predict.tokens, self.inputs.shape[0])

    @property
    def _vocabulary(self) -> Vocabulary:
        assert isinstance(self.inputs, Tokens)
        return self.inputs.vocabulary

    def __call__(self, inputs: Any, outputs: Any) -> tf.Tensor:
        """Return the softmax of the logits at the last token of each text, [N, V], from those at all, [N, T, V].

        Args:
            outputs: logits, or their `LinearLogits`.
        """
        last = tf.reduce_sum(tf.cast(inputs >= 0, tf.int32), axis=1) - 1
        return tf.cast(tf.nn.softmax(take_logits(outputs, tf.maximum(last, 0))), tf.float32)

    def tell(self, answers: np.ndarray) -> AnswersInWords:
        """Tell what continues each text, or the predict.top most probable tokens behind it, falling."""
        if answers.dtype.kind == "i":
            return self._tell_continuations(answers)
        names = self.columns
        top = min(self.config.predict.top, len(names))
        ranked = [most_probable(row, names, top) for row in answers]
        ranks = ["", *(f"_{rank}" for rank in range(2, top + 1))]
        return AnswersInWords(
            columns=[f"{name}{rank}" for rank in ranks for name in ("token", "probability")],
            rows=[[cell for each in row for cell in (each["token"], each["probability"])] for row in ranked],
            records=[{**row[0], "top": row} for row in ranked],
            titles=["token", "probability", "or"],
            shown=[[repr(row[0]["token"]), f"{row[0]['probability']:.4f}", list_tokens(row[1:])] for row in ranked],
            summary={"tokens": dict(Counter(row[0]["token"] for row in ranked).most_common())},
        )

    def _tell_continuations(self, answers: np.ndarray) -> AnswersInWords:
        counts = (answers != NONE).sum(axis=1).tolist()
        texts = [self._vocabulary.decode(row) for row in answers.tolist()]
        return AnswersInWords(
            columns=["continuation"],
            rows=[[text] for text in texts],
            records=[{"continuation": text, "tokens": count} for text, count in zip(texts, counts, strict=True)],
            titles=["goes on", "tokens"],
            shown=[[_begin(text), str(count)] for text, count in zip(texts, counts, strict=True)],
            summary={"tokens": sum(counts)},
        )


def _begin(text: str) -> str:
    """Return the beginning of a text in one line, or of a blank one as Python writes it."""
    line = " ".join(text.split()) or repr(text)
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 3]}..."
