"""Accuracy of scikit-learn's logistic regression on frozen features of a published model, by PyTorch's transformers.

    python benchmarks/peers/frozen_features.py minilm mails

The feature of a text is the mean over its tokens, at most 128, and `mails` has train.jsonl and test.jsonl.
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

LENGTH, BATCH, POSITIVE = 128, 32, "spam"


def features(folder: str, texts: list[str]) -> np.ndarray:
    """Return the mean of the last hidden states of each text, float32 [N, C]."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.no_grad():
        for first in range(0, len(texts), BATCH):
            given = tokenizer(
                texts[first : first + BATCH], truncation=True, max_length=LENGTH, padding=True, return_tensors="pt"
            )
            shown = given["attention_mask"][..., None]
            found.append(((model(**given).last_hidden_state * shown).sum(1) / shown.sum(1)).numpy())
    return np.concatenate(found)


def main() -> None:
    folder, tables = sys.argv[1:]
    inputs, kinds = {}, {}
    for split in ("train", "test"):
        rows = [json.loads(line) for line in Path(tables, f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]
        inputs[split] = features(folder, [row["text"] for row in rows])
        kinds[split] = [row["kind"] for row in rows]
    told = LogisticRegression(max_iter=5000).fit(inputs["train"], kinds["train"]).predict(inputs["test"])
    accuracy = float(np.mean(told == np.array(kinds["test"])))
    print(f"accuracy {accuracy:.4f}, F1 of {POSITIVE} {f1_score(kinds['test'], told, pos_label=POSITIVE):.4f}")


if __name__ == "__main__":
    main()
