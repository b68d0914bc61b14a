"""From images or tokens to the first values of a transformer, [N, T, C]."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.models.layers import Initializer
from accumtrain.models.transformers.layers import Linear

DEVIATION = 0.02  # of embeddings at the start, as in BERT (Devlin et al. 2018, arXiv:1810.04805)
LONGEST_WAVE = 10_000.0  # of sin-cos positions, in units of 2 pi tokens


class Patches(tf.Module):
    """A linear function of each patch of images: [N, H, W, channels] to [N, H W / patch^2, C], row by row."""

    def __init__(self, init: Initializer, patch: int, channels: int, width: int):
        super().__init__()
        self.patch, self.linear = patch, Linear(init, patch * patch * channels, width)

    def __call__(self, images: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.linear(cut_patches(images, self.patch), mode)


class TokenTable(tf.Module):
    """A vector for each token of a vocabulary: int32 [N, T] to [N, T, C]. Padding, below 0, has that of token 0."""

    def __init__(self, init: Initializer, vocabulary: int, width: int):
        super().__init__()
        self.embedding = init.normal((vocabulary, width), DEVIATION, "embedding")

    def __call__(self, tokens: tf.Tensor, mode: Mode) -> tf.Tensor:
        table = tf.convert_to_tensor(self.embedding)  # a sparse read would let every later read copy the table
        return tf.gather(table, tf.maximum(tokens, 0))


class Embed(tf.Module):
    """Embeddings, a class token before them if there is one, and positions: [N, T, C] in the dtype of the weights.

    Args:
        embed: from inputs to [N, T, C].
        tokens: the largest T, without the class token.
        fixed: positions of the embeddings, [tokens, C], that are not learned; None learns them.
    """

    def __init__(
        self,
        init: Initializer,
        embed: Patches | TokenTable,
        tokens: int,
        width: int,
        *,
        fixed: np.ndarray | None,
        class_token: bool,
    ):
        super().__init__()
        self.embed, self.dtype = embed, init.dtype
        self.class_token = init.normal((1, width), DEVIATION, "class_token") if class_token else None
        self.fixed = None if fixed is None else np.pad(fixed, [[int(class_token), 0], [0, 0]])
        self.positions = init.normal((tokens + class_token, width), DEVIATION, "positions") if fixed is None else None

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = tf.cast(self.embed(x, mode), self.dtype)
        if self.class_token is not None:
            first = tf.broadcast_to(self.class_token, [tf.shape(x)[0], 1, x.shape[-1]])
            x = tf.concat([first, x], axis=1)
        positions = tf.constant(self.fixed, self.dtype) if self.positions is None else self.positions
        return x + positions[: tf.shape(x)[1]]


class EmbedText(tf.Module):
    """Tokens, plus a learned vector for the place of each: int32 [N, T] to [N, T, C] in the dtype of the weights.

    Places are `mode.side["places"]`, int32 [N, T]; without them those in the row.

    Args:
        places: the number of places; None if another layer tells them.
    """

    def __init__(self, init: Initializer, embed: TokenTable, places: int | None, width: int):
        super().__init__()
        self.embed = embed
        self.positions = None if places is None else init.normal((places, width), DEVIATION, "positions")

    def __call__(self, tokens: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = self.embed(tokens, mode)
        if self.positions is None:
            return x
        if "places" not in mode.side:
            return x + self.positions[: tf.shape(x)[1]]
        return x + tf.gather(tf.convert_to_tensor(self.positions), mode.side["places"])


def cut_patches(images: tf.Tensor, side: int) -> tf.Tensor:
    """Return images [N, H, W, channels] as patches [N, H W / side^2, side^2 channels], row by row."""
    _, height, width, channels = images.shape
    rows, columns = height // side, width // side
    cut = tf.transpose(tf.reshape(images, [-1, rows, side, columns, side, channels]), [0, 1, 3, 2, 4, 5])
    return tf.reshape(cut, [-1, rows * columns, side * side * channels])


def sincos(positions: np.ndarray, channels: int) -> np.ndarray:
    """Return sines and cosines of positions [T], [T, channels] (Vaswani et al. 2017, arXiv:1706.03762)."""
    waves = LONGEST_WAVE ** -(np.arange(channels // 2) / (channels / 2))
    angles = np.outer(positions, waves)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def sincos_of_grid(rows: int, columns: int, channels: int) -> np.ndarray:
    """Return `sincos` of the row of each patch, then of its column, [rows * columns, channels]."""
    row, column = np.divmod(np.arange(rows * columns), columns)
    return np.concatenate([sincos(row, channels // 2), sincos(column, channels // 2)], axis=1)
