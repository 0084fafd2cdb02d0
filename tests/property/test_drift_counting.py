"""Counts of drift detection against a naive reference: any records, in any batches, with restarts."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from drifting import BUNDLE, CHECKPOINT, DIGEST, SETTINGS, START, FakeLog, monitor_of, outcome
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.drift.binning import WIDTH
from scorer.drift.counting import (
    DELAYS,
    HOUR_US,
    LABEL,
    OUTCOME_WIDTH,
    SCORES,
    STATE_WIDTH,
    BundleFacts,
    feature_bins,
    listed,
)
from scorer.drift.monitor import Monitor
from scorer.drift.state import DriftState, dense
from scorer.v1.log_pb2 import DecisionRecord

HOURS = 60
SMALL = SETTINGS.model_copy(update={"reference_rows": 4})

decisions = st.builds(
    lambda number, hour, lane, label, amount, issuer: (
        "decision",
        DecisionRecord(
            decision_id=f"p{number}",
            checkpoint=CHECKPOINT,
            lane=lane,
            bundle=BUNDLE,
            decided_at_us=START + hour * HOUR_US,
            decision=label,
            score=number / 20,
            features=[amount, issuer],
        ),
    ),
    st.integers(0, 5), st.integers(0, HOURS - 1), st.sampled_from(["live", "canary"]),
    st.sampled_from(["approve", "decline"]), st.floats(0, 100, width=32) | st.just(float("nan")),
    st.integers(0, 4),
)  # fmt: skip
outcomes = st.builds(
    lambda number, value, revision, hour: (
        "outcome",
        outcome(f"p{number}", START + hour * HOUR_US, value=value, revision=revision),
    ),
    st.integers(0, 5), st.sampled_from([0.0, 1.0]), st.integers(0, 3), st.integers(0, HOURS + 100),
)  # fmt: skip
RECORDS = st.lists(st.one_of(decisions, outcomes), max_size=60)


class _KillError(Exception):
    """The end of a process within a transaction."""


@settings(max_examples=100, deadline=None)
@given(RECORDS, st.integers(1, 60), st.sets(st.integers(0, 20), max_size=3))
def test_counts_are_those_of_a_naive_reference(
    records: Sequence[tuple[str, Any]], batch: int, kills: set[int]
) -> None:
    log = FakeLog()
    for kind, record in records:
        log.append(kind, record)
    with tempfile.TemporaryDirectory() as folder:
        now = START + (HOURS + 1) * HOUR_US
        for _ in range(len(kills)):
            monitor = monitor_of(Path(folder), [log], now, settings=SMALL, batch=batch)
            _killed(monitor, log, len(records) // 2)
            monitor.state.close()
        monitor = monitor_of(Path(folder), [log], now, settings=SMALL, batch=batch)
        monitor.read()
        assert monitor.read().records == 0
        _compare(monitor, [record for kind, record in records if kind == "decision"], records)
        monitor.state.close()


def _killed(monitor: Monitor, log: FakeLog, at: int) -> None:
    """Read until a record in the middle of a batch, where the process ends."""

    def records(_: str, start: int) -> Any:
        for entry in log.entries:
            if entry.sequence > at:
                raise _KillError
            if entry.sequence >= start:
                yield entry

    broken = FakeLog(log.entries)
    broken.records = records  # type: ignore[method-assign]
    own = Monitor(
        DriftState(monitor.state.path),
        lambda: [broken],  # type: ignore[list-item, return-value]
        monitor._plans,
        BundleFacts(monitor._bundles._local),
        SMALL,
        now=monitor._now,
        batch=monitor._batch,
    )
    try:
        own.read()
    except _KillError:
        pass
    finally:
        own.state.close()


def _compare(monitor: Monitor, decided: list[DecisionRecord], records: Sequence[tuple[str, Any]]) -> None:
    first: dict[str, DecisionRecord] = {}
    for record in decided:
        first.setdefault(record.decision_id, record)
    best: dict[str, Any] = {}
    for kind, record in records:
        if kind == "outcome":
            known = best.get(record.decision_id)
            if known is None or record.revision > known.revision:
                best[record.decision_id] = record
    begin = START // HOUR_US
    with monitor.state.reading() as connection:
        if connection is None:
            assert not first
            return
        labels = listed(connection, CHECKPOINT, "label")
        bins = feature_bins(connection, CHECKPOINT)
        reference = BundleFacts(monitor._bundles._local).scores(DIGEST)
        assert reference is not None
        expected: dict[tuple[str, str], Counter[tuple[int, int]]] = defaultdict(Counter)
        for record in first.values():
            hour, place = record.decided_at_us // HOUR_US - begin, record.lane
            score = int(reference.places(np.array([record.score]))[0])
            expected[place, "s"].update([(hour, score), (hour, LABEL + labels.index(record.decision))])
            for at, (number, one) in enumerate(bins.values()):
                value = np.array([record.features[at]], np.float32)
                code = int(one.codes(value)[0])
                expected[place, "f"].update([(hour, number * WIDTH + code)])
            if (report := best.get(record.decision_id)) is not None:
                age = max(report.received_at_us - record.decided_at_us, 0) / HOUR_US
                delay = sum(age > end for end in DELAYS)
                code = (delay * 2 + int(report.value > 0.5)) * SCORES + score
                expected[place, "o"].update([(hour, code)])
        assert bool(bins) == (len(first) >= SMALL.reference_rows)
        for series, lane in connection.execute("SELECT id, lane FROM series").fetchall():
            for kind, width in (("s", STATE_WIDTH), ("o", OUTCOME_WIDTH), ("f", 2 * WIDTH + WIDTH)):
                found = dense(connection, series, kind, begin, begin + HOURS, width)
                if kind == "f":
                    # Unseen values are counted beside their bins.
                    found[:, [number * WIDTH + WIDTH - 1 for number, _ in bins.values()]] = 0
                want = np.zeros_like(found)
                for (hour, code), count in expected[lane, kind].items():
                    want[hour, code] = count
                assert np.array_equal(found, want), (lane, kind)
