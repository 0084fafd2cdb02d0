"""The requests of the Open Inference Protocol, and the scores in its replies.

They are encoded from the published field numbers, because the generated Python modules register names that
collide with those of other packages in the same process.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

INFER: Final = "/inference.GRPCInferenceService/ModelInfer"

_VARINT, _BYTES = 0, 2
_WIDTHS: Final = {1: 8, 5: 4}


def infer_request(model: str, row: Sequence[float]) -> bytes:
    """Return a ModelInferRequest of one row with raw contents, in the form that tritonclient sends."""
    tensor = _bytes(1, b"input__0") + _bytes(2, b"FP32") + _bytes(3, _varint(1) + _varint(len(row)))
    return _bytes(1, model.encode()) + _bytes(5, tensor) + _bytes(7, struct.pack(f"<{len(row)}f", *row))


def infer_score(reply: bytes) -> float:
    """Return the only number of a ModelInferResponse's first output, raw or typed.

    Raises:
        ValueError: The reply has no output, or the output is neither FP32 nor FP64.
    """
    (tensor, *_), raws = _all(reply, 5), _all(reply, 6)
    kind = _all(tensor, 2)[0].decode()
    form = {"FP32": "<f", "FP64": "<d"}.get(kind)
    if form is None:
        raise ValueError(f"the score is of type {kind}")
    if raws:
        return float(struct.unpack_from(form, raws[0])[0])
    contents = _all(tensor, 5)[0]
    return float(struct.unpack_from(form, _all(contents, 6 if kind == "FP32" else 7)[0])[0])


def _all(message: bytes, wanted: int) -> list[bytes]:
    return [value for number, value in _fields(message) if number == wanted]


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the content of each field. The content is returned for fields of bytes only."""
    at = 0
    while at < len(message):
        key, at = _read_varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == _BYTES:
            length, at = _read_varint(message, at)
            yield number, message[at : at + length]
            at += length
        elif kind == _VARINT:
            _, at = _read_varint(message, at)
        else:
            at += _WIDTHS[kind]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    done = bytearray()
    while value >= 0x80:
        done.append(value & 0x7F | 0x80)
        value >>= 7
    done.append(value)
    return bytes(done)
