"""Records by number from a list of shards, in both formats of tensorflow-datasets: TFRecord and ArrayRecord."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.data.byte_ranges import ByteRanges
from accumtrain.data.record_index import FOOTER_BYTES, HEADER_BYTES, index_shards
from accumtrain.errors import DataError


@dataclass(frozen=True)
class Piece:
    """`count` records of a shard from record `first` on; `count` None is all that follow."""

    path: str
    first: int = 0
    count: int | None = None


class Shards(ABC):
    """The records of all pieces in a row, numbered from 0."""

    def __init__(self, pieces: list[Piece]) -> None:
        """Raises DataError if a shard can't be read or holds fewer records than its piece asks for."""
        self._paths = list(dict.fromkeys(piece.path for piece in pieces))
        held = dict(zip(self._paths, self._open(self._paths), strict=True))
        counts = []
        for piece in pieces:
            count = held[piece.path] - piece.first if piece.count is None else piece.count
            if piece.first + count > held[piece.path]:
                raise DataError(
                    f"{piece.path} holds {held[piece.path]} records, its data set counts {piece.first + count}: "
                    "prepare the data set again"
                )
            counts.append(count)
        number = {path: shard for shard, path in enumerate(self._paths)}
        self._shard = np.array([number[piece.path] for piece in pieces])  # [pieces]
        self._first = np.array([piece.first for piece in pieces])  # [pieces]
        self._ends = np.cumsum(counts)  # [pieces]
        self._begins = self._ends - counts  # [pieces]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, numbers: np.ndarray) -> list[bytes]:
        """The payloads of records, int64 [n]. Raises DataError where the file does not give them."""
        shard, record = self._locate(numbers)
        return self._read(shard, record)

    def name(self, number: int) -> str:
        shard, record = self._locate(np.array([number]))
        return f"record {record[0]} of {self._paths[shard[0]]}"

    def _locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        piece = np.searchsorted(self._ends, numbers, side="right")
        return self._shard[piece], self._first[piece] + numbers - self._begins[piece]

    @abstractmethod
    def _open(self, paths: list[str]) -> list[int]:
        """Gets ready to read and returns how many records each shard holds."""

    @abstractmethod
    def _read(self, shard: np.ndarray, record: np.ndarray) -> list[bytes]:
        """Payloads of records given by their shard, int64 [n], and number in it, int64 [n]."""


class TfrecordShards(Shards):
    """TFRecord files, through the index of record positions."""

    def _open(self, paths: list[str]) -> list[int]:
        self._starts = index_shards(paths)
        self._files: dict[int, ByteRanges] = {}
        return [len(starts) - 1 for starts in self._starts]

    def _read(self, shard: np.ndarray, record: np.ndarray) -> list[bytes]:
        payloads = []
        for number, place in zip(shard.tolist(), record.tolist(), strict=True):
            if number not in self._files:
                self._files.setdefault(number, ByteRanges(self._paths[number]))
            start, end = self._starts[number][place : place + 2].tolist()
            length = end - start - HEADER_BYTES - FOOTER_BYTES
            payload = self._files[number].read(start + HEADER_BYTES, length)
            if len(payload) != length:
                raise DataError(f"{self._paths[number]} became shorter while it was in use: start the run again")
            payloads.append(payload)
        return payloads


class ArrayRecordShards(Shards):
    """ArrayRecord files, which are made for reading at random."""

    def _open(self, paths: list[str]) -> list[int]:
        from array_record.python.array_record_module import ArrayRecordReader

        self._readers: list[Any] = []
        for path in paths:
            if "://" not in path and not Path(path).is_file():
                raise DataError(f"{path} is missing: prepare the data set again")
            try:
                self._readers.append(ArrayRecordReader(path, options="readahead_buffer_size:0"))
            except (RuntimeError, ValueError) as error:
                raise DataError(f"{path} is truncated or no ArrayRecord file: prepare the data set again") from error
        return [reader.num_records() for reader in self._readers]

    def _read(self, shard: np.ndarray, record: np.ndarray) -> list[bytes]:
        wanted = defaultdict(list)
        for row, number in enumerate(shard.tolist()):
            wanted[number].append(row)
        payloads = [b""] * len(shard)
        for number, rows in wanted.items():
            try:
                found = self._readers[number].read(record[rows].tolist())
            except (RuntimeError, ValueError, IndexError) as error:
                raise DataError(f"{self._paths[number]} is damaged: prepare the data set again") from error
            for row, payload in zip(rows, found, strict=True):
                payloads[row] = payload
        return payloads
