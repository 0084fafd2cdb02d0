"""The records of a batch for the rollups, before names are replaced by numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from scorer.ids import decision_key
from scorer.log.proof import is_proven, precedence_of

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord, OutcomeRecord, WithdrawnRecord

ANSWER: Final = "answer"
OBSERVE: Final = "observe"
OUTCOME: Final = "outcome"
"""Roles of series. A series of outcomes has neither server nor lane."""
SCORE_KIND, ACTION_KIND = "score", "action"
_HALF: Final = 1 << 63


class SeriesName(NamedTuple):
    """The properties that all rows of a series share."""

    checkpoint: str
    server: str
    lane: str
    role: str
    bundle: str
    """Digest; empty in the series of outcomes whose version is not known."""
    kind: str
    """`score` or `action`; empty where the version is not known."""


class NewDecision(NamedTuple):
    """A decision or an observation."""

    key: int
    sequence: int
    at: int
    """Microseconds."""
    series: SeriesName
    exec_us: int
    load_us: int
    score: float
    """NaN if it is not the model's."""
    label: str
    fallback: bool
    error: bool


class NewReport(NamedTuple):
    """An outcome as a log reports it, before it is joined to its decision."""

    key: int
    sequence: int
    checkpoint: str
    kinds: Collection[str]
    """Kinds of bundles that this outcome is about."""
    rank: int
    """Of several reports of an outcome, the one with the highest rank counts."""
    positive: bool
    counts: bool
    """Whether the report counts. An unproven one does not if the checkpoint's settings exclude it."""
    received_at: int
    decided_at: int
    """As the decision token says, microseconds; 0 without one."""
    prefix: str
    """First 16 hexadecimal digits of the bundle in the token."""
    kind: str
    """Kind of the bundle, as the token says."""


class NewFiring(NamedTuple):
    """A rule that had an effect on an answered decision."""

    key: int
    sequence: int
    at: int
    """Microseconds."""
    checkpoint: str
    rule: str


class Withdrawal(NamedTuple):
    """A record of the same log that does not count."""

    key: int
    sequence: int


@dataclass(frozen=True)
class OutcomeRule:
    """Which outcomes of a checkpoint count.

    Attributes:
        kinds: Kinds of bundles by kind of outcome.
        include_unproven: Whether an unproven outcome counts.
    """

    kinds: Mapping[str, Collection[str]]
    include_unproven: bool = False


@dataclass
class RollupBatch:
    """Collects the records of a batch that concern the checkpoints of the platform.

    Args:
        server: Name of the server whose log it is.
        rules: By checkpoint; records of other checkpoints are left out.
    """

    server: str
    rules: Mapping[str, OutcomeRule]
    decisions: list[NewDecision] = field(default_factory=list)
    reports: list[NewReport] = field(default_factory=list)
    withdrawals: list[Withdrawal] = field(default_factory=list)
    firings: list[NewFiring] = field(default_factory=list)
    begun: dict[str, int] = field(default_factory=dict)
    """Time of the first decision of each checkpoint, microseconds."""

    def decision(self, record: DecisionRecord, row: Mapping[str, Any]) -> None:
        """Add a decision; `row` is of `scorer.release.readout.rows.answer_row`."""
        if record.checkpoint in self.rules:
            self._add(record, row, ANSWER, fallback=bool(row["fallback"]), error=False)
            own = self.decisions[-1]
            self.begun[record.checkpoint] = min(own.at, self.begun.get(record.checkpoint, own.at))
            self.firings += [
                NewFiring(own.key, own.sequence, own.at, record.checkpoint, one.id)
                for one in record.rules.fired
            ]

    def observation(self, record: ObservationRecord, row: Mapping[str, Any]) -> None:
        """Add an observation; `row` is of `scorer.release.readout.rows.observation_row`."""
        if record.decision.checkpoint in self.rules:
            self._add(record.decision, row, OBSERVE, fallback=False, error=bool(row["error"]))

    def outcome(self, record: OutcomeRecord, row: Mapping[str, Any]) -> None:
        """Add a reported outcome; `row` is of `scorer.release.readout.rows.outcome_row`."""
        rule = self.rules.get(record.checkpoint)
        kinds = () if rule is None else rule.kinds.get(record.kind, ())
        if rule is None or not kinds:
            return
        claims = record.token if record.HasField("token") else None
        self.reports.append(
            NewReport(
                key=salted(row["key"], record.checkpoint, ""),
                sequence=row["sequence"],
                checkpoint=record.checkpoint,
                kinds=kinds,
                rank=precedence_of(record.proof, record.revision),
                positive=record.value > 0.5,
                counts=rule.include_unproven or is_proven(record.proof),
                received_at=record.received_at_us,
                decided_at=0 if claims is None else claims.decided_at_ms * 1_000,
                prefix="" if claims is None else claims.bundle.hex(),
                kind="" if claims is None else _kind(claims.action),
            )
        )

    def withdrawn(self, record: WithdrawnRecord) -> None:
        """Add a record that withdraws an earlier one."""
        if record.checkpoint in self.rules:
            key = salted(decision_key(record.decision_id), record.checkpoint, "")
            self.withdrawals.append(Withdrawal(key, record.sequence))

    def _add(
        self, own: DecisionRecord, row: Mapping[str, Any], role: str, *, fallback: bool, error: bool
    ) -> None:
        is_action = bool(own.pmf or own.action)
        lane = row["lane"] if role == ANSWER else own.lane
        name = SeriesName(own.checkpoint, self.server, lane, role, row["bundle"], _kind(is_action))
        self.decisions.append(
            NewDecision(
                key=salted(row["key"], own.checkpoint, lane if role == OBSERVE else ""),
                sequence=row["sequence"],
                at=row["at"],
                series=name,
                exec_us=row["exec_us"],
                load_us=row["load_us"],
                score=float("nan") if fallback or error else row["score"],
                label=row["label"],
                fallback=fallback,
                error=error,
            )
        )


def salted(key: int, checkpoint: str, lane: str) -> int:
    """Return the key of a decision at a checkpoint (and an observe lane) as a signed number for SQLite."""
    mixed = key ^ _salt(checkpoint, lane)
    return mixed - 2 * _HALF if mixed >= _HALF else mixed


@cache
def _salt(checkpoint: str, lane: str) -> int:
    digest = hashlib.blake2b(f"{checkpoint}\0{lane}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _kind(is_action: bool) -> str:
    return ACTION_KIND if is_action else SCORE_KIND
