"""The bytes of a record of a TFRecord file: length (8), its checksum (4), payload, the payload's checksum (4).

A checksum is a CRC-32C, rotated right by 15 bits, plus a constant, so that the checksum of data that holds a checksum
is no special number.
"""

from __future__ import annotations

import struct

import google_crc32c

from accumtrain.errors import DataError

HEADER_BYTES = 12
FOOTER_BYTES = 4


def length_of(header: bytes) -> int | None:
    """The length of the payload after a header; None if the header is cut off or its checksum is wrong."""
    if len(header) != HEADER_BYTES:
        return None
    length, checksum = struct.unpack("<QI", header)
    return length if _checksum(header[:8]) == checksum else None


def payload_of(record: bytes) -> bytes | None:
    """The payload of a whole record; None if a checksum is wrong, or the length."""
    payload = record[HEADER_BYTES:-FOOTER_BYTES]
    if length_of(record[:HEADER_BYTES]) != len(payload):
        return None
    return payload if _checksum(payload).to_bytes(4, "little") == record[-FOOTER_BYTES:] else None


def check_speed() -> None:
    """Raises DataError if checksums are computed in Python, some 1,000 times slower than by the processor."""
    if google_crc32c.implementation != "c":
        raise DataError(
            "TFRecord files can't be checked at speed: the package google-crc32c is installed without its C extension; "
            "install its wheel, pip install --force-reinstall --only-binary=google-crc32c google-crc32c"
        )


def _checksum(data: bytes) -> int:
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
