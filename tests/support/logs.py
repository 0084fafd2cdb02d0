"""A simple writer of the documented log format, independent of the one in Rust."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from pathlib import Path

_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_CRC = _table()


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


LOG = uuid.UUID(int=7).bytes


def frame(segment: bytes, kind: int, sequence: int, payload: bytes) -> bytes:
    word, number = struct.pack("<I", kind << 24 | len(payload)), struct.pack("<Q", sequence)
    crc = struct.pack("<I", crc32c(payload + segment + word + number))
    whole = crc + word + number + payload
    return whole + bytes(-len(whole) % 8)


def write_segment(
    directory: Path,
    number: int,
    first: int,
    payloads: Sequence[bytes],
    *,
    sealed: bool = True,
    log: bytes | None = None,
) -> Path:
    """Write one segment in the format of docs/decision-log.md. `log` is the UUID of the log."""
    directory.mkdir(exist_ok=True)
    identity = uuid.UUID(int=1000 + number).bytes
    header = b"scorerDL" + struct.pack("<HH4x", 1, 96) + (log or LOG) + identity
    header += struct.pack("<QqQQ12x", number, 1_700_000_000_000_000, first, first)
    body = bytearray(header + struct.pack("<I", crc32c(header)))
    for at, payload in enumerate(payloads):
        body += frame(identity, 1, first + at, payload)
    following = first + len(payloads)
    if sealed:
        body += frame(
            identity, 2, following, struct.pack("<QQQQ", len(payloads), first, following, following)
        )
    path = directory / f"{number:010}-{identity.hex()}.seg"
    path.write_bytes(body)
    return path
