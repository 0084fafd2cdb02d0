"""Tests of digests, hashes of decision ids and masks, whose forms files and indices depend on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scorer.ids import (
    decision_key,
    digest_text,
    eligible_actions,
    file_digest,
    hex_of,
    record_key,
    short_digest,
)


def test_digests_have_the_prefix_sha256(tmp_path: Path) -> None:
    assert digest_text(bytes(range(32))) == "sha256:" + bytes(range(32)).hex()
    assert digest_text(b"") == ""
    assert hex_of("sha256:ab12") == hex_of("ab12") == "ab12"
    assert short_digest("sha256:" + "0123456789abcdef" * 4) == "0123456789ab"
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    assert file_digest(file) == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_key_of_a_decision_has_the_same_64_bits_signed_and_unsigned() -> None:
    assert decision_key("payment-000001") == 0xFD234F24E78093CF  # b2sum -l 64, little-endian
    assert decision_key("payment-000001", signed=True) == 0xFD234F24E78093CF - 2**64


def test_the_parts_of_a_record_key_are_separated() -> None:
    assert len(record_key("a", "b")) == 16
    assert len({record_key("a", "b"), record_key("ab"), record_key("ab", ""), record_key("a", "b", "")}) == 4


@pytest.mark.parametrize("count", [1, 7, 8, 9, 20])
def test_the_lowest_bit_of_a_mask_is_the_first_action(count: int) -> None:
    wanted = np.random.default_rng(count).random(count) < 0.5
    mask = np.packbits(wanted, bitorder="little").tobytes()
    np.testing.assert_array_equal(eligible_actions(mask, count), wanted)
    assert eligible_actions(b"", count).all()
    assert eligible_actions(None, count).all()


def test_actions_beyond_a_short_mask_are_not_eligible() -> None:
    assert eligible_actions(b"\xff", 11).tolist() == [True] * 8 + [False] * 3


def test_the_module_imports_neither_numpy_nor_protobuf() -> None:
    code = "import sys, scorer.ids; print({'numpy', 'google.protobuf', 'grpc'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "set()"
