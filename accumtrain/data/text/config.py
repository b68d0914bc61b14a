"""The way in which texts become the rows of tokens that a causal model learns: `DocumentRows`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DocumentRows:
    """Rows of pairs of a token and the next one, for which each text is a document.

    Attributes:
        packing: Documents stand one behind the other. If not, each begins a row.
        end: The token that ends each document, as the tokenizer's file writes it; None finds it.
    """

    packing: bool = True
    end: str | None = None
