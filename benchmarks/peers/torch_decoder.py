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
from torch_transformers import Decoder

NONE = -1  # in the place of a token that is not there
EVALUATED = 128  # rows at a time


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
