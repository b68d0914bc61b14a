"""Sentences as bytes, and a small model that says masked bytes; and the command line with both as choices.

`python -m tests.tasks.texts KEY=VALUE ...` is `accumtrain KEY=VALUE ...` with data=sentences and model=mixer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import accumtrain  # before TensorFlow, whose log lines it hides

# isort: split
import numpy as np
import tensorflow as tf

from accumtrain.data.config import DataConfig
from accumtrain.data.source import Source, Split
from accumtrain.data.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary(size=257, mask=256, special=(256,), tokenizer="bytes")
LENGTH, HIDDEN = 24, 16
WORDS = (("the", "a", "no"), ("cat", "dog", "ox"), ("eats", "sees"), ("it", "grass", "hay", "me"))


@dataclass(kw_only=True)
class SentencesConfig(DataConfig):
    """Sentences of up to four words.

    `train_examples`: their number.
    `test_examples`: their number.
    """

    train_examples: int = 192
    test_examples: int = 50


class Tokens(Split):
    """Tokens in memory, which are the targets, too."""

    channels = 1

    def __init__(self, tokens: np.ndarray) -> None:
        self.size, self.shape, self.known_labels = len(tokens), tokens.shape[1:], tokens
        self._tokens = tf.constant(tokens, tf.int32)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        tokens = tf.gather(self._tokens, index)
        return tokens, tokens


def write_sentences(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 1 + len(WORDS), count).tolist()
    return [" ".join(str(random.choice(words)) for words in WORDS[-length:]) for length in lengths]


def encode(sentences: list[str]) -> np.ndarray:
    """Return int32 [N, LENGTH] of bytes, and -1 behind them."""
    rows = [list(sentence.encode()) for sentence in sentences]
    return np.array([row + [-1] * (LENGTH - len(row)) for row in rows], np.int32)


def open_sentences(config: SentencesConfig, seed: int) -> Source:
    counts = (config.train_examples, config.test_examples)
    train, test = (Tokens(encode(write_sentences(count, seed))) for seed, count in enumerate(counts))
    return Source(train, test, VOCABULARY.size, plain=True, vocabulary=VOCABULARY)


class Mixer(tf.Module):
    """Tokens are embedded, mixed over the positions, and read at the positions that are to be told."""

    def __init__(self, spec: Any) -> None:
        super().__init__()
        (length,) = spec.shape
        self.embedding = spec.init.dense((spec.num_classes, HIDDEN))
        self.position = spec.init.dense((length, HIDDEN))
        self.kernel = spec.init.dense((length, length))
        self.head = spec.init.dense((HIDDEN, spec.num_classes))
        self.bias = spec.init.constant(0.0, spec.num_classes, "bias")

    def __call__(self, x: Any, mode: Any) -> tf.Tensor:
        tokens, positions = x["tokens"], x["positions"]
        embedded = tf.gather(self.embedding, tf.maximum(tokens, 0))
        embedded = tf.where((tokens >= 0)[..., tf.newaxis], embedded, tf.zeros_like(embedded))
        mixed = embedded + tf.tanh(tf.matmul(self.kernel, embedded)) + self.position
        told = tf.gather(mixed, tf.maximum(positions, 0), batch_dims=1)
        return tf.matmul(told, self.head) + self.bias


def build_mixer(config: Any, spec: Any) -> accumtrain.Model:
    return accumtrain.Model([accumtrain.Chain(config.policy, [Mixer(spec)])], spec.compute_dtype)


def register() -> None:
    accumtrain.register_data("sentences", open_sentences, SentencesConfig, targets="tokens")
    accumtrain.register_model("mixer", build_mixer)


if __name__ == "__main__":
    register()
    accumtrain.main()
