"""Tests of the source that reads directories: what a pass returns, where it continues, and what it holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from joining import POINT, Maker, delivery, outcome
from logs import write_segment

from scorer.errors import LogError
from scorer.log import erase
from scorer.log.source.directories import PRUNED, log_directories
from scorer.log.source.interface import LogPass, ReadPosition, SourceBatch, SourceQuery
from scorer.log.source.rows import SCHEMAS
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, WithdrawnRecord


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


def read(log: Path, after: ReadPosition | None = None, **query: Any) -> tuple[list[SourceBatch], LogPass]:
    [one] = log_directories([log]).logs
    found = one.read(SourceQuery(**{"checkpoint": POINT, **query}), after)
    return list(found), found


def ids(batches: list[SourceBatch], kind: str) -> list[str]:
    return [name for one in batches if one.kind == kind for name in one.rows["decision_id"].to_pylist()]


def test_a_pass_returns_the_rows_of_a_checkpoint_in_the_order_of_the_log(tmp_path: Path, make: Maker) -> None:
    log = tmp_path / "log"
    score = LogRecord(decision=DecisionRecord(decision_id="s", checkpoint="fraud.checkout", score=0.5))
    withdrawn = LogRecord(withdrawn=WithdrawnRecord(sequence=4, checkpoint=POINT, decision_id="gone"))
    records = [
        make.decision("a", 0, 2, entity="shopper", eligible_mask=bytes([0b101111]), withheld=[3]),
        outcome("a", 1, 0.5, 2, **make.token("a", 0, 2)),
        score.SerializeToString(),
        make.decision("gone", 0),
        withdrawn.SerializeToString(),
        delivery("a", 0),
        outcome("a", 2, kind="captured"),
        b"",
    ]
    write_segment(log, 1, 1, records)
    batches, done = read(log)
    assert {one.checkpoint for one in batches} == {POINT, ""}
    for one in batches:
        assert one.rows.schema == SCHEMAS[one.kind]
    rows = {one.kind: one.rows.to_pylist() for one in batches}
    [decision] = rows["decisions"]
    assert (decision["decision_id"], decision["sequence"], decision["entity"]) == ("a", 1, "shopper")
    assert decision["eligible"] == [True, True, True, True, False, True]
    assert decision["pmf"] == [0.1, 0.1, 0.5, 0.1, 0.1, 0.1] and decision["withheld"] == [3]
    assert (decision["decision"], decision["rules"]) == ("", [])
    assert [one["kind"] for one in rows["outcomes"]] == ["authorised", "captured"]
    assert rows["outcomes"][0]["token_index"] == 2 and rows["outcomes"][1]["token_index"] is None
    assert rows["deliveries"][0]["delivered"] is False
    assert rows["withdrawals"] == [{"sequence": 5, "withdrawn": 4}]
    assert rows["unknown"] == [{"sequence": 8}]
    assert (done.continued, done.position.next, done.first_sequence, done.since_us) == (False, 9, 1, 0)
    assert list(done.segments.values()) == [True]
    every, _ = read(log, checkpoint=None)
    assert ids([one for one in every if one.checkpoint == "fraud.checkout"], "decisions") == ["s"]


def test_a_pass_continues_where_the_last_one_ended(tmp_path: Path, make: Maker) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [make.decision("a", 0), make.decision("b", 0)], sealed=False)
    _, first = read(log)
    again, second = read(log, first.position)
    assert (again, second.continued, second.position) == ([], True, first.position)
    write_segment(log, 1, 1, [make.decision("a", 0), make.decision("b", 0), make.decision("c", 0)])
    batches, third = read(log, second.position)
    assert ids(batches, "decisions") == ["c"] and third.continued


def test_a_log_that_is_not_what_it_was_is_read_from_its_first_record(tmp_path: Path, make: Maker) -> None:
    log = tmp_path / "log"
    records = [make.decision(name, 0) for name in "abc"]
    write_segment(log, 1, 1, records)
    _, first = read(log)
    # Shorter; as long, with another end; and longer, but grown from an older copy.
    for changed in (records[:2], [*records[:2], make.decision("x", 1)], [*records[:2], *records]):
        write_segment(log, 1, 1, changed)
        batches, second = read(log, first.position)
        assert not second.continued
        assert len(ids(batches, "decisions")) == len(changed)


def test_another_log_in_the_directory_is_read_from_its_first_record(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [make.decision("a", 0)])
    _, first = read(log)
    monkeypatch.setattr("logs.LOG", bytes(16))
    write_segment(log, 1, 1, [make.decision("a", 0)])
    batches, second = read(log, first.position)
    assert not second.continued and ids(batches, "decisions") == ["a"]
    assert second.position.log != first.position.log


def test_retention_may_remove_what_was_read_but_not_what_was_not(tmp_path: Path, make: Maker) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [make.decision("a", 0)])
    _, first = read(log)
    write_segment(log, 2, 2, [make.decision("b", 0), make.decision("c", 0)])
    write_segment(log, 3, 4, [make.decision("d", 0)])
    oldest, second, _ = sorted(log.glob("*.seg"))
    oldest.unlink()
    batches, done = read(log, first.position)
    assert ids(batches, "decisions") == ["b", "c", "d"]
    assert (done.continued, done.findings, done.first_sequence) == (True, [], 2)
    second.unlink()
    batches, done = read(log, first.position)
    assert ids(batches, "decisions") == ["d"]
    [lost] = done.findings
    assert (lost.kind, lost.lost) == (PRUNED, (2, 3))


def test_a_pass_skips_erased_entities_and_its_version_says_so(tmp_path: Path, make: Maker) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [make.decision("a", 0), make.decision("b", 0), outcome("a", 1)])
    [one] = log_directories([log]).logs
    before = one.erasures
    erase(log, "shopper-a")
    assert one.erasures != before
    batches, _ = read(log)
    assert ids(batches, "decisions") == ["b"] and ids(batches, "outcomes") == []


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_pass_holds_no_more_rows_than_it_may(
    tmp_path: Path, make: Maker, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Counted over all kinds: the records that wait are never more than the batch that follows."""
    log = tmp_path / "log"
    records = [one for at in range(50) for one in (make.decision(f"d{at}", 0), outcome(f"d{at}", 1))]
    write_segment(log, 1, 1, records)
    taken: list[int] = []
    [one] = log_directories([log]).logs
    found: Any = one.read(SourceQuery(POINT, rows=rows))
    inside = found._scan

    def counted() -> Iterator[Any]:
        for entry in inside:
            taken.append(1)
            yield entry

    monkeypatch.setattr(found, "_scan", type("Counted", (), {"__iter__": lambda _: counted()})())
    given = 0
    for batch in found:
        assert len(taken) - given <= rows
        given += len(batch.rows)
    assert given == 100


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no decision log is given; name at least one directory"),
        (["a", "./a"], 'log "./a" is given twice; name each log once'),
        (["a", "s3://bucket/log"], 'log "s3://bucket/log" is a URL; name a directory'),
    ],
)
def test_what_is_no_list_of_logs_is_refused(tmp_path: Path, paths: list[str], message: str) -> None:
    with pytest.raises(LogError, match=message.replace(".", r"\.")):
        log_directories(paths, tmp_path)


def test_a_directory_that_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such directory"):
        read(tmp_path / "none")
