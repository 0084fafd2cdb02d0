"""Tests of erasing an entity: no scan, export, join, report or search returns its records."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from logs import write_segment
from servers import scorer_in_process

from scorer.errors import LogError
from scorer.log import erase, export, pseudonym, scan
from scorer.log.segments import entries_at
from scorer.log.tail import Tail
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, ObservationRecord, OutcomeRecord


def _log(directory: Path, entities: tuple[str, ...]) -> Path:
    payloads = []
    for number, entity in enumerate(entities):
        decision = DecisionRecord(decision_id=f"d{number}", checkpoint="c", entity=entity, decided_at_us=1)
        payloads += [
            LogRecord(decision=decision),
            LogRecord(observation=ObservationRecord(decision=decision)),
            LogRecord(
                outcome=OutcomeRecord(checkpoint="c", decision_id=f"d{number}", kind="fraud", value=1.0)
            ),
        ]
    write_segment(directory, 1, 1, [record.SerializeToString() for record in payloads])
    (directory / "LOCK").touch()
    return directory


def _ids(log: Path) -> list[str | None]:
    return [entry.decision_id for entry in scan(log)]


def test_an_erased_entity_is_in_no_scan_and_no_export(tmp_path: Path) -> None:
    log = _log(tmp_path / "log", ("customer-1", "customer-2", "customer-1", ""))
    assert len(_ids(log)) == 12
    done = scorer_in_process("log", "erase", "customer-1", "--log", str(log))
    assert done.returncode == 0 and "customer-1" not in (log / "ERASED").read_text()
    assert set(_ids(log)) == {"d1", "d3"}
    again = scorer_in_process("log", "erase", "customer-1", "--log", str(log))
    assert again.returncode == 0 and "already erased" in again.stdout
    files = {name: tmp_path / f"{name}.parquet" for name in ("decisions", "outcomes", "observations")}
    export(log, files["decisions"], outcomes_to=files["outcomes"], observations_to=files["observations"])
    for path in files.values():
        assert set(pq.read_table(path)["decision_id"].to_pylist()) == {"d1", "d3"}
        assert b"customer-1" not in path.read_bytes()


def test_an_erased_entity_is_neither_among_the_newest_decisions_nor_found_by_its_records(
    tmp_path: Path,
) -> None:
    log = _log(tmp_path / "log", ("customer-1", "customer-2"))
    tail = Tail(log)
    assert [one.decision_id for one in tail.newest("c", 9)] == ["d1", "d0"]
    assert [entry.decision_id for entry in entries_at(log, range(1, 7))] == ["d0"] * 3 + ["d1"] * 3
    # The reader of the newest decisions and an index of sequences may have been opened before the erasure.
    erase(log, "customer-1")
    assert [one.decision_id for one in tail.newest("c", 9)] == ["d1"]
    assert [entry.decision_id for entry in entries_at(log, range(1, 7))] == ["d1"] * 3


def test_an_entity_behind_a_pseudonym_is_erased_by_its_key(tmp_path: Path) -> None:
    key = tmp_path / "entity.key"
    key.write_text("0123456789abcdef0123456789abcdef\n")
    key.chmod(0o644)
    with pytest.raises(LogError, match="other users can read it"):
        pseudonym(key, "customer-1")
    key.chmod(0o600)
    # The first half of the output of
    # `printf 'entity\0customer-1' | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef`.
    assert pseudonym(key, "customer-1") == "b21b96651b4e01a7d93c311e78e5e7ac"
    log = _log(tmp_path / "log", (pseudonym(key, "customer-1"), "b"))
    done = scorer_in_process("log", "erase", "customer-1", "--log", str(log), "--key-file", str(key))
    assert done.returncode == 0
    assert set(_ids(log)) == {"d1"}


def test_an_error_of_bad_input_is_one_line_and_a_damaged_list_restores_no_entity(tmp_path: Path) -> None:
    log = _log(tmp_path / "log", ("a",))
    with pytest.raises(LogError, match="empty"):
        erase(log, "")
    with pytest.raises(LogError, match="no segments"):
        erase(tmp_path, "a")
    with pytest.raises(LogError, match="that the server can read"):
        pseudonym(tmp_path / "none", "a")
    (log / "ERASED").write_bytes(b"\xff\xfe")
    with pytest.raises(LogError, match="erasures"):
        _ids(log)
