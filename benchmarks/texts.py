"""Random texts in memory, for benchmarks of transformers of texts and for their peers. It needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CLASSES = 4
TASKS = ("classify", "masked_tokens", "next_token")
MASK = 0  # the token at a masked position
MASKED = 0.15  # share of the tokens of a text that are masked, as in BERT (Devlin et al. 2018, arXiv:1810.04805)
OWN = 0.5  # share of the tokens of a text that are of its class


@dataclass(frozen=True)
class Texts:
    """Texts of half to all of `tokens`, which end in padding; with next_token all are of `tokens`.

    Attributes:
        tokens: the longest text, T.
        vocabulary: number of different tokens.
        task: one of TASKS. The targets are classes, the tokens at masked positions, or the token behind each.
    """

    tokens: int
    vocabulary: int
    task: str = "classify"

    @property
    def outputs(self) -> int:
        """Number of logits of a text, or of a token."""
        return CLASSES if self.task == "classify" else self.vocabulary

    @property
    def positions(self) -> int:
        """The most masked positions of a text, P."""
        return round(MASKED * self.tokens)

    def examples(self, count: int, seed: int = 0) -> dict[str, np.ndarray]:
        """Return `tokens` int32 [N, T], -1 for padding, `targets` int32 and `weight` float32 [N], always the same.

        A label is a class, [N], and half of the tokens have it as the rest of their division by the number of classes.
        Of masked texts it is the tokens at `positions`, int32 [N, P] both, -1 for none; of next tokens [N, T]. The
        weight is their number.
        """
        generator = np.random.default_rng(seed)
        shape = (count, self.tokens)
        if self.task == "next_token":
            rows = generator.integers(self.vocabulary, size=(count, self.tokens + 1)).astype(np.int32)
            weight = np.full(count, self.tokens, np.float32)
            return {"tokens": rows[:, :-1], "targets": rows[:, 1:], "weight": weight}
        classes = np.arange(count, dtype=np.int32) % CLASSES
        own = CLASSES * generator.integers(self.vocabulary // CLASSES, size=shape) + classes[:, np.newaxis]
        any_token = generator.integers(self.vocabulary, size=shape)
        lengths = generator.integers(self.tokens // 2, self.tokens + 1, size=count)
        inside = np.arange(self.tokens) < lengths[:, np.newaxis]
        tokens = np.where(inside, np.where(generator.random(shape) < OWN, own, any_token), -1).astype(np.int32)
        if self.task == "classify":
            return {"tokens": tokens, "targets": classes, "weight": np.ones(count, np.float32)}
        return _mask(tokens, lengths, self.positions, generator)


def _mask(tokens: np.ndarray, lengths: np.ndarray, most: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    positions = np.full((len(tokens), most), -1, np.int32)
    for row, length in zip(positions, lengths, strict=True):
        count = max(1, round(MASKED * length))
        row[:count] = np.sort(generator.permutation(length)[:count])
    told = positions >= 0
    label = np.where(told, np.take_along_axis(tokens, np.maximum(positions, 0), axis=1), -1)
    shown = tokens.copy()
    shown[np.nonzero(told)[0], positions[told]] = MASK
    weight = told.sum(axis=1).astype(np.float32)
    return {"tokens": shown, "positions": positions, "targets": label, "weight": weight}
