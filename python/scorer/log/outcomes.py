"""Joins outcomes to decisions: the first writer of a revision wins, the highest revision counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import OutcomeRecord

Key: TypeAlias = tuple[str, str]
"""Checkpoint and decision id."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One report as it is in the log."""

    sequence: int
    revision: int
    value: float
    occurred_at_ms: int
    """0: not known."""
    received_at_us: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two values for one revision. The first one counts."""

    checkpoint: str
    decision_id: str
    kind: str
    first: Reported
    other: Reported

    def __str__(self) -> str:
        return (
            f"{self.checkpoint} {self.decision_id} {self.kind} revision {self.first.revision}: "
            f"{self.first.value:g} (sequence {self.first.sequence}), later {self.other.value:g} "
            f"(sequence {self.other.sequence})"
        )


class OutcomeJoin:
    """Takes the outcomes of a log in its order and answers what is known about a decision.

    The server refuses conflicting reports while it remembers the first one; beyond that
    horizon, and between replicas, they are found here.
    """

    def __init__(self) -> None:
        self._first: dict[Key, dict[str, dict[int, Reported]]] = {}
        self.reports = 0
        self.duplicates = 0
        self.conflicts: list[Conflict] = []

    def add(self, sequence: int, record: OutcomeRecord) -> None:
        """Takes in the next outcome of the log."""
        self.reports += 1
        report = Reported(
            sequence, record.revision, record.value, record.occurred_at_ms, record.received_at_us
        )
        kinds = self._first.setdefault((record.checkpoint, record.decision_id), {})
        first = kinds.setdefault(record.kind, {}).setdefault(record.revision, report)
        if first is report:
            return
        if first.value == report.value:
            self.duplicates += 1
        else:
            self.conflicts.append(Conflict(record.checkpoint, record.decision_id, record.kind, first, report))

    def of(self, checkpoint: str, decision_id: str) -> dict[str, Reported]:
        """Return the outcome report that counts for a decision, by kind."""
        kinds: Mapping[str, dict[int, Reported]] = self._first.get((checkpoint, decision_id), {})
        return {kind: revisions[max(revisions)] for kind, revisions in kinds.items()}

    @property
    def kinds(self) -> list[str]:
        """Every kind that was reported."""
        return sorted({kind for kinds in self._first.values() for kind in kinds})

    @property
    def superseded(self) -> int:
        """Reports that a higher revision replaces."""
        every = (revisions for kinds in self._first.values() for revisions in kinds.values())
        return sum(len(revisions) - 1 for revisions in every)

    def __iter__(self) -> Iterator[tuple[str, str, str, Reported, bool]]:
        """Checkpoint, decision, kind, report, and whether it is the one that counts."""
        for (checkpoint, decision_id), kinds in self._first.items():
            for kind, revisions in kinds.items():
                top = max(revisions)
                for revision, report in revisions.items():
                    yield checkpoint, decision_id, kind, report, revision == top

    def __len__(self) -> int:
        return len(self._first)
