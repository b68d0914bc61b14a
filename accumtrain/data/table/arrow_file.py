"""Files of Arrow's stream format, as the library `datasets` saves them: what they hold stays on the disk."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
from flatbuffers import encode, packer
from flatbuffers.table import Table

_HEADER, _DATA_OF_DICTIONARY, _COMPRESSION = (4 + 2 * number for number in (2, 1, 3))  # fields in Arrow's Message.fbs


def check_uncompressed(path: Path) -> None:
    """Raise ValueError for a file with compressed parts, which are read at once, and may be of any size in memory."""
    with pa.memory_map(str(path)) as file:
        for message in pa.ipc.MessageReader.open_stream(file):
            try:
                if message.type != "schema" and _is_compressed(message.metadata.to_pybytes(), message.type):
                    raise ValueError("its parts are compressed, as save_to_disk saves none")
            except struct.error as error:
                raise ValueError("it is damaged") from error


def _is_compressed(metadata: bytes, kind: str) -> bool:
    batch = _follow(Table(metadata, encode.Get(packer.uoffset, metadata, 0)), _HEADER)
    if kind == "dictionary batch":
        batch = _follow(batch, _DATA_OF_DICTIONARY)
    return batch.Offset(_COMPRESSION) > 0


def _follow(table: Table, field: int) -> Table:
    return Table(table.Bytes, table.Indirect(table.Pos + table.Offset(field)))
