"""The facts of a manifest that no training has written."""

from typing import Any

FACTS: dict[str, Any] = {
    "learned": {},
    "data": {"data.train.examples": 8},
    "inputs": {"kind": "arrays", "shape": [1], "vocabulary": 0},
    "weights": {},
    "examples": 0,
    "epochs": "0",
    "epoch_sums": [],
    "total_steps": 1,
    "recovery": {"skipped": 0, "rollbacks": 0},
    "hooks": {"kept": {}, "finished": None, "total": 1},
}
