"""Tests of the decision explorer on logs of an independent writer: search, names, permissions, index."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bundles import ACTIONS, FEATURES
from logs import write_segment
from waiting import PATIENCE

from scorer.errors import LogError, RegistryError
from scorer.log import BundleShelf
from scorer.log.index import DecisionIndex
from scorer.log.search import search
from scorer.log.segments import entries_at, segment_files
from scorer.log.source.indexed import IndexedLogs
from scorer.release.access import Access
from scorer.release.decisions import Decisions
from scorer.release.decisions.shapes import features_shape
from scorer.release.errors import InvalidError, NotFoundError, UnreachableError
from scorer.release.model import Actor, Project, Role
from scorer.release.requests import DecisionFilter
from scorer.v1.log_pb2 import (
    DecisionRecord,
    LogRecord,
    ObservationRecord,
    OutcomeRecord,
    RecoveryRecord,
    WithdrawnRecord,
)

FRAUD, ACTION = "fraud.checkout", "action.authorise"
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
NOON_US = int(NOON.timestamp() * 1e6)


def decision(name: str, second: int = 0, checkpoint: str = FRAUD, **more: Any) -> bytes:
    fields: dict[str, Any] = {
        "decision_id": name,
        "checkpoint": checkpoint,
        "lane": "live",
        "bundle": bytes(32),
        "decided_at_us": NOON_US + second * 1_000_000,
        "features": [0.1, 3.0, math.nan, 7.5],
        "score": 0.25,
        "margin": -1.0,
        "decision": "approve",
        "exec_us": 9,
    }
    return LogRecord(decision=DecisionRecord(**{**fields, **more})).SerializeToString()


def seen(name: str, lane: str, *, error: str = "", **more: Any) -> bytes:
    own: dict[str, Any] = {
        "decision_id": name,
        "checkpoint": FRAUD,
        "lane": lane,
        "bundle": bytes(32),
        "features": [0.1, 3.0, math.nan, 7.5],
        "decided_at_us": NOON_US + 900,
    }
    if not error:
        own |= {"score": 0.5, "margin": 0.0, "decision": "review"}
    record = ObservationRecord(
        decision=DecisionRecord(**own),
        live_lane="live",
        live_decision="approve",
        live_score=0.25,
        answered_at_us=NOON_US,
        error=error,
        **more,
    )
    return LogRecord(observation=record).SerializeToString()


def outcome(name: str, value: float, revision: int = 0, second: int = 0, proof: int = 0) -> bytes:
    return LogRecord(
        outcome=OutcomeRecord(
            checkpoint=FRAUD,
            decision_id=name,
            kind="fraud",
            value=value,
            revision=revision,
            occurred_at_ms=1000,
            received_at_us=NOON_US + second * 1_000_000,
            proof=proof,  # type: ignore[arg-type]
        )
    ).SerializeToString()


class DecisionLogs:
    """The logs of two servers, and the users that search them."""

    def __init__(self, base: Path, bundles: Sequence[Path] = ()) -> None:
        self.base = base
        self.logs = {"live-1": base / "one", "pool": base / "two"}
        self.projects: list[Project] = [Project("all", "All")]
        self.paths = {BundleShelf([path]).digests[0]: path for path in bundles}
        self.made: list[Decisions] = []

    def service(self, *, names: Sequence[str] = ("live-1", "pool", "silent")) -> Decisions:
        """Return the service of a platform that has just started."""

        def local(digest: str) -> Path:
            if digest not in self.paths:
                raise RegistryError("no such bundle")
            return self.paths[digest]

        directories = {name: self.logs[name] for name in names if name in self.logs}
        source = IndexedLogs(lambda: directories, self.base / "data" / "decisions.sqlite")
        settings: Any = SimpleNamespace(checkpoints={FRAUD: None, ACTION: None})
        access: Any = SimpleNamespace(projects=lambda actor: self.projects)
        access.checkpoints = partial(Access.checkpoints, access)
        bundles: Any = SimpleNamespace(local=local)
        self.made.append(Decisions(source, access, bundles, settings))
        return self.made[-1]

    def write(
        self, server: str, number: int, first: int, payloads: Sequence[bytes], *, sealed: bool = True
    ) -> None:
        write_segment(self.logs[server], number, first, payloads, sealed=sealed)


ACTOR = Actor("ada", {"all": Role.VIEWER})


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[DecisionLogs]:
    opened = DecisionLogs(tmp_path)
    yield opened
    for one in opened.made:
        one.close()


@pytest.fixture
def filled(logs: DecisionLogs) -> DecisionLogs:
    recovery = LogRecord(recovery=RecoveryRecord(segment="x")).SerializeToString()
    logs.write("live-1", 1, 1, [recovery, decision("a"), decision("b", 1), outcome("a", 0.0, second=5)])
    logs.write(
        "live-1",
        2,
        5,
        [
            decision("c", 2),
            seen("a", "cr-000001"),
            outcome("a", 1.0, 1, second=9),
            outcome("a", 3.0, second=10),
        ],
        sealed=False,
    )
    logs.write("pool", 1, 1, [seen("a", "cr-000002", error="panic"), seen("c", "cr-000002")], sealed=False)
    return logs


def test_all_records_of_a_decision_are_found_in_all_logs(filled: DecisionLogs) -> None:
    result = filled.service().find(ACTOR, "a")
    assert {
        key: result["decision"][key] for key in ("decision_id", "lane", "score", "decision", "exec_us")
    } == {
        "decision_id": "a",
        "lane": "live",
        "score": 0.25,
        "decision": "approve",
        "exec_us": 9,
    }
    assert (result["decision"]["decided_at"], result["decision"]["server"]) == (NOON, "live-1")
    assert result["decision"]["bundle"] == "sha256:" + "0" * 64
    lanes = {one["lane"]: one for one in result["observations"]}
    assert set(lanes) == {"cr-000001", "cr-000002"}
    assert (lanes["cr-000001"]["decision"], lanes["cr-000001"]["flipped"]) == ("review", True)
    assert (lanes["cr-000001"]["live_decision"], lanes["cr-000001"]["server"]) == ("approve", "live-1")
    failed = lanes["cr-000002"]
    assert (failed["error"], failed["score"], failed["decision"], failed["flipped"]) == (
        "panic",
        None,
        None,
        False,
    )
    assert failed["server"] == "pool"
    assert [(one["value"], one["revision"], one["counts"]) for one in result["outcomes"]] == [
        (0.0, 0, False),
        (1.0, 1, True),
    ]
    assert result["conflicts"] == ["fraud revision 0: 0 counts, later 3 (live-1)"]
    assert result["features"] == [], "its bundle is unknown"
    assert result["also"] == []
    json.dumps(result, default=str, allow_nan=False)


def test_the_proof_of_an_outcome_is_shown(logs: DecisionLogs) -> None:
    from scorer.log.proof import TOKEN, UNPROVEN

    logs.write(
        "live-1", 1, 1, [decision("a"), outcome("a", 1.0, 9, proof=UNPROVEN), outcome("a", 0.0, proof=TOKEN)]
    )
    result = logs.service().find(ACTOR, "a")["outcomes"]
    assert [(one["value"], one["counts"], one["proven"], one["proof"]) for one in result] == [
        (0.0, True, True, "decision token"),
        (1.0, False, False, "unproven"),
    ]


def test_another_id_with_the_same_hash_is_another_decision(
    filled: DecisionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scorer.log import index

    monkeypatch.setattr(index, "decision_key", lambda decision_id, *, signed: 7)
    service = filled.service()
    result = service.find(ACTOR, "b")
    assert (result["decision"]["decision_id"], result["observations"], result["also"]) == ("b", [], [])
    with pytest.raises(NotFoundError):
        service.find(ACTOR, "z")


def test_features_and_choices_have_names_if_the_bundle_is_known(
    tmp_path: Path, built_bundles: dict[str, Path]
) -> None:
    logs = DecisionLogs(tmp_path, [built_bundles["score-1"], built_bundles["action-1"]])
    score, action = (bytes.fromhex(digest.removeprefix("sha256:")) for digest in logs.paths)
    pmf = [0.0, 0.25, 0.0, 0.5, 0.25, 0.0]
    logs.write("live-1", 1, 1, [
        decision("s", bundle=score), seen("s", "cr-000001", absent_features=[2]),
        decision("x", checkpoint=ACTION, bundle=action, score=0.0, margin=0.0, decision="", pmf=pmf,
                 action_index=3, action=ACTIONS[3], propensity=0.5, eligible_mask=bytes([0b011010])),
    ])  # fmt: skip
    service = logs.service()
    result = service.find(ACTOR, "s")
    assert [(one["name"], one["value"]) for one in result["features"]] == list(
        zip(FEATURES, [0.1, 3.0, None, 7.5], strict=True)
    )
    result = service.find(ACTOR, "x")
    assert (result["decision"]["kind"], result["decision"]["action"]) == ("action", ACTIONS[3])
    assert "score" not in result["decision"]
    assert [
        (one["action"], one["probability"], one["eligible"], one["chosen"]) for one in result["choices"]
    ] == [
        (ACTIONS[3], 0.5, True, True),
        *sorted([(ACTIONS[1], 0.25, True, False), (ACTIONS[4], 0.25, True, False)]),
        *sorted((ACTIONS[at], 0.0, False, False) for at in (0, 2, 5)),
    ]
    service.close()


def test_categories_and_flags_are_shown_as_the_request_had_them() -> None:
    from scorer.bundle import Feature, SchemaFile

    schema = SchemaFile(
        features=[
            Feature(name="country", type="category", categories=["NL", "BE"]),
            Feature(name="new", type="flag"),
            Feature(name="old", type="flag"),
            Feature(name="amount"),
            Feature(name="region", type="category", categories=["x"]),
        ]
    )
    record = DecisionRecord(features=[1.0, 1.0, 0.0, 16777217.0, math.nan])
    shown = features_shape(record, schema, absent=[4])
    assert [one["value"] for one in shown] == ["BE", True, False, 16777216.0, None]
    assert [one["absent"] for one in shown] == [False, False, False, False, True]
    assert features_shape(DecisionRecord(features=[1.0]), schema) == [], "a row of another schema"


def test_one_id_at_two_checkpoints_is_two_decisions(logs: DecisionLogs) -> None:
    logs.write(
        "live-1", 1, 1, [decision("t", 5), decision("t", 3, ACTION), decision("t", 6), outcome("t", 1.0)]
    )
    service = logs.service()
    result = service.find(ACTOR, "t")
    assert (result["decision"]["checkpoint"], result["decision"]["sequence"]) == (FRAUD, 1)
    assert [(one["checkpoint"], one["decided_at"].second) for one in result["also"]] == [
        (ACTION, 3),
        (FRAUD, 6),
    ]
    assert len(result["outcomes"]) == 1
    result = service.find(ACTOR, "t", checkpoint=ACTION)
    assert (result["decision"]["checkpoint"], result["outcomes"]) == (ACTION, [])


def test_a_checkpoint_of_another_project_is_not_revealed(filled: DecisionLogs) -> None:
    service = filled.service()
    filled.projects = [Project("risk", "Risk", checkpoints=(ACTION,))]
    with pytest.raises(NotFoundError) as hidden:
        service.find(ACTOR, "a")
    with pytest.raises(NotFoundError) as unknown:
        service.find(ACTOR, "z")
    assert str(hidden.value).replace('"a"', '"z"') == str(unknown.value), (
        "the error does not reveal that the checkpoint exists"
    )
    with pytest.raises(NotFoundError, match="that you may see"):
        service.recent(ACTOR, FRAUD)
    filled.projects = [
        Project("risk", "Risk", checkpoints=(ACTION,)),
        Project("x", "X", checkpoints=(FRAUD,)),
    ]
    assert service.find(ACTOR, "a")["decision"]["decision_id"] == "a"
    filled.projects = []
    with pytest.raises(NotFoundError):
        service.recent(ACTOR, FRAUD)


def test_recent_decisions_are_sorted_over_all_servers_and_follow_the_logs(filled: DecisionLogs) -> None:
    service = filled.service()

    def names(limit: int = 50, checkpoint: str = FRAUD) -> list[str]:
        return [str(row["decision_id"]) for row in service.recent(ACTOR, checkpoint, limit=limit)]

    assert names() == ["c", "b", "a"]
    assert names(2) == ["c", "b"]
    assert names(checkpoint=ACTION) == []
    filled.write("pool", 2, 3, [decision("e", 1)])
    filled.write("live-1", 3, 9, [decision("d", 3)], sealed=False)
    assert names() == ["d", "c", "e", "b", "a"] or names() == ["d", "c", "b", "e", "a"]
    with pytest.raises(NotFoundError, match="no checkpoint"):
        service.recent(ACTOR, "fraud.chekout")


def test_the_number_of_recent_decisions_is_bounded(logs: DecisionLogs) -> None:
    logs.write("live-1", 1, 1, [decision(f"d{at}", at) for at in range(700)])
    rows = logs.service().recent(ACTOR, FRAUD, limit=10_000)
    assert [row["decision_id"] for row in rows] == [f"d{at}" for at in reversed(range(200, 700))]


def test_new_records_are_found_at_once_and_after_a_restart(filled: DecisionLogs) -> None:
    service = filled.service()
    with pytest.raises(NotFoundError, match="in no log of live-1, pool"):
        service.find(ACTOR, "d")
    filled.write("live-1", 3, 9, [decision("d", 3), seen("c", "late")], sealed=False)
    assert service.find(ACTOR, "d")["decision"]["sequence"] == 9
    service.close()
    again = filled.service()
    result = again.find(ACTOR, "c")
    assert [one["lane"] for one in result["observations"]] == ["late", "cr-000002"]


def test_missing_logs_are_reported(logs: DecisionLogs) -> None:
    nowhere = logs.service(names=["silent"])
    assert nowhere.recent(ACTOR, FRAUD) == []
    with pytest.raises(NotFoundError, match="set `log` of a server"):
        nowhere.find(ACTOR, "a")
    service = logs.service()
    assert service.recent(ACTOR, FRAUD) == [], "the server has not started yet"
    with pytest.raises(UnreachableError, match="in none of the readable logs"):
        service.find(ACTOR, "a")
    logs.write("live-1", 1, 1, [decision("a")])
    assert service.find(ACTOR, "a")["decision"]["decision_id"] == "a", "the log of one server is sufficient"


# --- the index ---


def places(index: DecisionIndex, name: str) -> list[int]:
    found = index.places(name)
    assert found is not None
    return [sequence for sequences in found.values() for sequence in sequences]


def test_the_newest_segment_is_indexed_first_and_the_rest_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number in range(3):
        write_segment(
            log, number + 1, number * 20_001 + 1, [decision(f"{number}/{at}") for at in range(20_001)]
        )
    ticks = iter(range(1000))
    index = DecisionIndex(tmp_path / "index.sqlite", clock=lambda: float(next(ticks)))
    assert not index.update(log, seconds=0)
    assert places(index, "2/7") == [2 * 20_001 + 8]
    assert places(index, "0/7") == []
    rounds = 0
    while not index.update(log, seconds=0):
        rounds += 1
        assert rounds < 20
    assert [places(index, f"{number}/20000") for number in range(3)] == [[20_001], [40_002], [60_003]]
    index.close()


def test_an_index_continues_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, path = tmp_path / "log", tmp_path / "index.sqlite"
    write_segment(log, 1, 1, [decision(f"a{at}") for at in range(50)])
    write_segment(log, 2, 51, [decision("b")], sealed=False)
    index = DecisionIndex(path)
    assert index.update(log, seconds=60)
    index.close()
    started: list[int] = []

    from scorer.log import index as module

    original = module.scan

    def scan(directory: Path, *, start_sequence: int) -> Any:
        started.append(start_sequence)
        return original(directory, start_sequence=start_sequence)

    monkeypatch.setattr(module, "scan", scan)
    index = DecisionIndex(path)
    assert index.update(log, seconds=60)
    assert started == [52], "the sealed segment is not read again"
    assert (places(index, "a49"), places(index, "b"), places(index, "c")) == ([50], [51], [])
    index.close()


@pytest.mark.parametrize("sealed", [True, False], ids=["in the next segment", "in the same segment"])
def test_a_decision_that_is_withdrawn_after_it_was_indexed_is_not_found(tmp_path: Path, sealed: bool) -> None:
    log = tmp_path / "log"
    index = DecisionIndex(tmp_path / "index.sqlite")
    written = [decision("a"), decision("late")]
    write_segment(log, 1, 1, written, sealed=sealed)
    assert index.update(log, seconds=60)
    assert [entry.sequence for entry in entries_at(log, places(index, "late"))] == [2]
    record = WithdrawnRecord(sequence=2, checkpoint=FRAUD, decision_id="late")
    since = [LogRecord(withdrawn=record).SerializeToString(), decision("late", 1)]
    if sealed:
        write_segment(log, 2, 3, since)
    else:
        write_segment(log, 1, 1, written + since)
    assert index.update(log, seconds=60)
    assert [entry.sequence for entry in entries_at(log, places(index, "late"))] == [4]
    index.close()


def test_a_replaced_log_is_removed_from_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import logs

    log = tmp_path / "log"
    write_segment(log, 1, 1, [decision("a"), decision("b")])
    index = DecisionIndex(tmp_path / "index.sqlite")
    index.update(log, seconds=60)
    for file in log.iterdir():
        file.unlink()
    monkeypatch.setattr(logs, "LOG", bytes(range(16)))
    write_segment(log, 1, 1, [decision("c")])
    index.update(log, seconds=60)
    assert (places(index, "a"), places(index, "c")) == ([], [1])
    index.close()


def test_deleted_segments_are_removed_from_the_index(tmp_path: Path) -> None:
    log = tmp_path / "log"
    oldest = write_segment(log, 1, 1, [decision("a")])
    write_segment(log, 2, 2, [decision("b")])
    index = DecisionIndex(tmp_path / "index.sqlite")
    index.update(log, seconds=60)
    oldest.unlink()
    assert list(entries_at(log, places(index, "a"))) == [], (
        "the segment is deleted before the index is updated"
    )
    index.update(log, seconds=60)
    assert (places(index, "a"), places(index, "b")) == ([], [2])
    index.close()


@pytest.mark.parametrize("harm", ["garbage", "truncated", "pages"])
def test_a_damaged_index_is_recreated(logs: DecisionLogs, harm: str) -> None:
    logs.write("live-1", 1, 1, [decision(f"a{at}") for at in range(3000)])
    service = logs.service(names=["live-1"])
    assert service.find(ACTOR, "a2999")
    service.close()
    path = logs.base / "data" / "decisions.sqlite"
    content = bytearray(path.read_bytes())
    if harm == "garbage":
        content[:] = b"no database at all" * 1000
    elif harm == "truncated":
        del content[len(content) // 2 :]
    else:
        content[8192:] = bytes(len(content) - 8192)
    path.write_bytes(bytes(content))
    service = logs.service(names=["live-1"])
    assert service.find(ACTOR, "a2999")["decision"]["sequence"] == 3000
    assert service.find(ACTOR, "a0")["decision"]["sequence"] == 1


@contextlib.contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Another process that writes to a database."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
    finally:
        connection.close()


def test_a_locked_index_is_reported_and_kept(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "index.sqlite"
    write_segment(log, 1, 1, [decision("a")], sealed=False)
    index = DecisionIndex(path, busy_seconds=0.05)
    assert index.update(log, seconds=60)
    write_segment(log, 1, 1, [decision("a"), decision("b")], sealed=False)
    before = path.stat().st_ino
    with locked(path):
        for _ in range(2):
            with pytest.raises(LogError, match=r"locked for 0\.05 s .*; try again in a moment"):
                index.update(log, seconds=60)
        assert (places(index, "a"), places(index, "b")) == ([1], [])
    assert path.stat().st_ino == before, "the index was deleted"
    assert index.update(log, seconds=60)
    assert (places(index, "a"), places(index, "b")) == ([1], [2])
    index.close()


def test_an_index_that_is_locked_for_a_moment_is_waited_for(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "index.sqlite"
    write_segment(log, 1, 1, [decision("a")])
    index = DecisionIndex(path, busy_seconds=PATIENCE)
    assert index.update(log, seconds=60)
    write_segment(log, 2, 2, [decision("b")])
    with locked(path) as connection:
        release = threading.Timer(0.2, connection.rollback)
        release.start()
        assert index.update(log, seconds=60)
        release.join()
    assert places(index, "b") == [2]
    index.close()


def test_a_full_disk_keeps_the_index(tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "index.sqlite"
    write_segment(log, 1, 1, [decision(f"a{at}") for at in range(3000)])
    index = DecisionIndex(path)
    assert index.update(log, seconds=60)
    write_segment(log, 2, 3001, [decision(f"b{at}") for at in range(3000)])
    before = path.stat().st_ino
    connection = index._open()
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LogError, match="full; free space on its disk"):
        index.update(log, seconds=60)
    assert path.stat().st_ino == before
    assert index.update(log, seconds=60), "the limit was of the connection that was closed"
    assert (places(index, "a2999"), places(index, "b2999")) == ([3000], [6000])
    index.close()


def test_a_second_request_does_not_wait_for_the_first_ones_indexing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [decision("a")])
    index = DecisionIndex(tmp_path / "index.sqlite", busy_seconds=0.05)
    with index._lock:
        assert not index.update(log, seconds=60)
        with pytest.raises(LogError, match="other requests have used it"):
            index.places("a")
    assert index.update(log, seconds=60)
    index.close()


def test_a_decision_is_found_while_the_index_is_locked(
    logs: DecisionLogs, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs.write("live-1", 1, 1, [decision("a")])
    service = logs.service(names=["live-1"])
    path = logs.base / "data" / "decisions.sqlite"
    monkeypatch.setattr(service._source, "_index", DecisionIndex(path, busy_seconds=0.05))
    assert service.find(ACTOR, "a")
    logs.write("live-1", 2, 2, [decision("b")])
    with locked(path):
        assert service.find(ACTOR, "a")["decision"]["sequence"] == 1
        with pytest.raises(UnreachableError, match=r'"b" is in none .*locked for .*; try again in a moment'):
            service.find(ACTOR, "b")
    assert service.find(ACTOR, "b")["decision"]["sequence"] == 2


def test_records_are_read_individually_and_in_ranges(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [decision(f"a{at}") for at in range(100)])
    write_segment(log, 2, 101, [decision(f"b{at}") for at in range(25_000)])
    wanted = [1, 2, 50, 100, 101, 103, 25_100, 99_999]
    result = {entry.sequence: entry.decision_id for entry in entries_at(log, reversed(wanted))}
    assert result == {1: "a0", 2: "a1", 50: "a49", 100: "a99", 101: "b0", 103: "b2", 25_100: "b24999"}


def test_a_segment_with_a_damaged_header_is_read_with_the_previous_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    write_segment(log, 1, 1, [decision("a")])
    damaged = write_segment(log, 2, 2, [decision("b")])
    write_segment(log, 3, 3, [decision("c")])
    content = bytearray(damaged.read_bytes())
    content[0:8] = bytes(8)
    damaged.write_bytes(bytes(content))
    assert [one.number for one in segment_files(log)] == [3, 1]
    index = DecisionIndex(tmp_path / "index.sqlite")
    assert index.update(log, seconds=60)
    assert [places(index, name) for name in "abc"] == [[1], [2], [3]]
    index.close()


# --- search ---


def search_log(service: Decisions, cursor: str | None = None, limit: int = 50, **fields: Any) -> Any:
    return service.search(ACTOR, FRAUD, DecisionFilter(**fields), cursor=cursor, limit=limit)


def ids(page: Any) -> list[str]:
    return [str(row["decision_id"]) for row in page.items]


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({}, ["d", "c", "b", "a"]),
        ({"lane": "canary"}, ["c"]),
        ({"decision": "decline"}, ["d", "b"]),
        ({"entity": "card-1"}, ["b"]),
        ({"low": 0.5}, ["d", "b"]),
        ({"low": 0.25, "high": 0.6}, ["c", "b", "a"]),
        ({"begin": NOON + timedelta(seconds=2)}, ["d", "c"]),
        ({"begin": NOON + timedelta(seconds=1), "end": NOON + timedelta(seconds=3)}, ["c", "b"]),
        ({"decision": "decline", "low": 0.9}, ["d"]),
        ({"outcome": "known"}, ["c", "a"]),
        ({"outcome": "positive"}, ["a"]),
        ({"outcome": "negative"}, ["c"]),
        ({"outcome": "unknown"}, ["d", "b"]),
        ({"lane": "none"}, []),
    ],
)
def test_decisions_are_found_by_their_recorded_fields(
    logs: DecisionLogs, fields: dict[str, Any], names: list[str]
) -> None:
    logs.write(
        "live-1",
        1,
        1,
        [
            decision("a", 0),
            decision("b", 1, decision="decline", score=0.6, entity="card-1"),
            decision("other", 1, checkpoint=ACTION),
            decision("gone", 1),
            LogRecord(withdrawn=WithdrawnRecord(sequence=4)).SerializeToString(),
        ],
    )
    logs.write(
        "live-1",
        2,
        6,
        [decision("c", 2, lane="canary"), decision("d", 3, decision="decline", score=0.95)],
    )
    service = logs.service()
    service._outcomes = lambda checkpoint, names: {"a": {"fraud": 1.0}, "c": {"fraud": 0.0}}
    assert ids(search_log(service, **fields)) == names


def test_pages_of_a_search_have_each_decision_once(logs: DecisionLogs) -> None:
    for at, server in enumerate(("live-1", "pool")):
        logs.write(server, 1, 1, [decision(f"{at}-{n}", 2 * n + at) for n in range(7)])
    service = logs.service()
    whole = ids(search_log(service))
    assert whole == [f"{n % 2}-{n // 2}" for n in range(13, -1, -1)]
    pages, cursor = [], None
    for _ in range(20):
        page = search_log(service, cursor, limit=4)
        pages += ids(page)
        cursor = page.next
        if cursor is None:
            break
    assert pages == whole
    assert cursor is None


def test_a_search_is_bounded_and_continues_where_it_ended(logs: DecisionLogs) -> None:
    log = logs.logs["live-1"]
    logs.write(
        "live-1", 1, 1, [decision("old", 0, decision="decline"), *(decision(f"n{n}", 1) for n in range(20))]
    )
    first = search(log, lambda record: record.decision == "decline", most=8)
    assert (first.found, first.is_complete) == ([], False)
    second = search(log, lambda record: record.decision == "decline", before=first.upto, most=100)
    assert [record.decision_id for _, record in second.found] == ["old"]
    assert second.is_complete


@pytest.mark.parametrize("cursor", ["x", "1-2-3-4-5", "", "-1", "9" * 40])
def test_the_cursor_of_another_list_is_refused(logs: DecisionLogs, cursor: str) -> None:
    with pytest.raises(InvalidError, match="omit the cursor"):
        search_log(logs.service(), cursor)
