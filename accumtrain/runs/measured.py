"""What a summary says was measured, in the words of its last table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def measured(summary: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Loss and metrics of a summary, by what they were measured on, in words."""
    watched = watched_split(summary)
    titles = {"train": "train, last update", watched: watched, "best": f"best on {watched}"}
    if watched != "test":
        titles["test"] = "test, of the best"
    return {title: summary[split] for split, title in titles.items() if summary.get(split) is not None}


def watched_split(summary: Mapping[str, Any]) -> str:
    """The split that chose the best state; test where the summary does not say."""
    return summary.get("best_on") or "test"
