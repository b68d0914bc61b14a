"""accumtrain's decoder in plain PyTorch, trained on given rows at given rates: the nats of each byte of the test texts.

python benchmarks/peers/torch_decoder.py FILE    # .npz of language_models.py; prints {"nats_per_byte": ...}
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

EPSILON, THETA = 1e-6, 10_000.0  # of norms and of rotary positions
NONE = -1  # in the place of a token that is not there
EVALUATED = 128  # rows at a time


class Block(nn.Module):
    """Causal attention and a gated MLP, each behind an RMS norm and added to its input [N, T, C]."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width, EPSILON)
        self.inputs, self.output = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, EPSILON)
        self.gates, self.mlp_output = nn.Linear(width, 2 * hidden, bias=False), nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, shown: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        rows, tokens, width = x.shape
        split = self.inputs(self.norm(x)).view(rows, tokens, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4).unbind()
        queries, keys = (turn(each, cosine, sine) for each in (queries, keys))
        y = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=shown)
        x = x + self.output(y.transpose(1, 2).reshape(rows, tokens, width))
        gate, value = self.gates(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.mlp_output(functional.silu(gate) * value)


class Decoder(nn.Module):
    """Packed rows of tokens and the numbers of their documents, both [N, T], to logits [N, T, V] by a tied table."""

    def __init__(self, vocabulary: int, depth: int, width: int, heads: int, hidden: int):
        super().__init__()
        self.table = nn.Parameter(torch.empty(vocabulary, width))
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(depth))
        self.norm = nn.RMSNorm(width, EPSILON)
        size = width // heads
        self.frequencies = THETA ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)

    def forward(self, tokens: Tensor, documents: Tensor) -> Tensor:
        shown = (documents[:, :, None] == documents[:, None, :]).tril()  # those before a token in its document
        angles = (shown.sum(-1) - 1)[:, None, :, None] * self.frequencies
        cosine, sine = angles.cos().float(), angles.sin().float()
        x = functional.embedding(tokens.clamp(min=0), self.table)
        for block in self.blocks:
            x = block(x, shown[:, None], cosine, sine)
        return functional.linear(self.norm(x), self.table)


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Return heads [N, heads, T, C] whose channels i and i + C / 2 are turned by their angle."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1)


def build_decoder(settings: Mapping[str, float], weights: list[np.ndarray]) -> Decoder:
    """Return the decoder with the given weights, in the order of its parameters; kernels are [inputs, outputs]."""
    vocabulary, width = weights[0].shape
    model = Decoder(vocabulary, int(settings["depth"]), width, int(settings["heads"]), int(settings["hidden"]))
    with torch.no_grad():
        for (name, parameter), value in zip(model.named_parameters(), weights, strict=True):
            is_kernel = name != "table" and value.ndim == 2
            parameter.copy_(torch.from_numpy(value.T if is_kernel else value))
    return model


def build_optimizer(settings: Mapping[str, float], model: Decoder) -> torch.optim.AdamW:
    """Return AdamW, which decays the weights of linear layers alone."""
    kernels = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    others = [model.table, *(module.weight for module in model.modules() if isinstance(module, nn.RMSNorm))]
    groups = [
        {"params": kernels, "weight_decay": settings["weight_decay"]},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=(settings["beta1"], settings["beta2"]), eps=settings["epsilon"])


def sum_losses(model: Decoder, rows: Tensor) -> Tensor:
    """Return the cross-entropy of all targets of rows [N, 3, T]: tokens, targets and documents."""
    tokens, targets, documents = rows.unbind(1)
    logits = model(tokens, documents)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NONE, reduction="sum")


def main() -> None:
    with np.load(sys.argv[1]) as file:
        given = dict(file)
    settings = json.loads(str(given["settings"]))
    model = build_decoder(settings, [given[f"weight{index}"] for index in range(settings["weights"])])
    optimizer = build_optimizer(settings, model)
    for rows, rate in zip(torch.from_numpy(given["batches"]).long(), given["rates"].tolist(), strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        (sum_losses(model, rows) / (rows[:, 1] != NONE).sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings["clip_norm"])
        optimizer.step()
    with torch.no_grad():
        tests = torch.from_numpy(given["test"]).long().split(EVALUATED)
        nats = math.fsum(float(sum_losses(model, rows)) for rows in tests)
    print(json.dumps({"nats_per_byte": nats / settings["test_bytes"]}))


if __name__ == "__main__":
    main()
