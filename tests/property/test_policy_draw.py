"""The draw, against SipHash written out from its paper."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer import bridge

MASK = (1 << 64) - 1


def rotate(x: int, b: int) -> int:
    return (x << b | x >> (64 - b)) & MASK


def siphash_2_4_128(key: bytes, message: bytes) -> bytes:
    """SipHash-2-4 by Aumasson and Bernstein (2012), with the 128-bit finalisation of their reference code."""
    k0, k1 = struct.unpack("<QQ", key)
    v = [
        k0 ^ 0x736F6D6570736575,
        k1 ^ 0x646F72616E646F6D ^ 0xEE,
        k0 ^ 0x6C7967656E657261,
        k1 ^ 0x7465646279746573,
    ]

    def rounds(count: int) -> None:
        for _ in range(count):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotate(v[1], 13) ^ v[0]
            v[0] = rotate(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotate(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotate(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotate(v[1], 17) ^ v[2]
            v[2] = rotate(v[2], 32)

    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE
    rounds(4)
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    rounds(4)
    return struct.pack("<QQ", low, v[0] ^ v[1] ^ v[2] ^ v[3])


def expected(key: bytes, checkpoint: str, decision_id: str) -> float:
    parts = [b"action", checkpoint.encode(), decision_id.encode()]
    message = b"".join(struct.pack("<Q", len(part)) + part for part in parts)
    return (int.from_bytes(siphash_2_4_128(key, message)[:8], "little") >> 11) / 2**53


def test_the_reference_gives_the_published_vectors() -> None:
    # The first two of the authors' published vectors.
    key = bytes(range(16))
    assert siphash_2_4_128(key, b"").hex() == "a3817f04ba25a8e66df67214c7550293"
    assert siphash_2_4_128(key, b"\x00").hex() == "da87c1d86b99af44347659119b22fc45"


@given(
    key=st.binary(min_size=16, max_size=16), checkpoint=st.text(max_size=40), decision=st.text(max_size=80)
)
def test_a_draw_is_siphash_over_framed_parts(key: bytes, checkpoint: str, decision: str) -> None:
    assert bridge.draw(key.hex(), checkpoint, decision) == expected(key, checkpoint, decision)


def test_a_draw_has_its_pinned_value() -> None:
    # rust/core/src/policy/tests.rs contains the same constant.
    assert bridge.draw(bytes(range(16)).hex(), "action.authorise", "order-1") == pytest.approx(PINNED, abs=0)


PINNED = 0.09864925614006792
