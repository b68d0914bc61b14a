"""Accuracy of scikit-learn's logistic regression on frozen features of a published model, by PyTorch's transformers.

    python benchmarks/peers/frozen_features.py minilm mails 128

The feature of a text is the mean over its tokens, at most so many. `mails` has train.jsonl and test.jsonl, whose rows
have a text and, under another key, its class.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from transformers import AutoModel, AutoTokenizer  # type: ignore[attr-defined]

BATCH, POSITIVE = 32, "spam"


def features(folder: str, texts: list[str], length: int) -> np.ndarray:
    """Return the mean of the last hidden states of each text, float32 [N, C]."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for first in range(0, len(texts), BATCH):
            given = tokenizer(
                texts[first : first + BATCH], truncation=True, max_length=length, padding=True, return_tensors="pt"
            )
            shown = given["attention_mask"][..., None]
            found.append(((model(**given).last_hidden_state * shown).sum(1) / shown.sum(1)).numpy())
    return np.concatenate(found)


def main() -> None:
    folder, tables, length = sys.argv[1:]
    inputs, kinds = {}, {}
    for split in ("train", "test"):
        rows = [json.loads(line) for line in Path(tables, f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        (label,) = rows[0].keys() - {"text"}
        inputs[split] = features(folder, [row["text"] for row in rows], int(length))
        kinds[split] = [row[label] for row in rows]
    told = LogisticRegression(max_iter=5000).fit(inputs["train"], kinds["train"]).predict(inputs["test"])
    print(f"accuracy {float(np.mean(told == np.array(kinds['test']))):.4f}")
    if POSITIVE in told:
        print(f"F1 of {POSITIVE} {f1_score(kinds['test'], told, pos_label=POSITIVE):.4f}")


if __name__ == "__main__":
    main()
