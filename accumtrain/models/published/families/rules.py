"""Rules of the values in a config.json, and the keys that all families share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from accumtrain.errors import ConfigError
from accumtrain.fields import FRACTION, Constraint, OneOf, Range, format_value

# config.json's word -> ours
_ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
ACTIVATION = OneOf(tuple(_ACTIVATIONS))
SIZE = Range(1, 2**31)
EPSILON = Range(0, 1)


@dataclass(frozen=True)
class Always(Constraint):
    """A key that changes what the model computes, and has one value that is known here."""

    value: Any

    def check(self, key: str, value: Any) -> None:
        if value != self.value:
            raise ConfigError(
                f"{key}={format_value(value)}: this model computes otherwise, and only {format_value(self.value)} is "
                "known here; take weights that were trained with that"
            )


NO = Always(False)


class Blocks(TypedDict):
    """The sizes of blocks, by the names that most families give them."""

    hidden_size: Annotated[int, SIZE]
    num_hidden_layers: Annotated[int, SIZE]
    num_attention_heads: Annotated[int, SIZE]
    intermediate_size: Annotated[int, SIZE]
    hidden_act: Annotated[str, ACTIVATION]


class BlockOptions(Blocks, total=False):
    """The keys that most families may leave out."""

    hidden_dropout_prob: Annotated[float, FRACTION]
    attention_probs_dropout_prob: Annotated[float, FRACTION]


class _TextOptions(BlockOptions, total=False):
    classifier_dropout: Annotated[float, FRACTION] | None
    layer_norm_eps: Annotated[float, EPSILON]
    position_embedding_type: Annotated[str, Always("absolute")]
    is_decoder: Annotated[bool, NO]
    add_cross_attention: Annotated[bool, NO]
    tie_word_embeddings: Annotated[bool, Always(True)]


class TextKeys(_TextOptions):
    """The keys of BERT, and of families that are like it."""

    vocab_size: Annotated[int, SIZE]
    max_position_embeddings: Annotated[int, SIZE]
    type_vocab_size: Annotated[int, SIZE]


def name_activation(word: str) -> str:
    """Return the name of an activation that config.json calls `word`."""
    return _ACTIVATIONS[word]
