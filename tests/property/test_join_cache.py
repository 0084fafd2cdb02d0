"""A join that reads on where the last one ended gives what a join of the whole log gives."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logs import write_segment

from scorer.bundle import inspect
from scorer.learn.errors import DataError
from scorer.learn.join import cache as cache_module
from scorer.learn.join.joining import join
from scorer.learn.join.settings import JoinSettings
from scorer.log import BundleShelf, scanning
from scorer.log.source.directories import log_directories
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord, WithdrawnRecord

POINT = "action.authorise"
START = 1_767_571_200_000
HOUR = 3_600_000


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"]])


@pytest.fixture(scope="module")
def base(built_bundles: dict[str, Path]) -> dict[str, Any]:
    found = inspect(built_bundles["action-1"])
    actions = [action.id for action in found.actions]
    return {
        "checkpoint": POINT,
        "lane": "live",
        "bundle": bytes.fromhex(found.digest.removeprefix("sha256:")),
        "features": [10.0, 3.0, 1.0, math.nan],
        "schema_fingerprint": int(found.schema_fingerprint, 16),
        "pmf": [0.5] + [0.5 / (len(actions) - 1)] * (len(actions) - 1),
        "action": actions[0],
        "propensity": 0.5,
    }


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts and merges within a few records."""
    monkeypatch.setattr(cache_module, "PART_ROWS", 3)
    monkeypatch.setattr(cache_module, "_SMALL_PARTS", 2)


OTHER: dict[str, dict[str, Any]] = {
    "good": {},
    "fallback": {"fallback_source": "static"},
    "greedy": {"fallback_source": "greedy"},
    "unknown bundle": {"bundle": bytes(32)},
    "no action": {"action": "", "pmf": [], "propensity": 0.0},
    "bad pmf": {"pmf": [0.5] * 6},
    "bad propensity": {"propensity": 0.4},
    "another checkpoint": {"checkpoint": "elsewhere"},
}

minutes = st.integers(0, 6_000)
ids = st.integers(0, 9).map("decision-{}".format)
decisions = st.tuples(st.just("decision"), ids, minutes, st.sampled_from(sorted(OTHER)))
outcomes = st.tuples(
    st.just("outcome"), ids, minutes, st.sampled_from([0.0, 1.0, math.nan]), st.integers(0, 2), st.booleans()
)
others = st.sampled_from([("unknown",), ("withdrawn",)])
events = st.lists(st.one_of(decisions, decisions, outcomes, others), min_size=1, max_size=30)


def record(event: tuple[Any, ...], base: dict[str, Any], sequence: int = 0) -> bytes:
    if event[0] == "unknown":
        return b""
    if event[0] == "withdrawn":
        before = WithdrawnRecord(sequence=max(sequence - 1, 0), checkpoint=POINT)
        return LogRecord(withdrawn=before).SerializeToString()
    kind, name, minute, *rest = event
    at_us = (START + minute * 60_000) * 1000
    if kind == "decision":
        fields = {**base, "decision_id": name, "entity": name, "decided_at_us": at_us, **OTHER[rest[0]]}
        return LogRecord(decision=DecisionRecord(**fields)).SerializeToString()
    value, revision, of_reward = rest
    return LogRecord(
        outcome=OutcomeRecord(
            checkpoint=POINT,
            decision_id=name,
            kind="authorised" if of_reward else "captured",
            value=value,
            revision=revision,
            received_at_us=at_us,
        )
    ).SerializeToString()


def join_one(log: Path, *arguments: Any, **more: Any) -> Any:
    return join(log_directories([log]), *arguments, **more)


def result(*arguments: Any, **more: Any) -> Any:
    try:
        joined = join_one(*arguments, **more)
    except DataError as error:
        return str(error)
    return joined.experience.digest(), joined.findings, joined.notes(arguments[2])


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    stretches=st.lists(
        st.tuples(events, minutes, st.sampled_from([None, 0.5, 2.0]), st.booleans()), min_size=1, max_size=5
    ),
    removed=st.integers(0, 2),
)
def test_reading_on_gives_what_reading_all_gives(
    tmp_path_factory: Any,
    shelf: BundleShelf,
    base: dict[str, Any],
    small_parts: None,
    stretches: list[tuple[list[Any], int, float | None, bool]],
    removed: int,
) -> None:
    """The log grows, withdraws records, seals segments, loses its oldest ones; moments and windows differ."""
    folder = tmp_path_factory.mktemp("cache")
    log, cache = folder / "log", folder / "work" / "join"
    number, first, waiting = 1, 1, []
    for at, (added, moment, days, seals) in enumerate(stretches):
        begin = first + len(waiting)
        waiting += [record(event, base, begin + place) for place, event in enumerate(added)]
        write_segment(log, number, first, waiting, sealed=seals)
        if seals:
            number, first, waiting = number + 1, first + len(waiting), []
        segments = sorted(log.glob("*.seg"))
        if at >= 2 and len(segments) > removed + 1:
            for gone in segments[:removed]:
                gone.unlink()
        of = JoinSettings(days=days, families=(), rows=2)
        question = {"as_of_ms": START + moment * 60_000, "checkpoint": POINT}
        assert result(log, shelf, of, **question, cache=cache) == result(log, shelf, of, **question)


def write_log(log: Path, base: dict[str, Any], number: int, first: int, rows: int) -> None:
    records = []
    for at in range(rows):
        name = f"decision-{first + at}"
        records.append(record(("decision", name, at, "good"), base))
        records.append(record(("outcome", name, at + 30, 1.0, 0, True), base))
    write_segment(log, number, first, records)


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sequences that joins have read from the log, each as often as it was read."""
    read: list[int] = []

    class Counting(scanning.LogReader):
        def payloads(self, advance: Any = None) -> Iterator[tuple[int, bytes]]:
            for sequence, payload in super().payloads(advance):
                read.append(sequence)
                yield sequence, payload

    monkeypatch.setattr(scanning, "LogReader", Counting)
    return read


def test_only_what_is_new_is_read(
    tmp_path: Path,
    shelf: BundleShelf,
    base: dict[str, Any],
    delivered: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = delivered
    log, cache = tmp_path / "log", tmp_path / "join"
    question = {"as_of_ms": START + 10_000 * 60_000, "checkpoint": POINT, "cache": cache}
    write_log(log, base, 1, 1, 50)
    assert len(join_one(log, shelf, **question).experience) == 50
    assert read == list(range(1, 101))
    read.clear()
    write_log(log, base, 2, 101, 3)
    assert len(join_one(log, shelf, **question).experience) == 53
    # The last record is read again, to see that it is the same log.
    assert read == list(range(100, 107))
    read.clear()
    assert len(join_one(log, shelf, **question).experience) == 53
    assert read == [106]
    read.clear()
    # A cache that lost a file is not used, and another log has a cache of its own.
    (next(cache.glob("*/decisions-*.parquet"))).unlink()
    assert len(join_one(log, shelf, **question).experience) == 53
    assert len(read) == 106
    read.clear()
    monkeypatch.setattr("logs.LOG", bytes(16))
    write_log(tmp_path / "other", base, 1, 1, 2)
    assert len(join_one(tmp_path / "other", shelf, **question).experience) == 2
    assert len(read) == 4


@pytest.mark.parametrize("sealed", [True, False], ids=["in the next segment", "in the same segment"])
def test_a_record_that_is_withdrawn_after_it_was_read_is_left_out(
    tmp_path: Path, shelf: BundleShelf, base: dict[str, Any], sealed: bool
) -> None:
    log, cache = tmp_path / "log", tmp_path / "join"
    question = {"as_of_ms": START + 10_000 * 60_000, "checkpoint": POINT}
    first = [record(("decision", f"decision-{at}", at, "good"), base) for at in (1, 2)]
    first.append(record(("outcome", "decision-1", 3, 0.0, 0, True), base))
    write_segment(log, 1, 1, first, sealed=sealed)
    before = join_one(log, shelf, **question, cache=cache).experience
    assert (before.decision_id.tolist(), before.reward.tolist()[0]) == (["decision-1", "decision-2"], 0.0)
    since = [record(("withdrawn",), base, sequence + 1) for sequence in (2, 3)]
    since += [record(("outcome", "decision-1", 4, 1.0, 0, True), base)]
    if sealed:
        write_segment(log, 2, 4, since)
    else:
        write_segment(log, 1, 1, first + since)
    for _ in range(2):
        kept = join_one(log, shelf, **question, cache=cache)
        assert kept.experience.decision_id.tolist() == ["decision-1"]
        assert kept.experience.reward.tolist() == [1.0], "a withdrawn outcome may be reported again"
        assert kept.experience.digest() == join_one(log, shelf, **question).experience.digest()


def test_damage_is_reported_again_though_it_is_not_read_again(
    tmp_path: Path, shelf: BundleShelf, base: dict[str, Any]
) -> None:
    log, cache = tmp_path / "log", tmp_path / "join"
    write_log(log, base, 1, 1, 5)
    write_log(log, base, 2, 11, 5)
    segment = sorted(log.glob("*.seg"))[0]
    data = bytearray(segment.read_bytes())
    data[200] ^= 4
    segment.write_bytes(bytes(data))
    question = {"as_of_ms": START + 10_000 * 60_000, "checkpoint": POINT, "cache": cache}
    for number, first in ((3, 21), (4, 31)):
        joined = join_one(log, shelf, **question)
        assert [one.count for one in joined.findings if one.name == "damaged segment"] == [1]
        write_log(log, base, number, first, 5)


def test_outcomes_and_ids_take_little_memory(
    tmp_path: Path, shelf: BundleShelf, base: dict[str, Any]
) -> None:
    """Reports that count for nothing must not stay as Python objects: 200 bytes each, not more."""
    log, reports = tmp_path / "log", 60_000
    records = [record(("decision", "decision-0", 0, "good"), base)]
    records += [record(("outcome", f"another-decision-{at}", 1, 1.0, 0, True), base) for at in range(reports)]
    write_segment(log, 1, 1, records)
    # A pool of its own: the peak of the default one is that of all tests before.
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        joined = join_one(log, shelf, as_of_ms=START + 10_000 * 60_000, checkpoint=POINT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
    assert next(one.count for one in joined.findings if one.name == "outcome without decision") == reports
    peak += pool.max_memory() or 0
    # What waits as records, and one batch of the reader, is the same for any log.
    assert peak < 12e6 + 200 * reports
