"""The report of job=evaluate about tokens."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from accumtrain.console import say, table

SHOWN, WRITTEN = 15, 100  # tokens that are printed, and that are written down


@dataclass(frozen=True)
class TokenResult:
    """The answers at all positions of a token: mean loss in nats, the part of all losses, the share of right ones."""

    token: str
    positions: int
    loss: float
    part_of_loss: float
    accuracy: float


@dataclass(frozen=True)
class TokenReport:
    """The results of tokens, the largest part of the loss first."""

    results: list[TokenResult]

    def describe(self) -> dict[str, Any]:
        return {"tokens": [asdict(result) for result in self.results[:WRITTEN]]}

    def show(self) -> None:
        rows = [
            (
                repr(result.token),
                f"{result.positions:,}",
                f"{result.loss:.4f}",
                f"{result.part_of_loss:.2%}",
                f"{result.accuracy:.4f}",
            )
            for result in self.results[:SHOWN]
        ]
        titles = ("token", "positions", "loss", "part of the loss", "accuracy")
        table("tokens, largest part of the loss first", titles, rows)
        if len(self.results) > SHOWN:
            say(f"... and {len(self.results) - SHOWN:,} more")

    def draw(self, title: str, folder: Path, end: str) -> list[Path]:
        """Draw nothing."""
        return []
