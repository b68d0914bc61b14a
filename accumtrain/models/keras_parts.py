"""A Keras model cut into models that share its layers, from one cut point to the next."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import keras

from accumtrain.errors import ConfigError
from accumtrain.models.keras_cuts import CutPiece, cheapest, pieces, segments_of, worth_keeping

SEED = "seed_generator_state"  # name of the variables of Keras's seed generators
MOST_AT_A_CUT = 2  # tensors
LEAST_SAVING = 0.1  # share of the activations; recomputing is refused if it saves less


def parts_of(name: str, model: keras.Model, kept_share: float) -> tuple[list[keras.Model], set[int]]:
    """The parts, and the numbers of those that are worth keeping.

    Args:
        kept_share: share of all activations that those may hold.

    Raises:
        ConfigError: there are no cut points that would save memory, or the parts can't be computed apart.
    """
    if isinstance(model, keras.Sequential):
        model = model._functional
    segments = _segments(name, model)
    assert segments[-1].output is model.outputs[0], "the output is what is awaited at the end"
    tensors = [model.input, *(segment.output for segment in segments[:-1]), model.output]
    histories = [(tensor, tensor._keras_history) for tensor in model.inputs]
    try:
        parts = [_part(start, end) for start, end in pairwise(tensors)]
    except ValueError as error:
        reason = str(error).partition(" The following")[0]  # what follows names every layer
        raise ConfigError(
            f"{name} can't be cut into segments, as where one layer is called in several places ({reason}); use a "
            "layer for each place, or model.memory=store"
        ) from error
    finally:
        for tensor, history in histories:
            tensor._keras_history = history  # Keras changes it at a cut point of an input, and could not save the model
    seeds = Counter(id(variable) for part in parts for variable in part.variables if variable.name == SEED)
    if any(count > 1 for count in seeds.values()):
        raise ConfigError(
            f"{name} draws from one seed generator in several places, which can't be replayed apart from each other: "
            "give each layer its own, or use model.memory=store"
        )
    return parts, worth_keeping(segments[:-1], kept_share)


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


def _segments(name: str, model: keras.Model) -> list[CutPiece]:
    for width in (1, MOST_AT_A_CUT):
        chain = pieces(model, width)
        ends, peak = cheapest(chain)
        if peak <= (1.0 - LEAST_SAVING) * sum(piece.inner for piece in chain):
            return segments_of(chain, ends)
    raise ConfigError(
        f"{name} has no cut points (one or two tensors through which every path goes) between which "
        "computing again would save memory; use model.memory=store"
    )
