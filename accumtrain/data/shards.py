"""Records by number from a list of shards, in both formats of tensorflow-datasets: TFRecord and ArrayRecord."""

from __future__ import annotations

import resource
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.data.byte_ranges import ByteRanges, is_remote
from accumtrain.data.record_index import FOOTER_BYTES, HEADER_BYTES, index_shards
from accumtrain.errors import DataError


@dataclass(frozen=True)
class ShardRange:
    """`count` records of a shard, from record `first` on; None is all of them."""

    path: str
    first: int = 0
    count: int | None = None


class Shards(ABC):
    """The records of all pieces, one piece after the other, numbered from 0."""

    def __init__(self, pieces: list[ShardRange]) -> None:
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
        """The payloads of the records `numbers`, int64 [n]. Raises DataError if a file can't be read."""
        shard, record = self._locate(numbers)
        payloads = [b""] * len(numbers)
        for number in np.unique(shard).tolist():
            rows = np.flatnonzero(shard == number).tolist()
            for row, payload in zip(rows, self._read(number, record[rows].tolist()), strict=True):
                payloads[row] = payload
        return payloads

    def name(self, number: int) -> str:
        shard, record = self._locate(np.array([number]))
        return f"record {record[0]} of {self._paths[shard[0]]}"

    def _locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        piece = np.searchsorted(self._ends, numbers, side="right")
        return self._shard[piece], self._first[piece] + numbers - self._begins[piece]

    @abstractmethod
    def _open(self, paths: list[str]) -> list[int]:
        """Prepares to read the shards. Returns the number of records in each."""

    @abstractmethod
    def _read(self, shard: int, records: list[int]) -> list[bytes]:
        """Payloads of some records of one shard."""


class TfrecordShards(Shards):
    """TFRecord files, through the index of record positions."""

    def _open(self, paths: list[str]) -> list[int]:
        self._starts = index_shards(paths)
        return [len(starts) - 1 for starts in self._starts]

    def _read(self, shard: int, records: list[int]) -> list[bytes]:
        path, starts = self._paths[shard], self._starts[shard]
        try:
            with ByteRanges(path) as file:  # not kept open: a data set may have more shards than a process may open
                return [self._payload(file, path, *starts[record : record + 2].tolist()) for record in records]
        except OSError as error:
            raise DataError(f"{path} can't be read any more: {error.strerror}") from error

    @staticmethod
    def _payload(file: ByteRanges, path: str, start: int, end: int) -> bytes:
        length = end - start - HEADER_BYTES - FOOTER_BYTES
        payload = file.read(start + HEADER_BYTES, length)
        if len(payload) != length:
            raise DataError(f"{path} became shorter while it was in use: start the run again")
        return payload


class ArrayRecordShards(Shards):
    """ArrayRecord files, which are made for random access. Their readers stay open."""

    def _open(self, paths: list[str]) -> list[int]:
        from array_record.python.array_record_module import ArrayRecordReader

        _allow_open_files(len(paths))
        self._readers: list[Any] = []
        for path in paths:
            if not is_remote(path) and not Path(path).is_file():
                raise DataError(f"{path} is missing: prepare the data set again")
            try:
                self._readers.append(ArrayRecordReader(path, options="readahead_buffer_size:0"))
            except (RuntimeError, ValueError) as error:
                raise DataError(f"{path} is truncated or no ArrayRecord file: prepare the data set again") from error
        return [reader.num_records() for reader in self._readers]

    def _read(self, shard: int, records: list[int]) -> list[bytes]:
        try:
            return self._readers[shard].read(records)
        except (RuntimeError, ValueError, IndexError) as error:
            raise DataError(f"{self._paths[shard]} is damaged: prepare the data set again") from error


def _allow_open_files(more: int) -> None:
    """Raises the soft limit of open files, often 1,024, by `more` or up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    raised = soft + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised if hard == resource.RLIM_INFINITY else min(raised, hard), hard))
