"""accumtrain's transformers in PyTorch, layer for layer, with PyTorch's attention.

Every model has `outputs`, the number of logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from sizes import EPSILON, MLP_RATIO, PATCH, Size
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from texts import Texts

THETA = 10_000.0  # of rotary positions
DEVIATION = 0.02  # of embeddings at the start


class Block(nn.Module):
    """Attention and MLP, each added to its input [N, T, C]; `shown` [N, 1, 1, T] are the keys that are no padding."""

    def __init__(self, size: Size):
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm, self.mlp_norm = norm(width), norm(width)
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        hidden = MLP_RATIO * width
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))

    def forward(self, x: Tensor, shown: Tensor | None) -> Tensor:
        examples, tokens, width = x.shape
        split = self.inputs(self.norm(x)).view(examples, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind()
        y = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=shown)
        x = x + self.output(y.transpose(1, 2).reshape(examples, tokens, width))
        return x + self.mlp(self.mlp_norm(x))


class VisionTransformer(nn.Module):
    """Images [N, 3, H, W] to logits [N, classes]."""

    def __init__(self, size: Size, image_size: int, classes: int):
        super().__init__()
        self.outputs = classes
        self.patches = nn.Conv2d(3, size.width, PATCH, PATCH)
        self.class_token = embedding(1, size.width)
        self.positions = embedding((image_size // PATCH) ** 2 + 1, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm, self.dense = norm(size.width), nn.Linear(size.width, classes)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(images), 1, -1)
        x = torch.cat([first, patches], dim=1) + self.positions
        for block in self.blocks:
            x = block(x, None)
        return self.dense(self.norm(x[:, 0]))


class Encoder(nn.Module):
    """Tokens [N, T] to logits [N, classes], or with positions [N, P] to those of masked tokens, [N, P, vocabulary]."""

    def __init__(self, size: Size, texts: Texts):
        super().__init__()
        width = size.width
        self.outputs = texts.outputs
        self.table, self.positions = embedding(texts.vocabulary, width), embedding(texts.tokens, width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.depth))
        self.norm = norm(width)
        if texts.task == "masked_tokens":
            self.linear, self.last_norm = nn.Linear(width, width), norm(width)
            self.bias = nn.Parameter(torch.zeros(texts.vocabulary))
        else:
            self.dense = nn.Linear(width, texts.outputs)

    def forward(self, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
        shown = tokens >= 0
        x = functional.embedding(tokens.clamp(min=0), self.table) + self.positions
        for block in self.blocks:
            x = block(x, shown[:, None, None, :])
        if positions is None:
            weights = shown.unsqueeze(-1).to(x.dtype)
            return self.dense((self.norm(x) * weights).sum(1) / weights.sum(1))
        rows = torch.arange(len(x), device=x.device).unsqueeze(1)
        told = self.norm(x[rows, positions.clamp(min=0)])
        return functional.linear(self.last_norm(functional.gelu(self.linear(told))), self.table, self.bias)


class DecoderBlock(nn.Module):
    """Causal attention and a gated MLP, each behind an RMS norm and added to its input [N, T, C]."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width, EPSILON)
        self.inputs, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, EPSILON)
        self.gates, self.mlp_output = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, shown: Tensor | None, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        split = self.inputs(self.norm(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind()
        queries, keys = (turn(each, cosine, sine) for each in (queries, keys))
        y = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=shown, is_causal=shown is None)
        x = x + self.output(y.transpose(1, 2).reshape(rows, tokens, width))
        gate, value = self.gates(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.mlp_output(functional.silu(gate) * value)


class Decoder(nn.Module):
    """Tokens, of packed rows with the numbers of their documents, both [N, T], to logits [N, T, V] by a tied table."""

    def __init__(self, vocabulary: int, depth: int, width: int, heads: int, hidden: int):
        super().__init__()
        self.outputs = vocabulary
        self.table = embedding(vocabulary, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width, EPSILON)
        size = width // heads
        self.frequencies = THETA ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(self, tokens: Tensor, documents: Tensor | None = None) -> Tensor:
        shown, places = None, torch.arange(tokens.shape[1])
        if documents is not None:
            same = (documents[:, :, None] == documents[:, None, :]).tril()  # those before a token in its document
            shown, places = same[:, None], (same.sum(-1) - 1)[:, None]
        angles = places[..., None] * self.frequencies
        cosine, sine = angles.cos().float(), angles.sin().float()
        x = functional.embedding(tokens.clamp(min=0), self.table)
        for block in self.blocks:
            x = block(x, shown, cosine, sine)
        return functional.linear(self.norm(x), self.table)


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return heads [N, heads, T, C] whose channels i and i + C / 2 are turned by their angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(x.dtype)


def norm(width: int) -> nn.LayerNorm:
    return nn.LayerNorm(width, eps=EPSILON)


def embedding(count: int, width: int) -> nn.Parameter:
    return nn.Parameter(DEVIATION * torch.randn(count, width))
