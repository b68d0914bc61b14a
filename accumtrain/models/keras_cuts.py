"""Cuts a functional Keras model into the chain of segments that takes the least memory.

A cut point is a tensor through which every path from the images to the logits goes, such as the sum at the end of a
residual block. The part of the model between two cut points is a function of one tensor, so it can be computed again.
Where no such tensors are, two together may be a cut point, as between the cells of NASNet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf


@dataclass(frozen=True)
class CutPiece:
    """The operations between two neighbouring cut points.

    Attributes:
        outputs: the symbolic tensors at its end, a cut point.
        kept: bytes per example of `outputs`.
        inner: bytes per example of the outputs of all its operations, `outputs` included.
        multiplications: of its convolutions and products, per example.
    """

    outputs: tuple[Any, ...]
    kept: int
    inner: int
    multiplications: int

    @property
    def output(self) -> Any:
        """One tensor, or a list of several."""
        return self.outputs[0] if len(self.outputs) == 1 else list(self.outputs)


def find_unknown_size(model: keras.Model) -> Any | None:
    """The first tensor of a functional model that has a size, of an example, which is not known; None if all are."""
    tensors = (tensor for node in _nodes(model) for tensor in keras.tree.flatten(node.output_tensors))
    return next((tensor for tensor in tensors if None in tensor.shape[1:]), None)


def pieces(model: keras.Model, width: int = 1) -> list[CutPiece]:
    """All pieces of a functional model with one input and one output, in order from the input. All sizes must be known.

    Args:
        width: how many tensors together may be a cut point.
    """
    nodes = _nodes(model)
    uses = Counter(id(tensor) for node in nodes for tensor in _inputs(node))
    uses[id(model.outputs[0])] += 1
    found: list[CutPiece] = []
    awaited: dict[int, Any] = {}  # tensors that a later node takes
    inner = multiplications = 0
    for node in nodes:
        for tensor in _inputs(node):
            uses[id(tensor)] -= 1
            if not uses[id(tensor)]:
                del awaited[id(tensor)]
        outputs = keras.tree.flatten(node.output_tensors)
        awaited.update({id(tensor): tensor for tensor in outputs if uses[id(tensor)]})
        inner += sum(_bytes(tensor) for tensor in outputs)
        multiplications += _multiplications(node)
        if len(awaited) <= width and any(id(tensor) in awaited for tensor in outputs):
            ends = tuple(awaited.values())
            found.append(CutPiece(ends, sum(map(_bytes, ends)), inner, multiplications))
            inner = multiplications = 0
    return found


def cheapest(chain: Sequence[CutPiece]) -> tuple[list[int], int]:
    """Joins pieces into segments such that the backward pass takes the least memory.

    The backward pass of a segment needs its inner tensors, its input, and the inputs of all segments before it.

    Returns:
        The index of the last piece of each segment, and the bytes per example at the worst segment.
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


def segments_of(chain: Sequence[CutPiece], ends: Sequence[int]) -> list[CutPiece]:
    """The pieces joined into segments that end with the pieces of these indices."""
    found, begin = [], 0
    for end in ends:
        part = chain[begin : end + 1]
        inner, multiplications = (sum(map(attrgetter(name), part)) for name in ("inner", "multiplications"))
        found.append(CutPiece(part[-1].outputs, part[-1].kept, inner, multiplications))
        begin = end + 1
    return found


def worth_keeping(segments: Sequence[CutPiece], share: float) -> set[int]:
    """Indices of segments that together hold at most `share` of all bytes: those first that spare most for each byte.

    Of equal ones the later comes first, as it is freed earlier.
    """
    left = share * sum(segment.inner for segment in segments)
    kept: set[int] = set()
    for place in sorted(range(len(segments)), key=lambda each: (-_worth(segments[each]), -each)):
        if segments[place].inner > left:
            break  # a smaller one that follows would make the dial jump back
        left -= segments[place].inner
        kept.add(place)
    return kept


def _worth(segment: CutPiece) -> float:
    return segment.multiplications / max(segment.inner, 1)


def _ends(chain: Sequence[CutPiece], most: int) -> list[int] | None:
    """The segments that keep the fewest bytes if none may need more than `most` bytes; None if this is impossible."""
    # for each number of pieces: the fewest bytes kept for them, and where their last segment starts
    kept, start = [0.0] + [math.inf] * len(chain), [0] * (len(chain) + 1)
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
    ends, count = [], len(chain)
    while count:
        ends.append(count - 1)
        count = start[count]
    return ends[::-1]


def _nodes(model: keras.Model) -> list[Any]:
    """The calls of operations that the model is made of, each after those that it depends on.

    An operation that is called twice has two of them.
    """
    by_depth = model._nodes_by_depth
    return [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def _inputs(node: Any) -> list[Any]:
    return list(node.arguments.keras_tensors)


def _multiplications(node: Any) -> int:
    """Of the kernels of a layer, for each value of its output; those of other operations are not counted."""
    layer = node.operation
    outputs = sum(math.prod(tensor.shape[1:]) for tensor in keras.tree.flatten(node.output_tensors))
    if isinstance(layer, keras.layers.DepthwiseConv2D):
        return int(outputs * math.prod(layer.kernel.shape[:2]))
    kernel = getattr(layer, "kernel", getattr(layer, "pointwise_kernel", None))
    return int(outputs * math.prod(kernel.shape[:-1])) if isinstance(kernel, keras.Variable) else 0


def _bytes(tensor: Any) -> int:
    return math.prod(tensor.shape[1:]) * tf.as_dtype(tensor.dtype).size
