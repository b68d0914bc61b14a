"""A Keras model cut into models that share its layers, from one cut point to the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import keras

from accumtrain.models.keras_cuts import CutPiece, cheapest, find_unknown_size, pieces, segments_of, worth_keeping

SEED = "seed_generator_state"  # name of the variables of Keras's seed generators
MOST_AT_A_CUT = 2  # tensors
LEAST_SAVING = 0.1  # share of the activations; recomputing is refused if it saves less


@dataclass(frozen=True)
class CutModel:
    """A model in parts, or the reason why it has none.

    Attributes:
        parts: models that share its layers, from one cut point to the next.
        kept: the numbers of those that are worth keeping.
        refusal: why it can't be cut, and what to do then; empty if it is cut.
    """

    parts: list[keras.Model] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)
    refusal: str = ""


def cut_model(name: str, model: keras.Model, kept_share: float = 0.0) -> CutModel:
    """Cuts a functional model with one input and one output where computing again saves memory.

    Args:
        name: of the model in a refusal.
        kept_share: share of all activations that the parts which are kept may hold.
    """
    if isinstance(model, keras.Sequential):
        model = model._functional
    if (unknown := find_unknown_size(model)) is not None:
        return CutModel(
            refusal=f"{unknown.name} has the shape {unknown.shape}: cut points are chosen by sizes, so give "
            "keras.Input a shape without None, or use model.memory=store"
        )
    segments = _segments(model)
    if not segments:
        return CutModel(
            refusal=f"{name} has no cut points (one or two tensors through which every path goes) between which "
            "computing again would save memory; use model.memory=store"
        )
    assert segments[-1].output is model.outputs[0], "the output is what is awaited at the end"
    try:
        parts = _parts(model, segments)
    except ValueError as error:
        reason = str(error).partition(" The following")[0]  # what follows names every layer
        return CutModel(
            refusal=f"{name} can't be cut into segments, as where one layer is called in several places ({reason}); "
            "use a layer for each place, or model.memory=store"
        )
    seeds = Counter(id(variable) for part in parts for variable in part.variables if variable.name == SEED)
    if any(count > 1 for count in seeds.values()):
        return CutModel(
            refusal=f"{name} draws from one seed generator in several places, which can't be replayed apart from each "
            "other: give each layer its own, or use model.memory=store"
        )
    return CutModel(parts, worth_keeping(segments[:-1], kept_share))


def _segments(model: keras.Model) -> list[CutPiece]:
    """The segments that take the least memory; none if they save too little."""
    for width in (1, MOST_AT_A_CUT):
        chain = pieces(model, width)
        ends, peak = cheapest(chain)
        if peak <= (1.0 - LEAST_SAVING) * sum(piece.inner for piece in chain):
            return segments_of(chain, ends)
    return []


def _parts(model: keras.Model, segments: Sequence[CutPiece]) -> list[keras.Model]:
    """The models between cut points. Raises ValueError, by Keras, if one can't be computed apart from the others."""
    tensors = [model.input, *(segment.output for segment in segments[:-1]), model.output]
    histories = [(tensor, tensor._keras_history) for tensor in model.inputs]
    try:
        return [_part(start, end) for start, end in pairwise(tensors)]
    finally:
        for tensor, history in histories:
            tensor._keras_history = history  # Keras changes it at a cut point of an input, and could not save the model


class ModelPart(keras.Model):
    """A part of a model. Its outputs have the masks that its layers give them, not those of its inputs."""

    def compute_mask(self, inputs: Any, previous_mask: Any = None) -> None:
        return None


def _part(start: Any, end: Any) -> keras.Model:
    """The model from one cut point to the next. Keras does not take an input as an output, so such ones are copied."""
    inputs = {id(tensor) for tensor in keras.tree.flatten(start)}
    return ModelPart(
        start,
        keras.tree.map_structure(
            lambda tensor: keras.layers.Identity(autocast=False)(tensor) if id(tensor) in inputs else tensor, end
        ),
    )
