"""Where a functional Keras model can be cut into a chain, and which of these cuts cost the least memory.

A cut point is a tensor through which every path from the images to the logits goes, such as the sum at the end of a
residual block. Between two of them a part of the model is a function of one tensor, so it can be computed again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class CutPiece:
    """The operations between two neighbouring cut points.

    Attributes:
        output: the symbolic tensor at its end, a cut point.
        kept: bytes per example of `output`.
        inner: bytes per example of all tensors that its operations give, `output` included.
    """

    output: Any
    kept: int
    inner: int


def pieces(model: keras.Model) -> list[CutPiece]:
    """All pieces of a functional model with one input and one output, from the input on."""
    operations = model.operations  # each after those that it depends on
    uses = Counter(id(tensor) for operation in operations for tensor in _inputs(operation))
    uses[id(model.output)] += 1
    found: list[CutPiece] = []
    awaited: set[int] = set()  # tensors that a later operation takes
    inner = 0
    for operation in operations:
        for tensor in _inputs(operation):
            uses[id(tensor)] -= 1
            if not uses[id(tensor)]:
                awaited.remove(id(tensor))
        outputs = keras.tree.flatten(operation.output)
        awaited.update(id(tensor) for tensor in outputs)
        inner += sum(_bytes(tensor) for tensor in outputs)
        if len(awaited) == 1:
            found.append(CutPiece(outputs[0], _bytes(outputs[0]), inner))
            inner = 0
    return found


def cheapest(chain: Sequence[CutPiece]) -> tuple[list[int], int]:
    """Joins pieces into segments such that the backward pass takes the least memory.

    Going backwards, a segment needs its own inner tensors and, kept, the inputs of itself and of all before it.

    Returns:
        The last piece of each segment, and the bytes per example at the worst segment.
    """
    low, high = max(piece.inner for piece in chain), sum(piece.inner for piece in chain)
    while low < high:
        middle = (low + high) // 2
        if _ends(chain, middle) is None:
            low = middle + 1
        else:
            high = middle
    ends = _ends(chain, high)
    assert ends is not None, "one segment of all pieces takes `high` at most"
    return ends, high


def _ends(chain: Sequence[CutPiece], most: int) -> list[int] | None:
    """The segments that keep the fewest bytes where no one may need more than `most`; None if there are none."""
    kept, start = [0.0] + [math.inf] * len(chain), [0] * (len(chain) + 1)  # by the number of pieces passed
    for begin in range(len(chain)):
        inner = 0
        for end in range(begin, len(chain)):
            inner += chain[end].inner
            if kept[begin] + inner > most:
                break
            if kept[begin] + chain[end].kept < kept[end + 1]:
                kept[end + 1], start[end + 1] = kept[begin] + chain[end].kept, begin
    if math.isinf(kept[-1]):
        return None
    ends, passed = [], len(chain)
    while passed:
        ends.append(passed - 1)
        passed = start[passed]
    return ends[::-1]


def _inputs(operation: Any) -> list[Any]:
    return [] if isinstance(operation, keras.layers.InputLayer) else keras.tree.flatten(operation.input)


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape[1:]) * tf.as_dtype(tensor.dtype).size
