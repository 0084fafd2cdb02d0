"""Tests of what the platform makes of the records of one decision in the logs of several servers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from logs import write_segment
from observing import ADMIN, START, Log, World

from scorer.errors import LogError
from scorer.ids import decision_key
from scorer.log.proof import TOKEN
from scorer.log.source.indexed import IndexedLogs
from scorer.release.decisions import merging
from scorer.release.errors import InvalidError
from scorer.release.fleet import Fleet, Member
from scorer.release.fleet.logs import log_directories
from scorer.release.readout import canary, load
from scorer.release.settings import PlatformFile
from scorer.release.store import micros
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

SECOND = 1_000_000


def row(server: str, sequence: int, name: str, at: int) -> merging.ListedDecision:
    return merging.ListedDecision(server, sequence, DecisionRecord(decision_id=name, decided_at_us=at))


def names(rows: Any) -> list[tuple[str, str]]:
    return [(one.record.decision_id, one.server) for one in rows]


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> World:
    return World(tmp_path, built_bundles["score-1"], built_bundles["score-2"], servers=("live-1", "live-2"))


# --- lists ---


def test_a_repeated_decision_is_listed_once_where_it_was_decided_first() -> None:
    rows = [
        row("b", 1, "x", 40),
        row("b", 2, "z", 60),
        row("a", 1, "x", 30),
        row("a", 2, "y", 50),
    ]
    assert names(merging.merged(rows)) == [("z", "b"), ("y", "a"), ("x", "a")]


def test_the_next_page_begins_after_the_last_decision_and_after_its_repetition() -> None:
    rows = [
        row("a", 1, "w", 10),
        row("a", 2, "x", 30),
        row("a", 3, "y", 50),
        row("b", 1, "v", 20),
        row("b", 2, "x", 40),
        row("b", 3, "w", 45),
    ]
    page, rest = merging.page(rows, 2)
    assert names(page) == [("y", "a"), ("x", "a")]
    # The later record of `w` is not where the next page begins, although its first record is on that page.
    assert sorted((one.server, one.sequence) for one in rest) == [("a", 1), ("b", 1)]
    assert merging.page(rows, 6) == (merging.merged(rows), [])


def test_a_cursor_keeps_its_positions_while_logs_come_and_go() -> None:
    text = merging.cursor({"a": 7, "b": 0, "gone": 3})
    assert merging.positions(text, ["new", "b", "a"]) == {"new": 0, "b": 0, "a": 7}
    assert merging.positions(None, ["a"]) == {"a": None}
    for wrong in ("7-0", text + "-", text + "-1", "x" * 2_000, "-".join(["00000000.1"] * 1_001)):
        with pytest.raises(InvalidError, match="omit the cursor"):
            merging.positions(wrong, ["a"])


# --- outcomes ---


def test_of_equal_revisions_the_first_that_any_server_received_counts(world: World) -> None:
    """The log that is read first has the later report, at a lower sequence."""
    at = micros(START)
    late = world.outcome(3, 0.0, proof=TOKEN, received_at_us=at + 900 * SECOND)
    early = world.outcome(3, 1.0, proof=TOKEN, received_at_us=at + 600 * SECOND)
    world.logs["live-1"].append([late])
    world.logs["live-2"].append([*world.records(6), early])
    world.readouts.collect()
    found = load.outcomes(world.root / "data" / "observations", world.checkpoint)
    assert dict(zip(found["fraud"][0].tolist(), found["fraud"][1].tolist(), strict=True)) == {
        decision_key("payment-000003"): 1.0
    }
    world.now = START + timedelta(days=60)
    metrics = world.metrics.metrics(ADMIN, world.checkpoint, start=START, end=START + timedelta(hours=1))
    outcomes = world.metrics.named(metrics, "outcomes")
    positive = outcomes.columns.index("positive")
    assert sum(one[positive] for one in outcomes.rows) == 1


# --- canary ---


def test_a_decision_of_both_lanes_counts_as_the_earlier_one(world: World) -> None:
    """During a change of shares, a retry at another server can be answered by the other lane."""
    world.release()
    records = [one for one in world.records(6) if one.HasField("decision")]
    own = [LogRecord() for _ in records]
    for at, (copy, one) in enumerate(zip(own, records, strict=True)):
        copy.CopyFrom(one)
        copy.decision.lane = "canary"
        copy.decision.bundle = bytes.fromhex(world.bundles["own"].digest.removeprefix("sha256:"))
        copy.decision.decided_at_us += SECOND if at % 2 else -SECOND
    world.logs["live-1"].append(records)
    world.logs["live-2"].append(own)
    world.readouts.collect()
    where = canary.since(
        world.root / "data" / "observations", world.checkpoint, micros(START - timedelta(minutes=1))
    )
    found = canary.answers(where, world.bundles["own"].digest, load.CodeNames())
    keys = [{*of.key.tolist()} for of in found[:2]]
    ids = [decision_key(one.decision.decision_id) for one in records]
    assert keys == [{*ids[::2]}, {*ids[1::2]}]


# --- the source ---


def decision(name: str) -> bytes:
    return LogRecord(
        decision=DecisionRecord(decision_id=name, checkpoint="fraud.checkout", decided_at_us=5)
    ).SerializeToString()


def test_the_log_of_a_server_that_is_gone_is_read(tmp_path: Path) -> None:
    shared, own = tmp_path / "logs", tmp_path / "elsewhere"
    for at, (place, name) in enumerate(((shared / "gone", "a"), (shared / "live-2", "b"), (own, "c"))):
        place.parent.mkdir(exist_ok=True)
        write_segment(place, 1, 1, [decision(name)], log=bytes([at]) * 16)
    (shared / "lost+found").mkdir()
    fleet = Fleet([
        Member("pool", "", "shadow", tmp_path / "not yet"),
        Member("live-1", "", log=own),
        Member("live-2", ""),
    ])  # fmt: skip
    assert list(log_directories(fleet, shared)) == ["gone", "live-1", "live-2", "pool"]
    assert list(log_directories(fleet, tmp_path / "missing")) == ["live-1", "pool"]
    source = IndexedLogs(lambda: log_directories(fleet, shared), tmp_path / "index.sqlite")
    try:
        assert [log.name for log in source.logs] == ["gone", "live-1", "live-2", "pool"]
        assert source.logs[0] is source.logs[0], "a log keeps its newest decisions"
        assert [log.identity is not None for log in source.logs] == [True, True, True, False]
        for name, server in (("a", "gone"), ("b", "live-2"), ("c", "live-1")):
            found = source.of_decision(name)
            assert [(log, entry.decision_id) for log, entry in found.entries] == [(server, name)]
            assert found.is_complete
            assert [text.split(":")[0] for text in found.problems] == ['server "pool"']
        with pytest.raises(LogError):
            list(source.logs[3].records("", 0))
    finally:
        source.close()


def test_two_servers_with_one_log_are_rejected() -> None:
    text = """
[[fleet]]
name = "a"
control = "127.0.0.1:1"
log = "decisions"
[[fleet]]
name = "b"
control = "127.0.0.1:2"
log = "decisions"
[checkpoints."fraud.checkout"]
alias = "fraud-checkout@live"
"""
    with pytest.raises(Exception, match="two servers have the log"):
        PlatformFile.parse(text)


def test_the_counts_of_two_logs_are_kept_apart(world: World) -> None:
    """Both logs have the same sequences."""
    first, second = Log(world.logs["live-1"].path), Log(world.logs["live-2"].path)
    first.append(world.records(5))
    second.append(world.records(7, first=5))
    world.readouts.collect()
    assert world.metrics.metrics(ADMIN, world.checkpoint, window="6h").rows == 12
    assert world.readouts.measure(world.change) == 12
