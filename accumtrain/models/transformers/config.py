"""The transformers: keys, rules and builder of each kind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from accumtrain.errors import ConfigError
from accumtrain.fields import COUNT, EACH, FRACTION, MASKED, NEXT, NOT_NEGATIVE, POSITIVE, OneOf, Role
from accumtrain.models.config import ANY, RULE, UP_TO, InBlocksConfig, ReversibleConfig
from accumtrain.registry import Entry

OF_TEXTS = {(2, 128, 2): "tiny", (4, 512, 8): "small", (12, 768, 12): "base"}  # sizes, as those of BERT
THETA = 10_000.0  # of rotary positions


@dataclass(kw_only=True)
class TransformerConfig(InBlocksConfig):
    """Pre-norm transformer: each block is attention and an MLP, both residual functions after a norm.

    `depth`: number of blocks.
    `width`: channels of each token; a multiple of model.heads.
    `heads`: attention heads of each block.
    `mlp_ratio`: hidden channels of an MLP, as a multiple of model.width.
    `drop_path`: stochastic depth (Huang et al. 2016, arXiv:1603.09382): probability that training skips the last
    residual function for an example. It rises linearly from the first function to the last.
    `layer_scale`: first value of a trained factor for each channel of a residual function; null: there is none.
    `kept_blocks`: number of blocks, the last ones, that keep all activations in spite of model.memory.
    """

    SIZES: ClassVar[dict[tuple[int, int, int], str]] = {}  # by depth, width and heads

    depth: Annotated[int, COUNT] = 12
    width: Annotated[int, COUNT] = 192
    heads: Annotated[int, COUNT] = 3
    mlp_ratio: Annotated[float, POSITIVE] = 4.0
    drop_path: Annotated[float, FRACTION, RULE] = 0.0
    layer_scale: Annotated[float | None, POSITIVE] = None
    kept_blocks: Annotated[int, NOT_NEGATIVE, Role.MEMORY] = 0

    @property
    def label(self) -> str:
        size = self.SIZES.get((self.depth, self.width, self.heads), f"{self.depth}x{self.width}")
        return f"{self.kind}_{size}"

    @property
    def hidden(self) -> int:
        """Channels inside an MLP."""
        return round(self.width * self.mlp_ratio)

    @property
    def blocks(self) -> int:
        return self.depth

    def check(self) -> None:
        super().check()
        if self.width % self.heads:
            raise ConfigError(
                f"model.width={self.width} and model.heads={self.heads}: each head has width / heads channels, a whole "
                f"number; use model.width={self.heads * max(1, round(self.width / self.heads))}"
            )
        if self.hidden < 1:
            raise ConfigError(f"model.mlp_ratio={self.mlp_ratio}: leaves an MLP no channel; use model.mlp_ratio=4")
        self.check_kept_blocks(of=" (model.depth)")


@dataclass(kw_only=True)
class PooledConfig(TransformerConfig):
    """Transformer whose tokens attend to all others, with layer norms.

    `positions`: learned: a trained vector for each position. sincos: fixed sines and cosines.
    `pool`: token: a class token stands for the example. mean: the mean over its tokens does.
    """

    positions: Annotated[str, OneOf(("learned", "sincos"))] = "learned"
    pool: Annotated[str, OneOf(("token", "mean"))] = "token"

    @property
    def has_class_token(self) -> bool:
        return self.pool == "token"

    def check(self) -> None:
        super().check()
        if self.positions == "sincos" and self.width % 4:
            raise ConfigError(
                f"model.width={self.width}: model.positions=sincos takes a multiple of 4; use model.positions=learned"
            )


@dataclass(kw_only=True)
class ViTConfig(PooledConfig):
    """Vision transformer (Dosovitskiy et al. 2020, arXiv:2010.11929).

    `patch`: height and width of a patch, in pixels. Those of an image are multiples of it.
    """

    SIZES: ClassVar[dict[tuple[int, int, int], str]] = {
        (12, 192, 3): "tiny",
        (12, 384, 6): "small",
        (12, 768, 12): "base",
    }
    reversible_twin: ClassVar[str] = "a reversible one such as model=revvit_tiny"

    kind: str = "vit"
    patch: Annotated[int, COUNT] = 16


@dataclass(kw_only=True)
class RevViTConfig(ReversibleConfig, ViTConfig):
    """Reversible vision transformer (Mangalam et al. 2022, arXiv:2302.04869), reversed to the bit.

    Both streams begin as the embeddings. Attention reads one and is added to the other, then the MLP the other way.
    """

    kind: str = "revvit"


@dataclass(kw_only=True)
class EncoderConfig(PooledConfig):
    """Text encoder of the sizes of BERT (Devlin et al. 2018, arXiv:1810.04805), with the layer norm first in a block.

    With task=masked_tokens it tells the tokens at masked positions.
    """

    SIZES: ClassVar[dict[tuple[int, int, int], str]] = OF_TEXTS
    takes: ClassVar[str] = "tokens"
    tells: ClassVar[tuple[str | None, ...]] = (None, MASKED, EACH)
    reversible_twin: ClassVar[str] = "a reversible one such as model=revencoder_tiny"

    kind: str = "encoder"
    depth: Annotated[int, COUNT] = 2
    width: Annotated[int, COUNT] = 128
    heads: Annotated[int, COUNT] = 2
    pool: Annotated[str, OneOf(("token", "mean"))] = "mean"


@dataclass(kw_only=True)
class RevEncoderConfig(ReversibleConfig, EncoderConfig):
    """Reversible text encoder: two streams, as in a reversible vision transformer."""

    kind: str = "revencoder"


@dataclass(kw_only=True)
class DecoderConfig(TransformerConfig):
    """Causal decoder of texts: a token attends to those before it. By default it is built as Llama (arXiv:2302.13971).

    A class is told from the last token of a text. GPT-2 is model.norm=layer model.positions=learned
    model.activation=gelu model.mlp_ratio=4 model.bias=true.

    `kv_heads`: heads of keys and values, each for model.heads / model.kv_heads heads of queries (Ainslie et al. 2023,
    arXiv:2305.13245). null: as many as model.heads.
    `norm`: rms: RMS norm (Zhang & Sennrich 2019, arXiv:1910.07467). layer: layer norm.
    `positions`: rotary: queries and keys are turned by angles that grow with the position (Su et al. 2021,
    arXiv:2104.09864). learned: a trained vector for each position.
    `theta`: rotary positions turn by angles from 1 down to about 1 / theta for each token.
    `activation`: swiglu: gated MLPs (Shazeer 2020, arXiv:2002.05202). gelu: plain ones.
    `bias`: linear layers have a bias.
    `tied`: the table of tokens is also the kernel of the logits of tokens. false: these have a kernel of their own.
    """

    SIZES: ClassVar[dict[tuple[int, int, int], str]] = OF_TEXTS
    takes: ClassVar[str] = "tokens"
    tells: ClassVar[tuple[str | None, ...]] = (None, NEXT)
    reversible_twin: ClassVar[str] = "a reversible one such as model=revdecoder_tiny"

    kind: str = "decoder"
    depth: Annotated[int, COUNT] = 2
    width: Annotated[int, COUNT] = 128
    heads: Annotated[int, COUNT] = 2
    kv_heads: Annotated[int | None, COUNT] = None
    mlp_ratio: Annotated[float, POSITIVE] = 2.75
    norm: Annotated[str, OneOf(("rms", "layer"))] = "rms"
    positions: Annotated[str, OneOf(("rotary", "learned"))] = "rotary"
    theta: Annotated[float, POSITIVE] = THETA
    activation: Annotated[str, OneOf(("swiglu", "gelu"))] = "swiglu"
    bias: bool = False
    tied: bool = True

    @property
    def lengths(self) -> str:
        return ANY if self.positions == "rotary" else UP_TO

    def check(self) -> None:
        super().check()
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ConfigError(
                f"model.kv_heads={self.kv_heads}: each serves as many of model.heads={self.heads}; use "
                f"model.kv_heads={math.gcd(self.heads, self.kv_heads)}"
            )
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ConfigError(
                f"model.width={self.width} and model.heads={self.heads}: model.positions=rotary turns pairs of the "
                f"{self.width // self.heads} channels of a head; use model.width={self.width + self.heads}, or "
                "model.positions=learned"
            )
        if self.positions == "learned" and self.theta != THETA:
            raise ConfigError(
                f"model.theta={self.theta}: model.positions=learned has no angles; leave it out, or use "
                "model.positions=rotary"
            )


@dataclass(kw_only=True)
class RevDecoderConfig(ReversibleConfig, DecoderConfig):
    """Reversible causal decoder: two streams, as in a reversible vision transformer."""

    kind: str = "revdecoder"


TRANSFORMERS: tuple[Entry[Any], ...] = (
    Entry(ViTConfig, "accumtrain.models.transformers.build:build_vit"),
    Entry(RevViTConfig, "accumtrain.models.transformers.build:build_vit"),
    Entry(EncoderConfig, "accumtrain.models.transformers.build:build_encoder"),
    Entry(RevEncoderConfig, "accumtrain.models.transformers.build:build_encoder"),
    Entry(DecoderConfig, "accumtrain.models.transformers.build:build_decoder"),
    Entry(RevDecoderConfig, "accumtrain.models.transformers.build:build_decoder"),
)
