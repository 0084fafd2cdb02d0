"""Tests of sensitive features: withheld values are missing, and no function takes them for real values."""

from __future__ import annotations

import math
import stat
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from joining import POINT, Maker, counts, outcome, run
from logs import write_segment
from sealing import seal
from servers import scorer_in_process

from scorer.errors import LogError
from scorer.learn import experience_files
from scorer.learn.errors import DataError
from scorer.learn.ope.evaluate import evaluate
from scorer.log import BundleShelf, ReaderKey, generate_keys, scan, verify
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

READER = X25519PrivateKey.from_private_bytes(bytes(range(32)))
VALUES = [10.0, 3.0, 1.0, 2.0]


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"]])


def _masked(make: Maker, name: str, hour: float, *positions: int) -> bytes:
    features = [math.nan if at in positions else value for at, value in enumerate(VALUES)]
    return make.decision(name, hour, features=features, withheld=positions)


def _sealed(make: Maker, name: str, hour: float, number: int, *positions: int, key: ReaderKey) -> bytes:
    whole = LogRecord.FromString(make.decision(name, hour, features=VALUES))
    seal(whole.decision, positions, key, number)
    return whole.SerializeToString()


def _decisions(log: Path, key: ReaderKey | None = None) -> tuple[list[DecisionRecord], Any]:
    entries = scan(log, kinds={"decision"}, reader_key=key)
    return [entry.record for entry in entries], entries.sealed


def test_the_key_schedule_is_that_of_hpke() -> None:
    """The values are those of `cryptography.hazmat.primitives.hpke`; rust/privacy has the same test."""
    key = ReaderKey(READER)
    assert key.id == 0xEEDD883DA0A94515
    cipher, nonce = key._context(
        bytes.fromhex("2218b7eec5a49dbff9041ecb9a22b18124a39912363a35b390733efc184d0010")
    )
    assert cipher.decrypt(nonce, bytes.fromhex("83472186315dd05c65c7da1e948cdbadedd2026a"), b"") == b"four"


def test_encrypted_values_are_decrypted_only_with_their_key(tmp_path: Path, make: Maker) -> None:
    key, other = ReaderKey(READER), ReaderKey(X25519PrivateKey.generate())
    good = _sealed(make, "a", 0, 7, 0, 2, key=key)
    moved = LogRecord.FromString(good)
    moved.decision.decision_id = "another"
    write_segment(tmp_path, 1, 1, [good, _masked(make, "m", 1, 1), make.decision("c", 2)])
    (record, masked, clear), counted = _decisions(tmp_path, key)
    assert list(record.features) == VALUES and not record.withheld and not record.HasField("sealed")
    assert list(masked.withheld) == [1] and math.isnan(masked.features[1]) and not clear.withheld
    assert (counted.opened, counted.masked, counted.locked, counted.altered) == (1, 1, 0, 0)
    for wrong in (None, other):
        (record, *_), counted = _decisions(tmp_path, wrong)
        assert list(record.withheld) == [0, 2] and math.isnan(record.features[0])
        assert (counted.opened, counted.locked) == (0, 1)
        assert "1 records have encrypted features: name their key with --reader-key" in counted.note()
    write_segment(tmp_path / "moved", 1, 1, [moved.SerializeToString()])
    (record,), counted = _decisions(tmp_path / "moved", key)
    assert list(record.withheld) == [0, 2] and math.isnan(record.features[0]) and counted.altered == 1


def test_an_export_has_nulls_for_withheld_values(tmp_path: Path, make: Maker) -> None:
    log, file, private = tmp_path / "log", tmp_path / "d.parquet", tmp_path / "reader.key"
    generate_keys(private, tmp_path / "reader.pub")
    key = ReaderKey.from_file(private)
    write_segment(log, 1, 1, [_sealed(make, "a", 0, 0, 1, key=key), _masked(make, "b", 1, 0)])
    command = ("log", "export", "--log", str(log), "--to", str(file))
    done = scorer_in_process(*command)
    assert done.returncode == 0
    assert "1 records have encrypted features" in done.stdout and "1 records have masked" in done.stdout
    assert pq.read_table(file)["withheld"].to_pylist() == [[1], [0]]
    done = scorer_in_process(*command, "--reader-key", str(private))
    assert done.returncode == 0 and "encrypted" not in done.stdout
    table = pq.read_table(file)
    assert table["withheld"].to_pylist() == [[], [0]]
    assert table["features"].to_pylist()[0] == VALUES


def test_verification_repeats_only_complete_decisions(
    tmp_path: Path, make: Maker, shelf: BundleShelf
) -> None:
    write_segment(tmp_path, 1, 1, [_masked(make, "a", 0, 0), _masked(make, "b", 1, 0)])
    report = verify(tmp_path, shelf)
    assert (report.withheld, report.verified, report.mismatched, report.ok) == (2, 0, 0, True)
    key = ReaderKey(READER)
    moved = LogRecord.FromString(_sealed(make, "a", 0, 0, 1, key=key))
    moved.decision.checkpoint = "another"
    write_segment(tmp_path / "altered", 1, 1, [moved.SerializeToString()])
    assert not verify(tmp_path / "altered", shelf, reader_key=key).ok


def test_learning_uses_a_withheld_feature_of_no_row(
    tmp_path: Path, make: Maker, shelf: BundleShelf, built_bundles: dict[str, Path]
) -> None:
    key = ReaderKey(READER)
    rows = [make.decision("a", 0, 1, features=VALUES), _sealed(make, "b", 1, 0, 1, key=key)]
    write_segment(tmp_path / "log", 1, 1, [*rows, outcome("a", 1), outcome("b", 2)])
    cache = tmp_path / "cache"
    joined = run(tmp_path / "log", shelf, 100, checkpoint=POINT, cache=cache)
    name = shelf.schema(shelf.digests[0]).features[1].name
    assert joined.experience.withheld == (name,)
    assert [[math.isnan(value) for value in row] for row in joined.experience.context.tolist()] == [
        [False, True, False, False]
    ] * 2
    assert counts(joined)["withheld feature"] == 1
    file = tmp_path / "experience.parquet"
    experience_files.write(joined.experience, file)
    assert experience_files.read(file).withheld == (name,)
    with pytest.raises(DataError, match=f"sensitive features \\({name}\\)"):
        evaluate(joined.experience, built_bundles["action-1"])
    # The cache contains rows that were read without the key, so it is not used with the key.
    opened = run(tmp_path / "log", shelf, 100, checkpoint=POINT, cache=cache, reader_key=key)
    assert opened.experience.context.tolist() == [VALUES, VALUES] and not opened.experience.withheld


def test_keys_are_created_once_and_kept_private(tmp_path: Path) -> None:
    private, public = tmp_path / "reader.key", tmp_path / "reader.pub"
    command = ("log", "keygen", "--private", str(private), "--public", str(public))
    done = scorer_in_process(*command)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert f"{ReaderKey.from_file(private).id:016x}" in done.stdout
    before = private.read_bytes()
    again = scorer_in_process(*command)
    assert again.returncode == 1 and "exists" in again.stderr and private.read_bytes() == before
    for path, mode, message in (
        (public, 0o600, "no X25519 key"),
        (private, 0o644, "chmod o="),
        (tmp_path / "none", None, "cannot be read"),
    ):
        if mode is not None:
            path.chmod(mode)
        with pytest.raises(LogError, match=message) as refused:
            ReaderKey.from_file(path)
        assert "\n" not in str(refused.value)
