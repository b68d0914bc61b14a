"""Damaged JPEGs: the decoder warns of their data on stderr, and goes on with wrong pixels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

from accumtrain.data.images.encoded import EncodedSplit, StoredExample
from accumtrain.data.source import BadExample, Split, UnreadableExample
from accumtrain.process.logs import caught_stderr
from accumtrain.progress import counting

_CHUNK = 256  # examples that are decoded together
# the warnings of libjpeg about the data of an image
_WARNING = re.compile(r"Corrupt JPEG data|Premature end of JPEG|Inconsistent progression|Invalid SOS parameters")


def inspect_all(split: EncodedSplit) -> Iterator[list[StoredExample | BadExample]]:
    """Yield all examples as they are stored, or why they can't be used, in chunks. Each is decoded."""

    def inspect(index: int) -> StoredExample | BadExample:
        try:
            return split.inspect(index)
        except BadExample as bad:
            return bad

    def inspect_alone(index: int) -> StoredExample | BadExample:
        with caught_stderr() as (captured, _):
            example = inspect(index)
            warnings, _others = _read_warnings(captured)
        if isinstance(example, BadExample) or not warnings:
            return example
        return UnreadableExample(split.name(index), f"is damaged, though it can be decoded: {warnings[0]}")

    with ThreadPoolExecutor() as pool:
        for start in range(0, split.size, _CHUNK):
            chunk = range(start, min(start + _CHUNK, split.size))
            with caught_stderr() as (captured, stderr):
                examples = list(pool.map(inspect, chunk))
                warnings, others = _read_warnings(captured)
                os.write(stderr, "".join(others).encode())
            # warnings do not name the image
            yield list(map(inspect_alone, chunk)) if warnings else examples


def leave_out_damaged(splits: Iterable[Split]) -> None:
    """Decode the images of splits that skip those that can't be read, once, and leave out the damaged ones."""
    for split in splits:
        if not isinstance(split, EncodedSplit) or not split.skips:
            continue
        with counting("looking for damaged images", split.size) as report:
            done = 0
            for examples in inspect_all(split):
                for index, example in enumerate(examples, done):
                    if isinstance(example, UnreadableExample):
                        split.leave_out(index, example)
                done += len(examples)
                report(len(examples))


def _read_warnings(captured: BinaryIO) -> tuple[list[str], list[str]]:
    """Return the warnings of the decoder, and all other lines."""
    captured.seek(0)
    lines = captured.read().decode(errors="replace").splitlines(keepends=True)
    warnings = [line.strip() for line in lines if _WARNING.search(line)]
    return warnings, [line for line in lines if not _WARNING.search(line)]
