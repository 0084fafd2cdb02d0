"""A day of synthetic decisions in the rollups: a release by canary, a slow hour, a rollback, outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

from scorer.bundle.statistics import distribution
from scorer.ids import hex_of
from scorer.release.readout import rows
from scorer.release.store import Store, micros
from scorer.release.store import tables as t
from scorer.release.timeseries.ledger import Ledger
from scorer.v1.log_pb2 import DecisionRecord, OutcomeRecord

SERVERS = ("scorer-1", "scorer-2")


def scores(count: int, random: np.random.Generator, shift: float = 0.0) -> np.ndarray:
    return 1 / (1 + np.exp(-random.normal(-3 + shift, 1.4, count)))


def write_reference(folder: Path) -> Path:
    """Write a directory with a bundle's `reference.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(1)
    own = distribution(scores(20_000, random)).model_dump_json()
    (folder / "reference.json").write_text(f'{{"training": {own}, "validation": {own}}}')
    return folder


def fill(
    ledger: Ledger,
    checkpoint: str,
    now: datetime,
    bundles: tuple[str, str],
    *,
    hours: float = 30,
    count: int = 20_000,
    seed: int = 5,
) -> list[tuple[str, DecisionRecord]]:
    """Add decisions of the last hours at two servers. The second bundle is a canary in the second half."""
    random = np.random.default_rng(seed)
    end, span = micros(now), hours * 3.6e9
    at = np.sort(end - random.random(count) * span)
    half = end - span / 2
    values = scores(count, random), scores(count, random, 0.5)
    exec_us = np.exp(random.normal(np.log(420), 0.5, count))
    slow = (at > end - span * 0.3) & (at < end - span * 0.25)
    exec_us[slow] *= 9
    load_us = np.exp(random.normal(np.log(60), 0.7, count))
    decisions: list[tuple[str, DecisionRecord]] = []
    for place in range(count):
        is_next = bool(at[place] > half and random.random() < 0.25)
        score = float(values[is_next][place])
        record = DecisionRecord(
            decision_id=f"{checkpoint}-{place:06}",
            checkpoint=checkpoint,
            lane="canary" if is_next else "live",
            bundle=bytes.fromhex(hex_of(bundles[is_next])),
            decided_at_us=int(at[place]),
            score=score,
            decision="approve" if score < 0.2 else "review" if score < 0.5 else "decline",
            exec_us=int(exec_us[place]),
            data_load_us=int(load_us[place]),
            fallback_reason="overload" if slow[place] and random.random() < 0.08 else "",
        )
        decisions.append((SERVERS[place % 2], record))
    count_all(ledger, decisions, outcomes(decisions, random))
    return decisions


def outcomes(
    decisions: Sequence[tuple[str, DecisionRecord]], random: np.random.Generator
) -> list[tuple[str, OutcomeRecord]]:
    """Return fraud outcomes of some decisions, received one hour later."""
    reported = []
    for server, record in decisions:
        if random.random() < record.score / 2:
            outcome = OutcomeRecord(
                checkpoint=record.checkpoint,
                decision_id=record.decision_id,
                kind="fraud",
                value=1.0,
                received_at_us=record.decided_at_us + 3_600_000_000,
            )
            reported.append((server, outcome))
    return reported


def count_all(
    ledger: Ledger,
    decisions: Sequence[tuple[str, DecisionRecord]],
    reported: Sequence[tuple[str, OutcomeRecord]],
) -> None:
    for server in SERVERS:
        batch, sequence = ledger.batch(server), 0
        for owner, record in decisions:
            if owner == server:
                sequence += 1
                batch.decision(record, rows.answer_row(sequence, record))
        for owner, outcome in reported:
            if owner == server:
                sequence += 1
                batch.outcome(outcome, rows.outcome_row(sequence, outcome))
        checkpoint = decisions[0][1].checkpoint if decisions else ""
        ledger.apply(f"{server} {checkpoint}", 1, sequence, batch)


def record_tables(
    store: Store,
    checkpoint: str,
    project: str,
    now: datetime,
    bundles: tuple[str, str],
    changes: tuple[str, str],
) -> None:
    """Record lane tables of a canary and of a rollback. The store contains the change request of each."""
    live, following = bundles
    base = {"observe": (), "actor": "mia", "checkpoint": checkpoint}

    def lanes(share: float) -> list[dict[str, object]]:
        own = [{"name": "live", "bundle": live, "share": 1 - share}]
        return own + ([{"name": "canary", "bundle": following, "share": share}] if share else [])

    with store.write() as connection:
        for number, change in enumerate(changes, 12):
            at = now - timedelta(days=2)
            connection.execute(
                t.changes.insert().values(
                    number=number, id=change, project=project, kind="release", checkpoint=checkpoint,
                    bundle=following, bundle_name="fraud-checkout", title="Deeper trees", state="done",
                    minutes=60, stages=(), gates=(), authors=[], created_by="mia", created_at=at,
                    updated_at=at, version=1,
                )
            )  # fmt: skip
        for revision, (hours, cause, change, share) in enumerate(
            (
                (15.0, "stage", changes[0], 0.1),
                (14.6, "stage", changes[0], 0.25),
                (4.0, "rollback", changes[1], 0.0),
            )
        ):
            from scorer.release.model import LaneSpec

            answer = [LaneSpec(**one) for one in lanes(share)]  # type: ignore[arg-type]
            connection.execute(
                t.recorded_tables.insert().values(
                    **base,
                    revision=100 + revision,
                    answer=answer,
                    at=now - timedelta(hours=hours),
                    cause=cause,
                    change=change,
                )
            )
