"""Rollups against a naive reference: any records, in any batches, with restarts and repetitions."""

from __future__ import annotations

import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from scorer.errors import RegistryError
from scorer.ids import digest_text
from scorer.release.readout import rows
from scorer.release.timeseries import cells
from scorer.release.timeseries.batch import OutcomeRule
from scorer.release.timeseries.ledger import Ledger
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeRecord, WithdrawnRecord

MINUTE, HOUR, DAY = 60_000_000, 3_600_000_000, 86_400_000_000
NOW = 1_770_000_000_000_000
CHECKPOINT = "fraud.checkout"
BUNDLES = (b"\x01" * 32, b"\x02" * 32)
LABELS = ("approve", "decline")
RULES = {CHECKPOINT: OutcomeRule({"fraud": ["score"]})}

times = st.integers(NOW - 13 * HOUR, NOW)
decisions = st.builds(
    lambda number, at, bundle, lane, label, us, fallback: LogRecord(
        decision=DecisionRecord(
            decision_id=f"p{number}",
            checkpoint=CHECKPOINT,
            lane=lane,
            bundle=BUNDLES[bundle],
            decided_at_us=at,
            decision=label,
            exec_us=us,
            data_load_us=us // 3,
            fallback_reason="overload" if fallback else "",
        )
    ),
    st.integers(0, 11), times, st.integers(0, 1), st.sampled_from(["live", "canary"]),
    st.sampled_from(LABELS), st.integers(0, 100_000), st.booleans(),
)  # fmt: skip
outcomes = st.builds(
    lambda number, kind, value, revision, proof, received: LogRecord(
        outcome=OutcomeRecord(
            checkpoint=CHECKPOINT,
            decision_id=f"p{number}",
            kind=kind,
            value=value,
            revision=revision,
            proof=proof,  # type: ignore[arg-type]
            received_at_us=received,
        )
    ),
    st.integers(0, 11), st.sampled_from(["fraud", "fraud", "chargeback"]), st.sampled_from([0.0, 1.0]),
    st.integers(0, 2), st.integers(0, 3), times,
)  # fmt: skip


def _moved(record: LogRecord) -> LogRecord:
    moved = LogRecord()
    moved.CopyFrom(record)
    moved.decision.checkpoint = "not.managed"
    return moved


WITHDRAWALS = st.integers(0, 40)
RECORDS = st.lists(
    st.one_of(decisions, decisions, outcomes, st.builds(_moved, decisions), WITHDRAWALS), max_size=60
)


def _log(drawn: Sequence[Any]) -> list[LogRecord]:
    """Generate records in the order of a log.

    A number withdraws the record of that position, if it exists.
    """
    log: list[LogRecord] = []
    for one in drawn:
        if not isinstance(one, int):
            log.append(one)
            continue
        if one < len(log) and log[one].WhichOneof("record") != "withdrawn":
            about = log[one].decision if log[one].HasField("decision") else log[one].outcome
            kind = "" if log[one].HasField("decision") else log[one].outcome.kind
            withdrawn = WithdrawnRecord(
                sequence=one + 1, checkpoint=about.checkpoint, decision_id=about.decision_id, kind=kind
            )
            log.append(LogRecord(withdrawn=withdrawn))
    return log


def _apply(ledger: Ledger, server: str, name: str, log: Sequence[LogRecord], first: int, last: int) -> None:
    batch = ledger.batch(server)
    for sequence in range(first, last + 1):
        record = log[sequence - 1]
        match record.WhichOneof("record"):
            case "decision":
                batch.decision(record.decision, rows.answer_row(sequence, record.decision))
            case "outcome":
                batch.outcome(record.outcome, rows.outcome_row(sequence, record.outcome))
            case _:
                batch.withdrawn(record.withdrawn)
    ledger.apply(name, first, last, batch)


def _naive(logs: dict[str, Sequence[LogRecord]]) -> dict[tuple[Any, ...], Counter[int]]:
    """A reference. It counts all records at once, by step, start, server, lane and bundle."""
    kept: list[tuple[str, int, LogRecord]] = []
    for name, log in logs.items():
        gone = {one.withdrawn.sequence for one in log if one.HasField("withdrawn")}
        kept += [
            (name, at, one)
            for at, one in enumerate(log, 1)
            if at not in gone and one.WhichOneof("record") != "withdrawn"
        ]
    result: dict[tuple[Any, ...], Counter[int]] = defaultdict(Counter)

    def count(at: int, place: tuple[str, str, str], codes: Sequence[int]) -> None:
        for step in (MINUTE, HOUR, DAY):
            result[step, at // step * step, *place].update(codes)

    decided = [
        one for one in kept if one[2].HasField("decision") and one[2].decision.checkpoint == CHECKPOINT
    ]
    reported = [one for one in kept if one[2].HasField("outcome") and one[2].outcome.kind == "fraud"]
    for number in range(12):
        mine = [one for one in decided if one[2].decision.decision_id == f"p{number}"]
        about = [one for one in reported if one[2].outcome.decision_id == f"p{number}"]
        first = min(mine, key=lambda one: (one[2].decision.decided_at_us, one[0], one[1]), default=None)
        if first is not None:
            own = first[2].decision
            codes = [
                cells.ROWS,
                cells.EXEC + int(cells.time_bins(own.exec_us)),
                cells.LOAD + int(cells.time_bins(own.data_load_us)),
            ]
            codes += [cells.FALLBACKS] if own.fallback_reason else []
            count(
                own.decided_at_us,
                (first[0], own.lane, digest_text(own.bundle)),
                [*codes, -1 - LABELS.index(own.decision)],
            )
        proven = [one for one in about if one[2].outcome.proof != 1]
        chosen = proven or about
        if not chosen:
            continue
        # Of equal revisions, the first that any server received.
        order = lambda one: (-one[2].outcome.revision, one[2].outcome.received_at_us, one[0], one[1])  # noqa: E731
        best = min(chosen, key=order)[2].outcome
        at, place = best.received_at_us, ("", "", "")
        if first is not None:
            at, place = first[2].decision.decided_at_us, ("", "", digest_text(first[2].decision.bundle))
        if not proven:
            count(at, place, [cells.UNPROVEN])
        elif first is None:
            count(at, place, [cells.UNPLACED])
        else:
            count(at, place, [cells.REPORTED, cells.POSITIVE] if best.value > 0.5 else [cells.REPORTED])
    return result


def _counted(ledger: Ledger) -> dict[tuple[Any, ...], Counter[int]]:
    result: dict[tuple[Any, ...], Counter[int]] = {}
    with ledger.file.reading() as connection:
        if connection is None:
            return result
        labels = {
            cells.LABEL + number: -1 - LABELS.index(name)
            for number, name in connection.execute("SELECT id, name FROM labels")
        }
        query = "SELECT step, at, server, lane, bundle, codes, counts FROM cells JOIN series ON id = series"
        for *place, codes, counts in connection.execute(query):
            dense = cells.decode(codes, counts)
            own = {labels.get(int(code), int(code)): int(dense[code]) for code in np.flatnonzero(dense)}
            result[tuple(place)] = Counter(own)
    return result


def _local(digest: str) -> Path:
    raise RegistryError(f"no bundle {digest}")


@settings(max_examples=150, deadline=None)
@given(
    first=RECORDS,
    second=RECORDS,
    cuts=st.lists(
        st.tuples(st.booleans(), st.integers(1, 25), st.integers(0, 10), st.booleans()), max_size=12
    ),
)
def test_any_batches_restarts_and_repetitions_give_the_counts_of_one_pass(
    first: list[Any], second: list[Any], cuts: list[tuple[bool, int, int, bool]]
) -> None:
    logs = {"a": _log(first), "b": _log(second)}
    positions = {"a": 1, "b": 1}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.sqlite"

        def opened() -> Ledger:
            return Ledger(path, _local, now=lambda: NOW, rules=lambda: RULES)

        ledger = opened()
        # The first batch of log a is first, because ties between logs are ordered by their discovery.
        _apply(
            ledger,
            "a",
            "a",
            [LogRecord(decision=DecisionRecord(checkpoint="not.managed")), *logs["a"]][:1],
            1,
            0,
        )
        for of_second, size, again, restarts in [*cuts, (False, 100, 0, False), (True, 100, 0, False)]:
            name = "b" if of_second else "a"
            start = max(positions[name] - again, 1)
            end = min(start + size - 1, len(logs[name]))
            if end >= start:
                _apply(ledger, name, name, logs[name], start, end)
                positions[name] = max(positions[name], end + 1)
            if restarts:
                ledger.close()
                ledger = opened()
        assert _counted(ledger) == _naive(logs)
        ledger.close()
