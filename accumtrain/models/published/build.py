"""Models with the layers of a published architecture, whose variables are noted with their tensors in the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from accumtrain.backprop.mode import Mode
from accumtrain.backprop.model import Model, SplitInputs
from accumtrain.backprop.pullback import Module
from accumtrain.backprop.segments import Chain
from accumtrain.errors import ConfigError
from accumtrain.fields import format_value
from accumtrain.models.config import STORE
from accumtrain.models.layers import FLOATS_ONLY, Dense, Initializer, ModelSpec, Numerics
from accumtrain.models.published.architecture import (
    Architecture,
    ClassHeadNames,
    NextHeadNames,
    PatchEmbedding,
    TokenEmbedding,
    TokenHeadNames,
)
from accumtrain.models.published.config import PretrainedConfig
from accumtrain.models.published.lora import ADAPTER_ENDINGS, LoraLinear
from accumtrain.models.published.tensors import AS_IS, OF_ONE, TURNED, Form, NamedVariables, Tensor, of_patches
from accumtrain.models.transformers.activations import ACTIVATIONS
from accumtrain.models.transformers.attention import Attention
from accumtrain.models.transformers.blocks import NORMS, AddTo
from accumtrain.models.transformers.build import split_documents
from accumtrain.models.transformers.dropout import Dropout
from accumtrain.models.transformers.embed import DEVIATION, EmbedText, TokenTable, cut_patches
from accumtrain.models.transformers.heads import LastTokenHead, NextTokenHead, TokenHead
from accumtrain.models.transformers.layers import Beside, Cast, LayerNorm, Layers, Linear, RMSNorm
from accumtrain.models.transformers.rotary import Rotary

Norm = TypeVar("Norm", LayerNorm, RMSNorm)


class PublishedModel(Model):
    """A model whose variables belong to tensors of a published file.

    Attributes:
        config: its keys.
        tensors: the tensor of each variable, by the path of the variable.
    """

    config: PretrainedConfig
    tensors: Mapping[str, Tensor]

    @property
    def adapted(self) -> list[LoraLinear]:
        """The linear layers that have an adapter."""
        return [layer for layer in self.submodules if isinstance(layer, LoraLinear)]

    @property
    def added(self) -> frozenset[str]:
        kernels = {id(kernel) for layer in self.adapted for kernel in layer.kernels}
        return frozenset(path for path, variable in self.named.items() if id(variable) in kernels)


def build_pretrained(config: PretrainedConfig, spec: ModelSpec) -> PublishedModel:
    """Build the model of a folder, with initial values.

    Raises:
        ConfigError: the data has other images, longer texts or more tokens than the model takes, the task asks for
            other tokens than the model tells, or model.lora_targets names no layer of it.
    """
    found = config.found
    _check_data(config, found, spec)
    spec.check_told(f"model.path={config.path}", causal=found.next_head is not None)
    parts = _Parts(config, spec)
    embedding = [parts.embed(), *parts.dropout(parts.rates.embedding)]
    segments = [Chain("store" if config.policy == STORE else "recompute", embedding)]
    for number in range(found.depth):
        memory = config.policy if number < found.depth - config.kept_blocks else STORE
        block = parts.block(number)
        segments.append(Chain(memory, block, twice=len(block) // 2))  # attention, so that the MLP's peak is without it
    segments.append(Chain("store", [parts.head()]))
    model = PublishedModel(segments, spec.compute_dtype, _find_split(found))
    model.config, model.tensors = config, parts.noted.by_path(model.named)
    if config.adapters is not None:
        added = model.added
        if not added:
            raise ConfigError(
                f"model.lora_targets={format_value(config.lora_targets)}: a model that tells masked tokens has none of "
                "these layers; give others, or leave it out for queries and values"
            )
        body = [path for path, tensor in model.tensors.items() if found.is_of_body(tensor.name)]
        model.freeze(path for path in body if path not in added)
    return model


def _check_data(config: PretrainedConfig, found: Architecture, spec: ModelSpec) -> None:
    embedding, given = found.embedding, f"model.path={config.path}"
    if isinstance(embedding, PatchEmbedding):
        expected = (embedding.height, embedding.width, embedding.channels)
        if spec.shape != expected:
            sides = [embedding.height, embedding.width]
            size = sides[0] if sides[0] == sides[1] else format_value(sides)
            raise ConfigError(
                f"{given}: takes images of {list(expected)}, and those of the data are {list(spec.shape)}; give "
                f"data.image_size={size}, and images of {embedding.channels} channels"
            )
        return
    spec.check_tokens(given, embedding.vocabulary, embedding.longest)


class EmbedTokens(tf.Module):
    """Tokens, their types and positions, then a layer norm: int32 [N, T] to [N, T, C] in the dtype of the weights.

    Types are `mode.side["types"]`, int32 [N, T]; without them all tokens have type 0.
    """

    def __init__(self, init: Initializer, table: TokenTable, names: TokenEmbedding, width: int, epsilon: float):
        super().__init__()
        self.tokens, self.first = table, names.first_position
        self.types = init.normal((names.types, width), DEVIATION, "types") if names.types else None
        self.positions = init.normal((names.positions, width), DEVIATION, "positions")
        self.norm = LayerNorm(init, width, epsilon=epsilon)

    def __call__(self, tokens: tf.Tensor, mode: Mode) -> tf.Tensor:
        x = self.tokens(tokens, mode)
        if self.types is not None:
            types = mode.side.get("types")
            x = x + (self.types[:1] if types is None else tf.gather(tf.convert_to_tensor(self.types), types))
        return self.norm(x + self.positions[self.first : self.first + tf.shape(x)[1]], mode)


class EmbedPatches(tf.Module):
    """Patches behind learned tokens, plus positions: [N, H, W, channels] to [N, T, C] in the dtype of the weights."""

    def __init__(self, init: Initializer, names: PatchEmbedding, width: int):
        super().__init__()
        self.patch, self.dtype = names.patch, init.dtype
        self.linear = Linear(init, names.patch**2 * names.channels, width)
        self.tokens = [init.normal((1, width), DEVIATION, "token") for _ in names.tokens]
        self.positions = init.normal((names.positions, width), DEVIATION, "positions")

    def __call__(self, images: tf.Tensor, mode: Mode) -> tf.Tensor:
        patches = tf.cast(self.linear(cut_patches(images, self.patch), mode), self.dtype)
        first = tf.tile(tf.concat(self.tokens, axis=0)[tf.newaxis], [tf.shape(patches)[0], 1, 1])
        return tf.concat([first, patches], axis=1) + self.positions


class FirstToken(tf.Module):
    """From [N, T, C] to logits [N, classes] by the first token, in the dtype of the weights.

    Args:
        before: layers between the token and the logits.
    """

    def __init__(self, before: Layers, logits: Dense):
        super().__init__()
        self.before, self.logits = before, logits

    def __call__(self, x: tf.Tensor, mode: Mode) -> tf.Tensor:
        return self.logits.predict(self.before(x[:, 0], mode), mode)


class _Parts:
    """Builds the parts of a model, and notes the tensors of their variables."""

    def __init__(self, config: PretrainedConfig, spec: ModelSpec):
        self.found, self.given, self.spec, self.init = config.found, config.adapters, spec, spec.init
        self.rates, self.dropouts, self.noted = config.rates, count(), NamedVariables()

    def dropout(self, rate: float | None) -> list[Dropout]:
        """Return a layer with draws of its own; none where the family has none. Paths are the same for every rate."""
        return [] if rate is None else [Dropout(rate, next(self.dropouts))]

    def linear(self, name: str, inputs: int, outputs: int, form: Form = TURNED, *, has_bias: bool = True) -> Linear:
        layer: Linear
        if self.given is not None and name in self.given.layers:
            layer = LoraLinear(
                self.init, inputs, outputs, self.given, *self.dropout(self.given.dropout), has_bias=has_bias
            )
            for kernel, ending in zip(layer.kernels, ADAPTER_ENDINGS, strict=True):
                self.noted.note(kernel, f"{name}{ending}", TURNED)
        else:
            layer = Linear(self.init, inputs, outputs, has_bias=has_bias)
        self.noted.note(layer.kernel, f"{name}.weight", form)
        self.noted.note(layer.bias, f"{name}.bias")
        return layer

    def norm(self, name: str, numerics: Numerics = FLOATS_ONLY) -> LayerNorm | RMSNorm:
        layer = NORMS[self.found.norm](self.init, self.found.width, numerics, epsilon=self.found.epsilon)
        return self.note_norm(layer, name)

    def note_norm(self, layer: Norm, name: str) -> Norm:
        self.noted.note(layer.gamma, f"{name}.weight")
        if isinstance(layer, LayerNorm):
            self.noted.note(layer.beta, f"{name}.bias")
        return layer

    def embed(self) -> EmbedTokens | EmbedText | EmbedPatches:
        names, width = self.found.embedding, self.found.width
        if isinstance(names, PatchEmbedding):
            return self.embed_patches(names)
        self.table = TokenTable(self.init, names.vocabulary, width)
        self.noted.note(self.table.embedding, f"{names.token_table}.weight")
        tokens: EmbedTokens | EmbedText
        if names.norm is None:
            rows = None if names.position_table is None else names.positions
            tokens = EmbedText(self.init, self.table, rows, width)
        else:
            tokens = EmbedTokens(self.init, self.table, names, width, self.found.epsilon)
            self.noted.note(tokens.types, f"{names.type_table}.weight")
            self.note_norm(tokens.norm, names.norm)
        self.noted.note(tokens.positions, f"{names.position_table}.weight")
        return tokens

    def embed_patches(self, names: PatchEmbedding) -> EmbedPatches:
        patches = EmbedPatches(self.init, names, self.found.width)
        self.noted.note(patches.linear.kernel, f"{names.projection}.weight", of_patches(names.patch, names.channels))
        self.noted.note(patches.linear.bias, f"{names.projection}.bias")
        self.noted.note(patches.positions, names.position_table, OF_ONE)
        for token, name in zip(patches.tokens, names.tokens, strict=True):
            self.noted.note(token, name, OF_ONE)
        return patches

    def block(self, number: int) -> list[Module]:
        """Return the layers of a block, whose norms come first, or behind the sums."""
        found, names, width = self.found, self.found.block, self.found.width
        form = TURNED if found.turned else AS_IS

        def linear(name: str, inputs: int, outputs: int) -> Linear:
            return self.linear(name.format(number), inputs, outputs, form, has_bias=name not in names.unbiased)

        widths = zip(names.inward, found.inward_widths, strict=True)
        attention: list[Module] = [
            _beside([linear(name, width, outputs) for name, outputs in widths]),
            Attention(
                found.heads,
                *self.dropout(self.rates.shares),
                kv_heads=found.kv_heads,
                causal=found.next_head is not None,
                rotary=None if found.frequencies is None else Rotary(np.array(found.frequencies)),
            ),
            linear(names.attention_output, found.attention_width, width),
            *self.dropout(self.rates.attention_output),
        ]
        mlp: list[Module] = [
            _beside([linear(name, width, found.hidden) for name in names.hidden]),
            ACTIVATIONS[found.activation](),
            linear(names.output, found.hidden, width),
            *self.dropout(self.rates.output),
        ]
        parts = ((names.attention_norm, attention), (names.output_norm, mlp))
        if found.norm_first:
            computed = Numerics(self.spec.compute_dtype)
            return [AddTo(Layers([self.norm(name.format(number), computed), *layers])) for name, layers in parts]
        cast = Cast(self.spec.compute_dtype)
        return [
            layer
            for name, layers in parts
            for layer in (AddTo(Layers([cast, *layers])), self.norm(name.format(number)))
        ]

    def head(self) -> Module:
        names = self.found.token_head
        if not self.spec.tells:
            return self.class_head(self.found.class_head)
        assert names is not None, "all families of tokens have one"
        return self.next_head(names) if isinstance(names, NextHeadNames) else self.token_head(names)

    def class_head(self, names: ClassHeadNames) -> FirstToken | LastTokenHead:
        width, before = self.found.width, list[Module]()
        if self.found.next_head is not None:
            assert names.norm is not None, "all decoders have one"
            norm, logits = self.norm(names.norm), Dense(self.init, width, self.spec.num_classes, has_bias=False)
            self.noted.note(logits.kernel, f"{names.output}.weight", TURNED)
            return LastTokenHead(norm, logits)
        if names.norm is not None:
            before.append(self.norm(names.norm))
        if names.dense is not None:
            before += self.dropout(self.rates.dense)
            before += [self.linear(names.dense, width, width), ACTIVATIONS[names.activation]()]
        before += self.dropout(self.rates.logits)
        logits = Dense(self.init, width, self.spec.num_classes)
        self.noted.note(logits.kernel, f"{names.output}.weight", TURNED)
        self.noted.note(logits.bias, f"{names.output}.bias")
        return FirstToken(Layers(before), logits)

    def token_head(self, names: TokenHeadNames) -> TokenHead:
        width = self.found.width
        linear = self.linear(names.dense, width, width)
        activation, last_norm = ACTIVATIONS[names.activation](), self.norm(names.norm)
        assert isinstance(last_norm, LayerNorm)
        head = TokenHead(self.init, None, linear, activation, last_norm, self.table, self.spec.compute_dtype)
        self.noted.note(head.bias, names.bias, AS_IS)
        return head

    def next_head(self, names: NextHeadNames) -> NextTokenHead:
        norm, vectors = self.norm(names.norm), self.table.embedding
        if not names.tied:
            vectors = self.init.normal(tuple(vectors.shape), DEVIATION, "kernel")
            self.noted.note(vectors, names.vectors)
        return NextTokenHead(norm, None, vectors, self.spec.compute_dtype)


def _beside(layers: Sequence[Module]) -> Module:
    """Return layers of the same input as one."""
    return layers[0] if len(layers) == 1 else Beside(layers)


def _find_split(found: Architecture) -> SplitInputs | None:
    """Return the function from inputs to tokens and what layers read beside them; None of images."""
    embedding = found.embedding
    if isinstance(embedding, PatchEmbedding):
        return None
    return _split_tokens if found.next_head is None else partial(_split_rows, embedding.padding)


def _split_rows(padding: int | None, inputs: Any) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
    """Return what `split_documents` returns. The mask of tokens, by which the last one is found, hides padding, too."""
    tokens, side = split_documents(inputs)
    return tokens, side if padding is None else {**side, "mask": side["mask"] & (tokens != padding)}


def _split_tokens(inputs: Any) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
    """Return tokens, and what layers read beside them: their mask, and the types or positions of the inputs."""
    side = dict(inputs) if isinstance(inputs, Mapping) else {"tokens": inputs}
    tokens = side.pop("tokens")
    return tokens, {"mask": tokens >= 0, **side}
