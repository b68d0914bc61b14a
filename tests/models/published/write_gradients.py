"""The gradients that PyTorch's autograd has of published folders, in float64.

python write_gradients.py PARENT ALPHA

Each folder in PARENT gets gradients.npz: by the name of the tensor, the gradient of the mean cross-entropy of LABELS
and the logits of draw_inputs. Nothing is dropped out. If there is an adapters.npz, by the names of PEFT, these adapters
and the head are trained, else all tensors. Run by a Python with torch, transformers and peft.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

from tests.models.published.folders import draw_inputs
from tests.models.published.in_float64 import in_float64

LABELS = [0, 2, 1, 2]
WRAPPERS = ("base_model.model.", ".default", ".modules_to_save")  # what PEFT puts into names


def write_gradients(path: Path, alpha: float) -> None:
    keys = json.loads((path / "config.json").read_text(encoding="utf-8"))
    architecture = getattr(transformers, keys["architectures"][0])
    model = architecture.from_pretrained(path, dtype=torch.float64).eval()
    if (path / "adapters.npz").exists():
        model = adapt(model, dict(np.load(path / "adapters.npz")), alpha)
    tokens, types = draw_inputs(keys["model_type"])
    words = np.where(tokens < 0, keys["pad_token_id"], tokens)
    given = {"input_ids": torch.tensor(words), "attention_mask": torch.tensor(tokens >= 0).long()}
    if types is not None:
        given["token_type_ids"] = torch.tensor(types)
    with in_float64(model):
        torch.nn.functional.cross_entropy(model(**given).logits, torch.tensor(LABELS)).backward()
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    np.savez(path / "gradients.npz", **{plain_name(name): each.grad.numpy() for name, each in trained.items()})


def adapt(model: torch.nn.Module, adapters: dict[str, np.ndarray], alpha: float) -> peft.PeftModel:
    """Return the model with these adapters."""
    heads = [name for name, each in model.named_children() if name != model.base_model_prefix and [*each.parameters()]]
    config = peft.LoraConfig(
        r=next(array.shape[0] for name, array in adapters.items() if name.endswith(".lora_A.weight")),
        lora_alpha=alpha,
        target_modules=sorted({name.rpartition(".lora_")[0] for name in adapters}),
        modules_to_save=heads,
    )
    adapted = peft.get_peft_model(model, config, autocast_adapter_dtype=False).eval()
    names = {plain_name(name): parameter for name, parameter in adapted.named_parameters() if "lora_" in name}
    if names.keys() != adapters.keys():
        raise ValueError(f"PEFT has the adapters {sorted(names)}, and not {sorted(adapters)}")
    with torch.no_grad():
        for name, parameter in names.items():
            parameter.copy_(torch.tensor(adapters[name]))
    return adapted.to(torch.float64)


def plain_name(name: str) -> str:
    """Return the name of a parameter without what PEFT puts into it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


if __name__ == "__main__":
    for folder in Path(sys.argv[1]).iterdir():
        write_gradients(folder, float(sys.argv[2]))
