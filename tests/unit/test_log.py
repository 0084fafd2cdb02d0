"""Tests of reading, exporting and verifying logs of an independent writer of the documented format."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from logs import crc32c, write_segment
from typer.testing import CliRunner

from scorer.cli import app
from scorer.errors import LogError, ScorerError
from scorer.log import LogReader, OutcomeJoin, export, scan, summarise
from scorer.log.tail import Tail
from scorer.v1.log_pb2 import (
    DecisionRecord,
    LaneTableRecord,
    LogRecord,
    OutcomeRecord,
    RecoveryRecord,
    WithdrawnRecord,
)


def score(decision_id: str, at: datetime, features: Sequence[float], **other: object) -> bytes:
    record = DecisionRecord(
        decision_id=decision_id,
        checkpoint="fraud.checkout",
        bundle=bytes(range(32)),
        decided_at_us=int(at.timestamp() * 1e6),
        features=features,
        score=0.25,
        margin=-1.0,
        decision="approve",
        **other,  # type: ignore[arg-type]
    )
    return LogRecord(decision=record).SerializeToString()


def action(decision_id: str, at: datetime, mask: bytes = b"") -> bytes:
    record = DecisionRecord(
        decision_id=decision_id,
        checkpoint="action.authorise",
        bundle=bytes(32),
        decided_at_us=int(at.timestamp() * 1e6),
        features=[1.0, 2.0],
        eligible_mask=mask,
        pmf=[0.0, 0.75, 0.25],
        action_index=1,
        action="b",
        propensity=0.75,
    )
    return LogRecord(decision=record).SerializeToString()


def outcome(decision_id: str, kind: str, value: float, revision: int = 0, occurred_at_ms: int = 0) -> bytes:
    record = OutcomeRecord(
        checkpoint="fraud.checkout",
        decision_id=decision_id,
        kind=kind,
        value=value,
        revision=revision,
        occurred_at_ms=occurred_at_ms,
    )
    return LogRecord(outcome=record).SerializeToString()


NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 2, 12, tzinfo=UTC)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    directory = tmp_path / "log"
    write_segment(
        directory,
        1,
        1,
        [
            LogRecord(lane_table=LaneTableRecord(version=1)).SerializeToString(),
            score("a", NOON, [1.5, float("nan")]),
            outcome("a", "fraud", 0.0),
            outcome("a", "fraud", 0.0),
            outcome("early", "fraud", 1.0),
            action("x", NOON, bytes([0b110])),
        ],
    )
    write_segment(
        directory,
        2,
        7,
        [
            score("b", LATER, [3.0, 4.0], fallback_source="static", fallback_reason="panic"),
            score("a", LATER, [9.0, 9.0]),
            outcome("a", "fraud", 1.0, revision=2, occurred_at_ms=1_700_000_000_123),
            outcome("a", "fraud", 0.0, revision=1),
            outcome("a", "fraud", 0.5, revision=2),
            outcome("b", "chargeback", 1.0),
        ],
        sealed=False,
    )
    return directory


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and isinstance(result.exception, ScorerError):
        return result.exception.exit_code, str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_crc_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_a_documented_log_is_read_in_order(log: Path) -> None:
    reader = LogReader(log)
    records = list(reader.records())
    assert [sequence for sequence, _ in records] == list(range(1, 13))
    assert records[1][1].decision.decision_id == "a"
    assert reader.findings == []
    assert [segment.sealed for segment in reader.segments] == [True, False]


def test_a_scan_returns_records_by_kind_checkpoint_and_sequence(log: Path) -> None:
    entries = scan(log)
    kinds = [kind for _, kind, _ in entries]
    assert kinds[:2] == ["lane_table", "decision"]
    assert (kinds.count("decision"), kinds.count("outcome")) == (4, 7)
    assert [segment.records for segment in entries.segments] == [6, 6]
    assert entries.findings == []
    decisions = list(scan(log, kinds={"decision"}))
    assert [entry.decision_id for entry in decisions] == ["a", "x", "b", "a"]
    (only,) = scan(log, kinds={"decision"}, checkpoint=decisions[1].checkpoint)
    assert only.decision_id == "x"
    assert [entry.sequence for entry in scan(log, start_sequence=9)] == [9, 10, 11, 12]
    (table,) = scan(log, kinds={"lane_table"}, checkpoint="another")
    assert (table.checkpoint, table.decision_id) == (None, None)


def test_a_scan_refuses_records_of_other_programs_and_skips_newer_kinds(tmp_path: Path) -> None:
    write_segment(tmp_path / "newer", 1, 1, [b"\xf2\x07\x02hi"])
    assert list(scan(tmp_path / "newer")) == [(1, "unknown", None)]
    write_segment(tmp_path / "foreign", 1, 1, [b"\xff\xff"])
    with pytest.raises(LogError, match="record 1 is intact"):
        list(scan(tmp_path / "foreign"))


@pytest.mark.parametrize("harm", ["none", "no seals", "header", "torn", "gap"])
def test_reading_from_a_sequence_gives_the_rest_of_the_log(tmp_path: Path, harm: str) -> None:
    sealed = harm != "no seals"
    paths = [
        write_segment(
            tmp_path / "log",
            number,
            first,
            [outcome(f"d{first + at}", "k", 1.0) for at in range(4)],
            sealed=sealed and number != 4,
        )
        for number, first in ((1, 1), (2, 5), (3, 9), (4, 13))
    ]
    if harm == "header":
        damaged = bytearray(paths[1].read_bytes())
        damaged[40] ^= 1
        paths[1].write_bytes(bytes(damaged))
    elif harm == "torn":
        paths[3].write_bytes(paths[3].read_bytes()[:-9])
    elif harm == "gap":
        paths[1].unlink()
    whole = list(LogReader(tmp_path / "log").payloads())
    assert whole
    for start in range(20):
        rest = LogReader(tmp_path / "log", start_sequence=start)
        assert list(rest.payloads()) == [one for one in whole if one[0] >= start], start


def test_reading_from_a_sequence_skips_sealed_segments_before_it(log: Path) -> None:
    (first, *_) = sorted(log.glob("*.seg"))
    damaged = bytearray(first.read_bytes())
    damaged[200] ^= 1
    first.write_bytes(bytes(damaged))
    reader = LogReader(log, start_sequence=7)
    assert next(reader.payloads())[0] == 7
    assert reader.findings == [], "the sealed segment was not read"
    every = LogReader(log)
    list(every.payloads())
    assert [finding.severity for finding in every.findings] == ["error"]


def test_the_first_decision_and_the_highest_revision_of_an_outcome_count(log: Path) -> None:
    summary = summarise(log)
    assert summary.records == {"decision": 4, "outcome": 7, "lane_table": 1}
    counts = summary.outcomes.of("fraud.checkout", "a")["fraud"]
    assert (counts.value, counts.revision) == (1.0, 2)
    assert summary.outcomes.duplicates == 1
    assert summary.outcomes.superseded == 2
    (conflict,) = summary.outcomes.conflicts
    assert (conflict.first.value, conflict.other.value, conflict.other.sequence) == (1.0, 0.5, 11)
    assert summary.fallbacks == {"static (panic)": 1}


def test_duckdb_reads_an_export(log: Path, tmp_path: Path) -> None:
    to, outcomes = tmp_path / "decisions.parquet", tmp_path / "outcomes.parquet"
    done = export(log, to, outcomes_to=outcomes)
    assert (done.decisions, done.repeated, done.with_outcome, done.orphans) == (3, 1, 2, 1)
    assert len(done.conflicts) == 1
    rows = duckdb.sql(
        "select decision_id, kind, features, isnan(features[2]) as gap, score, pmf, eligible, action,"
        f" outcome_fraud, outcome_fraud_revision, outcome_chargeback from '{to}' order by sequence"
    ).fetchall()
    assert [row[:2] for row in rows] == [("a", "score"), ("x", "action"), ("b", "score")]
    # The first record of decision "a" counts, and the third revision of its outcome.
    assert rows[0][2][0] == 1.5
    assert rows[0][3] is True
    assert rows[0][4:] == (0.25, None, None, None, 1.0, 2, None)
    assert rows[1][4:8] == (None, [0.0, 0.75, 0.25], [False, True, True], "b")
    assert rows[2][8:] == (None, None, 1.0)
    schema = pq.read_schema(to)
    assert str(schema.field("features").type) == "fixed_size_list<element: float>[2]"
    counted = duckdb.sql(
        f"select decision_id, kind, value, revision from '{outcomes}' where counts"
    ).fetchall()
    assert sorted(counted) == [
        ("a", "fraud", 1.0, 2),
        ("b", "chargeback", 1.0, 0),
        ("early", "fraud", 1.0, 0),
    ]
    occurred = duckdb.sql(f"select epoch_ms(occurred_at) from '{outcomes}' where revision = 2").fetchall()
    assert occurred == [(1_700_000_000_123,)]
    assert not list(tmp_path.glob(".*"))


def test_an_export_of_a_window_contains_late_outcomes(log: Path, tmp_path: Path) -> None:
    to = tmp_path / "d.parquet"
    code, output = run("log", "export", "--log", log, "--to", to, "--until", "2026-11-02")
    assert code == 0, output
    assert "2 decisions" in output
    assert "2 left out: outside --since and --until" in output
    ids = duckdb.sql(f"select decision_id, outcome_fraud from '{to}'").fetchall()
    assert sorted(ids) == [("a", 1.0), ("x", None)]
    code, output = run("log", "export", "--log", log, "--to", to, "--since", "yesterday")
    assert code == 2
    assert "yesterday" in output


def test_an_export_of_different_widths_uses_plain_lists(tmp_path: Path) -> None:
    write_segment(tmp_path / "log", 1, 1, [score("a", NOON, [1.0]), score("b", NOON, [1.0, 2.0])])
    export(tmp_path / "log", tmp_path / "d.parquet")
    table = pq.read_table(tmp_path / "d.parquet")
    assert table["features"].to_pylist() == [[1.0], [1.0, 2.0]]


def test_an_export_is_written_in_row_groups(tmp_path: Path) -> None:
    count = 40_000
    payloads = [score(str(at), NOON, [float(at)]) for at in range(count)]
    write_segment(tmp_path / "log", 1, 1, payloads)
    seen: list[tuple[int, int]] = []
    export(tmp_path / "log", tmp_path / "d.parquet", advance=lambda done, total: seen.append((done, total)))
    file = pq.ParquetFile(tmp_path / "d.parquet")
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [16384, 16384, 7232]
    assert duckdb.sql(f"select sum(features[1]) from '{tmp_path}/d.parquet'").fetchall() == [(799_980_000.0,)]
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_a_failed_export_keeps_the_earlier_file(log: Path, tmp_path: Path) -> None:
    to = tmp_path / "d.parquet"
    to.write_bytes(b"earlier")
    damaged = log / "0000000003-00000000000000000000000000000aaa.seg"
    write_segment(log, 3, 13, [b"\xff\xff no record"])
    with pytest.raises(LogError, match="record 13 is intact but no scorer"):
        export(log, to)
    assert to.read_bytes() == b"earlier"
    assert not damaged.exists()
    with pytest.raises(LogError, match="cannot write"):
        export(_only(log, 2), tmp_path / "missing" / "d.parquet")


def _only(log: Path, count: int) -> Path:
    for path in sorted(log.glob("*.seg"))[count:]:
        path.unlink()
    return log


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(bytes(data))


def _seg(log: Path, number: int) -> Path:
    return next(log.glob(f"{number:010}-*.seg"))


def _cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


def _swap_log(log: Path) -> None:
    """Replace segment 2 by one of another log."""
    path = _seg(log, 2)
    data = bytearray(path.read_bytes())
    data[16] ^= 1
    data[92:96] = struct.pack("<I", crc32c(bytes(data[:92])))
    path.write_bytes(bytes(data))


DAMAGE: list[tuple[str, Callable[[Path], None], str, bool]] = [
    (
        "middle of a sealed segment",
        lambda log: _flip(_seg(log, 1), 130),
        r"lost sequences: 2-2 \(1 record\)",
        False,
    ),
    ("a segment is gone", lambda log: _seg(log, 1).unlink(), r"^$|12 records|6 records", True),
    ("header", lambda log: _flip(_seg(log, 2), 70), "the header's checksum is wrong", False),
    ("another log's segment", _swap_log, "belongs to another decision log", False),
    ("torn tail", lambda log: _cut(_seg(log, 2), 5), "no complete record", True),
    ("foreign file", lambda log: _write(log / "notes.txt"), "notes.txt does not belong", True),
]


def _write(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")


@pytest.mark.parametrize(("what", "damage", "message", "fine"), DAMAGE, ids=[row[0] for row in DAMAGE])
def test_damage_is_reported_and_determines_the_exit_code(
    tmp_path: Path, what: str, damage: Callable[[Path], None], message: str, fine: bool
) -> None:
    log = tmp_path / "log"
    records = [LogRecord(lane_table=LaneTableRecord(version=at)).SerializeToString() for at in range(12)]
    write_segment(log, 1, 1, records[:6])
    write_segment(log, 2, 7, records[6:], sealed=False)
    assert run("log", "verify", "--log", log)[0] == 0
    damage(log)
    code, output = run("log", "verify", "--log", log)
    assert re.search(message, output, re.MULTILINE), output
    assert (code == 0) is fine, output
    assert output.rstrip().endswith("ok") and ("not ok" in output) is not fine


@pytest.mark.fault_case(75)
def test_a_missing_segment_in_the_middle_is_a_gap(tmp_path: Path) -> None:
    log = tmp_path / "log"
    record = LogRecord(recovery=RecoveryRecord(finding="x")).SerializeToString()
    for number in (1, 2, 3):
        write_segment(log, number, 1 + 2 * (number - 1), [record, record])
    _seg(log, 2).unlink()
    code, output = run("log", "verify", "--log", log)
    assert code == 1
    assert "sequences 3 to 4 missing" in output
    assert "lost sequences: 3-4 (2 records)" in output


def _quarantined(log: Path) -> Path:
    aside = log / "quarantine"
    aside.mkdir()
    (aside / _seg(log, 1).name).write_bytes(_seg(log, 1).read_bytes())
    return log


BAD: list[tuple[str, Callable[[Path], Path], str]] = [
    ("missing directory", lambda log: log / "nowhere", "no such directory; give the directory"),
    ("a file", lambda log: _seg(log, 1), "no such directory; give the directory"),
    ("empty directory", lambda log: _made(log / "empty"), "holds no segments"),
    ("foreign directory", lambda log: _made(log / "other", "data.csv"), "holds no segments"),
    ("quarantine itself", lambda log: _quarantined(log) / "quarantine", ""),
]


def _made(directory: Path, file: str | None = None) -> Path:
    directory.mkdir()
    if file is not None:
        (directory / file).write_text("x")
    return directory


@pytest.mark.parametrize("command", ["stat", "verify", "export"])
@pytest.mark.parametrize(("what", "make", "message"), BAD, ids=[row[0] for row in BAD])
def test_an_error_of_bad_input_is_one_line_that_names_it(
    log: Path, tmp_path: Path, command: str, what: str, make: Callable[[Path], Path], message: str
) -> None:
    directory = make(log)
    more: Iterable[object] = ("--to", tmp_path / "x.parquet") if command == "export" else ()
    code, output = run("log", command, "--log", directory, *more)
    if message:
        assert code == 1
        assert str(directory) in output
        assert message in output
        assert "\n" not in output.strip()
    else:
        # A quarantined copy alone is a regular segment of a log without its other segments.
        assert code == (1 if command == "verify" else 0), output


def test_a_quarantined_segment_is_reported_and_not_read(log: Path) -> None:
    code, output = run("log", "stat", "--log", _quarantined(log))
    assert code == 0
    assert "sequences 1 to 12" in output
    assert "it is evidence and is not read" in output


def test_stat_prints_json(log: Path) -> None:
    code, output = run("log", "stat", "--log", log, "--json")
    document = json.loads(output)
    assert code == 0
    assert document["records"] == {"lane_table": 1, "decision": 4, "outcome": 7}
    assert document["outcomes"] == {
        "reported": 7,
        "superseded": 2,
        "unproven": 0,
        "duplicate": 1,
        "conflicting": 1,
    }
    assert document["checkpoints"] == {"fraud.checkout": 3, "action.authorise": 1}


def test_decisions_without_their_bundle_are_not_verified(log: Path) -> None:
    code, output = run("log", "verify", "--log", log, "--json")
    document = json.loads(output)
    assert code == 1
    assert document["verified"] == 0
    assert document["fallbacks"] == 1
    assert sorted(document["missing_bundles"].values()) == [1, 2]
    code, output = run("log", "verify", "--log", log, "--bundles", log)
    assert code == 1
    assert "holds no bundle" in output


def test_a_join_of_no_outcomes_is_empty() -> None:
    assert OutcomeJoin().of("c", "d") == {}


def test_a_withdrawn_record_is_not_read(tmp_path: Path) -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    withdrawn = WithdrawnRecord(sequence=2, checkpoint="fraud.checkout", decision_id="late")
    taken_back = LogRecord(withdrawn=withdrawn).SerializeToString()
    payloads = [score("a", at, [1.0]), score("late", at, [1.0]), taken_back, score("late", at, [2.0])]
    write_segment(tmp_path, 1, 1, payloads)
    entries = [(entry.sequence, entry.kind) for entry in scan(tmp_path)]
    assert entries == [(1, "decision"), (3, "withdrawn"), (4, "decision")]
    export(tmp_path, tmp_path / "d.parquet")
    rows = duckdb.sql(
        f"select decision_id, features from '{tmp_path}/d.parquet' order by sequence"
    ).fetchall()
    assert rows == [("a", [1.0]), ("late", [2.0])]


def withdrawal(sequence: int, decision_id: str = "late") -> bytes:
    record = WithdrawnRecord(sequence=sequence, checkpoint="fraud.checkout", decision_id=decision_id)
    return LogRecord(withdrawn=record).SerializeToString()


@pytest.mark.parametrize(("between", "is_read"), [(2, False), (3, True)])
def test_a_withdrawal_is_found_within_its_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int, is_read: bool
) -> None:
    monkeypatch.setattr("scorer.log.scanning.REACH", 3)
    at = datetime(2026, 5, 1, tzinfo=UTC)
    others = [score(f"other-{n}", at, [1.0]) for n in range(between)]
    write_segment(tmp_path, 1, 1, [score("late", at, [1.0]), *others, withdrawal(1)])
    assert any(entry.decision_id == "late" for entry in scan(tmp_path, kinds={"decision"})) is is_read


def test_a_decision_that_is_withdrawn_later_is_removed_from_the_newest_decisions(tmp_path: Path) -> None:
    at = datetime(2026, 5, 1, tzinfo=UTC)
    payloads = [score("a", at, [1.0]), score("late", at, [1.0])]
    write_segment(tmp_path, 1, 1, payloads, sealed=False)
    tail = Tail(tmp_path)
    assert [one.decision_id for one in tail.newest("fraud.checkout", 9)] == ["late", "a"]
    write_segment(tmp_path, 1, 1, [*payloads, withdrawal(2), score("b", at, [1.0])], sealed=False)
    assert [one.decision_id for one in tail.newest("fraud.checkout", 9)] == ["b", "a"]
