"""Cut a functional Keras model into the chain of segments that takes the least memory.

A cut point is a tensor through which every path from the images to the logits goes. The sum at the end of a residual
block is one. The part of the model between two cut points is a function of one tensor, so it can be computed again.
In a part without such tensors two together may be a cut point, as between the cells of NASNet.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf

from accumtrain.errors import ConfigError

SEED = "seed_generator_state"  # name of the variables of Keras's seed generators
MOST_AT_A_CUT = 2  # tensors
KERNELS = ("kernel", "pointwise_kernel")
LEAST_SAVING = 0.1  # share of the activations; recomputing is refused if it saves less


@dataclass(frozen=True)
class CutPiece:
    """The operations between two neighbouring cut points.

    Attributes:
        outputs: the symbolic tensors at its end, a cut point.
        kept: bytes per example of `outputs`.
        inner: bytes per example of the outputs of all its operations, `outputs` included. A layer that is made of
            layers is counted as so many of its outputs.
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


def list_pieces(model: keras.Model, width: int = 1) -> list[CutPiece]:
    """List all pieces of a functional model with one output, in order. All sizes must be known.

    Args:
        width: number of tensors that together may be a cut point.
    """
    nodes = _list_nodes(model)
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
        inner += _count_layers(node) * sum(_count_bytes(tensor) for tensor in outputs)
        multiplications += _count_multiplications(node)
        if len(awaited) <= width and any(id(tensor) in awaited for tensor in outputs):
            ends = tuple(awaited.values())
            found.append(CutPiece(ends, sum(map(_count_bytes, ends)), inner, multiplications))
            inner = multiplications = 0
    return found


def join_cheapest(chain: Sequence[CutPiece]) -> tuple[list[int], int]:
    """Join pieces into segments such that the backward pass takes the least memory.

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


def join_pieces(chain: Sequence[CutPiece], ends: Sequence[int]) -> list[CutPiece]:
    """Join the pieces into segments that end with the pieces of these indices."""
    found, begin = [], 0
    for end in ends:
        part = chain[begin : end + 1]
        inner, multiplications = (sum(map(attrgetter(name), part)) for name in ("inner", "multiplications"))
        found.append(CutPiece(part[-1].outputs, part[-1].kept, inner, multiplications))
        begin = end + 1
    return found


def choose_kept_segments(segments: Sequence[CutPiece], share: float) -> set[int]:
    """Choose segments that together hold at most `share` of all bytes. Return their indices.

    Those that spare most for each byte come first; of equal ones the later, as it is freed earlier.
    """
    left = share * sum(segment.inner for segment in segments)
    kept: set[int] = set()
    worths = [segment.multiplications / max(segment.inner, 1) for segment in segments]
    for index in sorted(range(len(segments)), key=lambda index: (-worths[index], -index)):
        if segments[index].inner > left:
            break  # with a smaller one that follows, a larger share could keep fewer segments
        left -= segments[index].inner
        kept.add(index)
    return kept


def _ends(chain: Sequence[CutPiece], most: int) -> list[int] | None:
    """Return the ends of the segments that keep the fewest bytes, or None if one needs more than `most` bytes."""
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


def _list_nodes(model: keras.Model) -> list[Any]:
    """List the calls of operations of the model, each after those that it depends on. Its inputs come first.

    An operation that is called twice has two of them.
    """
    by_depth = model._nodes_by_depth
    nodes = [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]
    return sorted(nodes, key=lambda node: bool(_inputs(node)))


def _inputs(node: Any) -> list[Any]:
    return list(node.arguments.keras_tensors)


def _count_multiplications(node: Any) -> int:
    """Count the multiplications of a layer's kernels. Those of other operations are not counted."""
    places = sum(math.prod(tensor.shape[1:-1]) for tensor in keras.tree.flatten(node.output_tensors))
    kernels = (variable for variable in _variables(node) if variable.name in KERNELS)
    return int(places * sum(math.prod(kernel.shape) for kernel in kernels))


def _count_layers(node: Any) -> int:
    """Count the layers that have variables in a layer; at least one."""
    return max(1, len({variable.path.rpartition("/")[0] for variable in _variables(node)}))


def _variables(node: Any) -> list[keras.Variable]:
    return list(getattr(node.operation, "variables", ()))


def _count_bytes(tensor: Any) -> int:
    return math.prod(tensor.shape[1:]) * tf.as_dtype(tensor.dtype).size


# ---- the model in parts that share its layers ----


def cut_model(name: str, model: keras.Model, kept_share: float = 0.0) -> tuple[list[keras.Model], set[int]]:
    """Cut a functional model with one output where computing again saves memory.

    Args:
        name: of the model in a refusal.
        kept_share: share of all activations that the parts which are kept may hold.

    Returns:
        Models that share its layers, from one cut point to the next, and the numbers of those that are worth keeping.

    Raises:
        ConfigError: it can't be cut, or that would save no memory.
    """
    if isinstance(model, keras.Sequential):
        model = model._functional
    for tensor in keras.tree.flatten([node.output_tensors for node in _list_nodes(model)]):
        if None in tensor.shape[1:]:
            raise ConfigError(
                f"{tensor.name} has the shape {tensor.shape}: cut points are chosen by sizes, so give keras.Input a "
                "shape without None, or use model.memory=store"
            )
    segments = _choose_segments(model)
    if not segments:
        raise ConfigError(
            f"{name} has no cut points (one or two tensors through which every path goes) between which "
            "computing again would save memory; use model.memory=store"
        )
    assert segments[-1].output is model.outputs[0], "the output is what is awaited at the end"
    try:
        parts = _build_parts(model, segments)
    except ValueError as error:
        reason = str(error).partition(" The following")[0]  # the rest names every layer
        raise ConfigError(
            f"{name} can't be cut into segments, for example where one layer is called in several places ({reason}); "
            "use a layer for each place, or model.memory=store"
        ) from error
    seeds = Counter(id(variable) for part in parts for variable in part.variables if variable.name == SEED)
    if any(count > 1 for count in seeds.values()):
        raise ConfigError(
            f"{name} draws from one seed generator in several places, which can't be computed again apart from each "
            "other: give each layer its own, or use model.memory=store"
        )
    return parts, choose_kept_segments(segments[:-1], kept_share)


def _choose_segments(model: keras.Model) -> list[CutPiece]:
    """Return the segments that take the least memory, or none if they save too little."""
    for width in (1, MOST_AT_A_CUT):
        chain = list_pieces(model, width)
        ends, peak = join_cheapest(chain)
        if peak <= (1.0 - LEAST_SAVING) * sum(piece.inner for piece in chain):
            return join_pieces(chain, ends)
    return []


def _build_parts(model: keras.Model, segments: Sequence[CutPiece]) -> list[keras.Model]:
    """Build the models between cut points. Keras raises ValueError if one can't be computed apart from the others."""
    tensors = [model.input, *(segment.output for segment in segments[:-1]), model.output]
    histories = [(tensor, tensor._keras_history) for tensor in model.inputs]
    try:
        return [_build_part(start, end) for start, end in pairwise(tensors)]
    finally:
        for tensor, history in histories:
            tensor._keras_history = history  # Keras changes it at a cut point of an input, and could not save the model


class ModelPart(keras.Model):
    """A part of a model. Its outputs have the masks that its layers give them, not those of its inputs."""

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        return None


def _build_part(start: Any, end: Any) -> keras.Model:
    """Build the model from one cut point to the next. Keras takes no input as an output, so such ones are copied."""
    inputs = {id(tensor) for tensor in keras.tree.flatten(start)}
    return ModelPart(
        start,
        keras.tree.map_structure(
            lambda tensor: keras.layers.Identity(autocast=False)(tensor) if id(tensor) in inputs else tensor, end
        ),
    )
