"""`Architecture`: the sizes of a published transformer, and the names of its tensors in the file.

A family reads one of its config.json. Names are those of the whole model in PyTorch's transformers, without the ending
weight or bias. In the names of a block, {} stands for its number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class BlockNames:
    """The layers of a block.

    Attributes:
        inward: those of queries, keys and values; or the one layer that computes all of them.
        hidden: into the MLP: one layer, or those of the gates and of the values of a gated MLP.
        unbiased: those of all these that have no bias.
    """

    inward: tuple[str, ...]
    attention_output: str
    attention_norm: str
    hidden: tuple[str, ...]
    output: str
    output_norm: str
    unbiased: tuple[str, ...] = ()


@dataclass(frozen=True)
class TokenEmbedding:
    """From tokens to vectors: token + type + position, then a layer norm.

    Attributes:
        vocabulary: number of tokens.
        positions: number of rows of the table of positions; without a table the most tokens of a text.
        position_table: None if attention turns queries and keys by their positions.
        first_position: row of the first token's position.
        types: number of types of tokens; 0 if there is no table of them.
        norm: None if there is none.
        padding: the id that tells no class, even where it ends a text; None if all do.
    """

    vocabulary: int
    positions: int
    token_table: str
    position_table: str | None
    first_position: int = 0
    types: int = 0
    type_table: str = ""
    norm: str | None = None
    padding: int | None = None

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
    """From one vector to logits: maybe a norm, maybe a linear layer with an activation, then a linear one.

    The vector is that of the first token, or in a decoder that of the last one, which has read all others.

    Attributes:
        output: the last layer. In a decoder it has no bias.
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
class NextHeadNames:
    """From the vector of each token of a decoder to logits of the one behind it: a norm, and vectors of all tokens.

    Attributes:
        model: the class of the whole model in PyTorch's transformers.
        vectors: the whole name of their tensor.
        tied: they are the table of tokens, and a file may leave them out.
    """

    model: str
    norm: str
    vectors: str
    tied: bool


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

    embedding: float | None
    shares: float
    attention_output: float | None
    output: float | None
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
        epsilon: of the norms.
        norm_first: a block's norms come before attention and MLP. If not, they come behind each sum.
        token_head: None if the family has none. Attention is causal in a model that tells next tokens.
        norm: a name of NORMS in models/transformers/blocks.py.
        turned: kernels of blocks are [out, in] in the file, and not [in, out].
        kv_heads: of keys and values; None: as many as `heads`.
        head_width: channels of each head; None: the heads share `width`.
        frequencies: of rotary positions, in angles for each token; None if there are none.
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
    token_head: TokenHeadNames | NextHeadNames | None = None
    norm: str = "layer"
    turned: bool = True
    kv_heads: int | None = None
    head_width: int | None = None
    frequencies: tuple[float, ...] | None = None

    @property
    def next_head(self) -> NextHeadNames | None:
        """The head of a decoder; None of an encoder."""
        return self.token_head if isinstance(self.token_head, NextHeadNames) else None

    @property
    def attention_width(self) -> int:
        """Channels of all heads of queries."""
        return self.width if self.head_width is None else self.heads * self.head_width

    @property
    def inward_widths(self) -> list[int]:
        """Outputs of each layer of `block.inward`."""
        of_keys = self.attention_width * (self.kv_heads or self.heads) // self.heads
        each = [self.attention_width, of_keys, of_keys]
        return [sum(each)] if len(self.block.inward) == 1 else each

    def list_linears(self) -> list[str]:
        """Return the names of the linear layers of the body: those of the blocks, and of a pooler."""
        names = self.block
        each = (*names.inward, names.attention_output, *names.hidden, names.output)
        found = [name.format(number) for number in range(self.depth) for name in each]
        pooler = self.class_head.dense
        return found if pooler is None or not self.is_of_body(pooler) else [*found, pooler]

    def is_of_body(self, name: str) -> bool:
        """Return whether a tensor or layer is none of a head. The vectors of next tokens are as the table of tokens."""
        return name.startswith(self.prefix) or (self.next_head is not None and name == self.next_head.vectors)

    def list_shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape in the file of the large tensors, which config.json must agree with."""
        embedding, width = self.embedding, self.width
        if isinstance(embedding, TokenEmbedding):
            yield f"{embedding.token_table}.weight", (embedding.vocabulary, width)
            if embedding.position_table is not None:
                yield f"{embedding.position_table}.weight", (embedding.positions, width)
            if embedding.types:
                yield f"{embedding.type_table}.weight", (embedding.types, width)
        else:
            yield embedding.position_table, (1, embedding.positions, width)
            yield f"{embedding.projection}.weight", (width, embedding.channels, embedding.patch, embedding.patch)
        names = self.block
        kernels = [
            *((name, width, outputs) for name, outputs in zip(names.inward, self.inward_widths, strict=True)),
            (names.attention_output, self.attention_width, width),
            *((name, width, self.hidden) for name in names.hidden),
            (names.output, self.hidden, width),
        ]
        for number in range(self.depth):
            for name, inputs, outputs in kernels:
                yield f"{name.format(number)}.weight", (outputs, inputs) if self.turned else (inputs, outputs)
