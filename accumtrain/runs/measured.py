"""What a summary says was measured, in the words of its last table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def measured(summary: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Loss and metrics of a summary, by what they were measured on, in words."""
    best_on = summary["best_on"]
    titles = {"train": "train, last update", best_on: best_on, "best": f"best on {best_on}"}
    if best_on != "test":
        titles["test"] = "test, of the best"
    return {title: summary[split] for split, title in titles.items() if summary.get(split) is not None}
