"""`Architecture`: the sizes of a published transformer, and the names of its tensors in the file.

A family reads one of its config.json. Names are those of the whole model in PyTorch's transformers, without the ending
weight or bias. In the names of a block, {} stands for its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BlockNames:
    """The layers of a block."""

    query: str
    key: str
    value: str
    attention_output: str
    attention_norm: str
    hidden: str
    output: str
    output_norm: str


@dataclass(frozen=True)
class TokenEmbedding:
    """From tokens to vectors: token + type + position, then a layer norm.

    Attributes:
        vocabulary: number of tokens.
        positions: number of rows of the table of positions.
        first_position: row of the first token's position.
        types: number of types of tokens; 0 if there is no table of them.
    """

    vocabulary: int
    positions: int
    first_position: int
    types: int
    token_table: str
    position_table: str
    type_table: str
    norm: str

    inputs = "tokens"

    @property
    def longest(self) -> int:
        """Number of tokens of the longest text."""
        return self.positions - self.first_position


@dataclass(frozen=True)
class PatchEmbedding:
    """From pixels to vectors: patches behind learned tokens, plus positions.

    Attributes:
        height: of the images, in pixels.
        width: of the images, in pixels.
        patch: height and width of a patch, in pixels.
        tokens: names of the learned tokens; the first stands for the image.
    """

    height: int
    width: int
    channels: int
    patch: int
    tokens: tuple[str, ...]
    position_table: str
    projection: str

    inputs = "pixels"

    @property
    def positions(self) -> int:
        return len(self.tokens) + (self.height // self.patch) * (self.width // self.patch)


@dataclass(frozen=True)
class ClassHeadNames:
    """From the first vector to logits: maybe a layer norm, maybe a linear layer with an activation, then a linear one.

    Attributes:
        activation: of `dense`; a name of ACTIVATIONS in models/transformers/activations.py.
    """

    output: str
    norm: str | None = None
    dense: str | None = None
    activation: str = "tanh"


@dataclass(frozen=True)
class TokenHeadNames:
    """From the vectors of masked tokens to logits: linear, activation, layer norm, and the table of tokens.

    Attributes:
        bias: the whole name of the tensor.
    """

    dense: str
    activation: str
    norm: str
    bias: str


@dataclass(frozen=True)
class DropoutRates:
    """The rates of dropout in training. None: the family drops nothing out at that place.

    Attributes:
        embedding: behind the embedding.
        shares: of the shares of keys in attention.
        attention_output: behind the last linear layer of attention.
        output: behind the last linear layer of an MLP.
        dense: before the first linear layer of the class head.
        logits: before the last one.
    """

    embedding: float
    shares: float
    attention_output: float | None
    output: float
    dense: float | None
    logits: float | None

    def with_rate(self, rate: float) -> DropoutRates:
        """Return the same rate for all places of the family."""
        return replace(self, **{place: rate for place, found in vars(self).items() if found is not None})


@dataclass(frozen=True)
class Architecture:
    """A transformer as its folder describes it.

    Attributes:
        name: of the family, as its classes begin in PyTorch's transformers.
        prefix: of the names of all tensors but those of heads. A file of the model without a head leaves it out.
        depth: number of blocks.
        width: channels of each token.
        heads: attention heads of each block.
        hidden: channels inside an MLP.
        activation: of the MLPs; a name of ACTIVATIONS in models/transformers/activations.py.
        epsilon: of the layer norms.
        norm_first: a block's norms come before attention and MLP. If not, they come behind each sum.
        has_attention_bias: queries, keys and values have a bias.
        token_head: None if the family has none.
    """

    name: str
    prefix: str
    depth: int
    width: int
    heads: int
    hidden: int
    activation: str
    epsilon: float
    norm_first: bool
    embedding: TokenEmbedding | PatchEmbedding
    block: BlockNames
    class_head: ClassHeadNames
    dropout: DropoutRates
    token_head: TokenHeadNames | None = None
    has_attention_bias: bool = True

    def list_linears(self) -> list[str]:
        """Return the names of the linear layers of the body: those of the blocks, and of a pooler."""
        names = self.block
        each = (names.query, names.key, names.value, names.attention_output, names.hidden, names.output)
        found = [name.format(number) for number in range(self.depth) for name in each]
        pooler = self.class_head.dense
        return found if pooler is None or not self.is_of_body(pooler) else [*found, pooler]

    def is_of_body(self, name: str) -> bool:
        """Return whether a tensor or layer is none of a head."""
        return name.startswith(self.prefix)

    def list_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape in the file of the large tensors, which config.json must agree with."""
        embedding, width = self.embedding, self.width
        if isinstance(embedding, TokenEmbedding):
            yield f"{embedding.token_table}.weight", (embedding.vocabulary, width)
            yield f"{embedding.position_table}.weight", (embedding.positions, width)
            if embedding.types:
                yield f"{embedding.type_table}.weight", (embedding.types, width)
        else:
            yield embedding.position_table, (1, embedding.positions, width)
            yield f"{embedding.projection}.weight", (width, embedding.channels, embedding.patch, embedding.patch)
        names = self.block
        for number in range(self.depth):
            for name in (names.query, names.key, names.value, names.attention_output):
                yield f"{name.format(number)}.weight", (width, width)
            yield f"{names.hidden.format(number)}.weight", (self.hidden, width)
            yield f"{names.output.format(number)}.weight", (width, self.hidden)
