"""Files of Arrow's stream format, as the library `datasets` saves them: what they hold stays on the disk."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa

_HEADER_OF_MESSAGE, _DATA_OF_DICTIONARY, _COMPRESSION = 2, 1, 3  # numbers of fields in Arrow's Message.fbs


def check_unpacked(path: Path) -> None:
    """Raise ValueError for a file with packed parts, which are read at once, and may be of any size in memory."""
    with pa.memory_map(str(path)) as file:
        for message in pa.ipc.MessageReader.open_stream(file):
            try:
                if message.type != "schema" and _is_packed(message.metadata.to_pybytes(), message.type):
                    raise ValueError("its parts are packed, as save_to_disk saves none")
            except struct.error as error:
                raise ValueError("it is damaged") from error


def _is_packed(metadata: bytes, kind: str) -> bool:
    (root,) = struct.unpack_from("<I", metadata)
    batch = _follow(metadata, _find_field(metadata, root, _HEADER_OF_MESSAGE))
    if kind == "dictionary batch":
        batch = _follow(metadata, _find_field(metadata, batch, _DATA_OF_DICTIONARY))
    return _find_field(metadata, batch, _COMPRESSION) > 0


def _find_field(metadata: bytes, table: int, number: int) -> int:
    """Return the place of a field of a table of FlatBuffers; 0 if it has none."""
    fields = table - struct.unpack_from("<i", metadata, table)[0]
    at = 4 + 2 * number
    if at >= struct.unpack_from("<H", metadata, fields)[0]:
        return 0
    offset: int = struct.unpack_from("<H", metadata, fields + at)[0]
    return table + offset if offset else 0


def _follow(metadata: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", metadata, place)[0])
