"""A tokenizer of whole words, with special tokens around texts, made by the library tokenizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
SPECIAL = [("[CLS]", 1), ("[SEP]", 2)]
CLS_PAIR = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}


def make_tokenizer(post_processor: Any = None) -> Any:
    """The word at place n has the id n."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[CLS]", "[SEP]", "[MASK]"])
    if post_processor is not None:
        tokenizer.post_processor = post_processor
    return tokenizer


def template(**parts: str) -> Any:
    """The post-processor of a template, of [CLS] and [SEP]."""
    return pytest.importorskip("tokenizers").processors.TemplateProcessing(special_tokens=SPECIAL, **parts)


def save(tokenizer: Any, file: Path) -> str:
    tokenizer.save(str(file))
    return str(file)
