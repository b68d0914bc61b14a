"""Open the adapters in a folder with PEFT, and make others there; only where torch, transformers and peft are.

Run as a program with the folder: `base` is the published one, `ours` the adapters. Logits go to ours.npy, and PEFT's
own adapters, with their logits, to `theirs` and theirs.npy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, TaskType, get_peft_model


def main(folder: Path) -> None:
    tokens = np.load(folder / "tokens.npy")
    given = {"input_ids": torch.tensor(np.maximum(tokens, 0)), "attention_mask": torch.tensor(tokens >= 0).long()}

    def base() -> torch.nn.Module:
        # mypy takes benchmarks/transformers.py for the library
        found = transformers.AutoModelForSequenceClassification  # type: ignore[attr-defined]
        return found.from_pretrained(folder / "base").double()

    def save_logits(model: torch.nn.Module, name: str) -> None:
        with torch.no_grad():
            np.save(folder / name, model.double().eval()(**given).logits.numpy())

    save_logits(PeftModel.from_pretrained(base(), folder / "ours"), "ours.npy")
    torch.manual_seed(0)
    config = LoraConfig(task_type=TaskType.SEQ_CLS, r=3, lora_alpha=6, target_modules=sys.argv[2].split(","))
    model = get_peft_model(base(), config)
    for name, weights in model.named_parameters():
        if "lora_B" in name or "modules_to_save" in name:
            torch.nn.init.normal_(weights, std=0.2)
    model.save_pretrained(folder / "theirs")
    save_logits(model, "theirs.npy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
