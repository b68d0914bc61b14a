"""Records by number from a list of shards, in both formats of tensorflow-datasets: TFRecord and ArrayRecord."""

from __future__ import annotations

import resource
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from accumtrain.data.local_files import find_file_fault
from accumtrain.data.source import UnreadableExample, hash_texts
from accumtrain.data.sources.records.record_index import (
    ByteRanges,
    check_checksum_speed,
    index_shards,
    is_remote,
    read_payload,
)
from accumtrain.errors import DataError

_COPY = "copy or prepare the file again"


@dataclass(frozen=True)
class ShardRange:
    """`count` records of a shard, from record `first` on. None is all of them."""

    path: str
    first: int = 0
    count: int | None = None


class Shards(ABC):
    """The records of all pieces, one piece after the other, numbered from 0."""

    def __init__(self, pieces: list[ShardRange]) -> None:
        """Raise DataError if a shard can't be read or holds fewer records than its piece asks for."""
        self.pieces = pieces
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
        """Return the payloads of the records `numbers`, int64 [n].

        Raises:
            UnreadableExample: A record is damaged.
            DataError: A file can't be read.
        """
        shard, record = self._locate(numbers)
        payloads = [b""] * len(numbers)
        for number in np.unique(shard).tolist():
            rows = np.flatnonzero(shard == number).tolist()
            for row, payload in zip(rows, self._read(number, record[rows].tolist()), strict=True):
                payloads[row] = payload
        return payloads

    def name(self, number: int) -> str:
        shard, record = self._locate(np.array([number]))
        return self._name(shard[0], record[0])

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """The pieces: path of the file, with links followed, first record, and the one after the last."""
        paths = [path if is_remote(path) else str(Path(path).resolve()) for path in self._paths]
        ends = self._first + self._ends - self._begins
        return [
            (paths[shard], first, end)
            for shard, first, end in zip(self._shard.tolist(), self._first.tolist(), ends.tolist(), strict=True)
        ]

    def digest(self) -> str:
        """Return a short hash of the files' names without folders, and of which records of each are used."""
        files = (Path(self._paths[shard]).name for shard in self._shard)
        pieces = zip(files, self._first.tolist(), (self._ends - self._begins).tolist(), strict=True)
        return hash_texts(f"{name} {first} {count}" for name, first, count in pieces)

    def _name(self, shard: int, record: int) -> str:
        return f"record {record} of {self._paths[shard]}"

    def _locate(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        piece = np.searchsorted(self._ends, numbers, side="right")
        return self._shard[piece], self._first[piece] + numbers - self._begins[piece]

    @abstractmethod
    def _open(self, paths: list[str]) -> list[int]:
        """Prepare to read the shards. Return their numbers of records."""

    @abstractmethod
    def _read(self, shard: int, records: list[int]) -> list[bytes]:
        """Return the payloads of some records of one shard. Raise what `read` raises."""


class TfrecordShards(Shards):
    """TFRecord files, through the index of record positions."""

    def _open(self, paths: list[str]) -> list[int]:
        check_checksum_speed()
        self._starts = index_shards(paths)
        return [len(starts) - 1 for starts in self._starts]

    def _read(self, shard: int, records: list[int]) -> list[bytes]:
        path = self._paths[shard]
        try:
            with ByteRanges(path) as file:  # not kept open: a data set may have more shards than a process may open
                return [self._payload(file, shard, record) for record in records]
        except OSError as error:
            raise DataError(f"{path} can't be read any more: {error.strerror}") from error

    def _payload(self, file: ByteRanges, shard: int, record: int) -> bytes:
        start, end = self._starts[shard][record : record + 2].tolist()
        stored = file.read(start, end - start)
        if len(stored) != end - start:
            raise DataError(f"{self._paths[shard]} became shorter while it was in use: start the run again")
        payload = read_payload(stored)
        if payload is None:
            raise UnreadableExample(self._name(shard, record), "is damaged, its checksum is wrong", _COPY)
        return payload


class ArrayRecordShards(Shards):
    """ArrayRecord files, which are made for random access. Their readers stay open."""

    def _open(self, paths: list[str]) -> list[int]:
        from array_record.python.array_record_module import ArrayRecordReader

        _allow_open_files(len(paths))
        self._readers: list[Any] = []
        for path in paths:
            if not is_remote(path) and (fault := find_file_fault(Path(path))):
                raise DataError(f"{path} {fault}: prepare the data set again")
            try:
                self._readers.append(ArrayRecordReader(path, options="readahead_buffer_size:0"))
            except (RuntimeError, ValueError) as error:
                raise DataError(
                    f"{path} is truncated or not an ArrayRecord file: prepare the data set again"
                ) from error
        return [reader.num_records() for reader in self._readers]

    def _read(self, shard: int, records: list[int]) -> list[bytes]:
        try:
            return self._readers[shard].read(records)
        except (RuntimeError, ValueError, IndexError) as error:
            if len(records) > 1:  # one of them is damaged
                return [payload for record in records for payload in self._read(shard, [record])]
            raise UnreadableExample(self._name(shard, records[0]), "is damaged", _COPY) from error


def _allow_open_files(more: int) -> None:
    """Raise the soft limit of open files, often 1,024, by `more` or up to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return
    raised = soft + more
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised if hard == resource.RLIM_INFINITY else min(raised, hard), hard))
