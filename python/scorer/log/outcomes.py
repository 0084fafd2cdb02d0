"""Joining outcomes to decisions.

Of several reports of one revision the first counts, and of several revisions the highest proven one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from scorer.log.outcome_source import SOURCES, source_in_words
from scorer.log.outcome_source import UNSPECIFIED as UNSPECIFIED_SOURCE
from scorer.log.proof import UNSPECIFIED, Unproven, is_proven

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import OutcomeRecord

Key: TypeAlias = tuple[str, str]
"""Checkpoint and decision id."""
_Place: TypeAlias = tuple[bool, int]
"""Whether a report is proven, and its revision. The report with the highest value counts."""


@dataclass(frozen=True, slots=True)
class Reported:
    """One reported outcome of the log."""

    sequence: int
    revision: int
    value: float
    occurred_at_ms: int
    """Time of the outcome in milliseconds since the Unix epoch; 0 if it is not known."""
    received_at_us: int
    """Time of the report in microseconds since the Unix epoch."""
    proof: int = UNSPECIFIED
    """Value of `OutcomeProof`."""
    log: str = ""
    """Name of its log, if there are several."""
    source: str = SOURCES[UNSPECIFIED_SOURCE]
    """Kind of the source that reported it, such as "reviewer"; see `scorer.log.outcome_source`."""
    source_id: str = ""
    """Id that the source stated; may be empty."""

    @property
    def place(self) -> str:
        """The record's sequence and, if there are several logs, its log."""
        return f"sequence {self.sequence} of {self.log}" if self.log else f"sequence {self.sequence}"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two reports of one revision with different values. The first one counts."""

    checkpoint: str
    decision_id: str
    kind: str
    first: Reported
    other: Reported

    def __str__(self) -> str:
        return (
            f"{self.checkpoint} {self.decision_id} {self.kind} revision {self.first.revision}: "
            f"{self.first.value:g} ({self.first.place}), later {self.other.value:g} ({self.other.place})"
        )


class OutcomeJoin:
    """The outcomes of a log by decision.

    A server rejects conflicting reports while it has the first one in memory. Later conflicts, and conflicts
    between replicas, are found here. Revisions of proven and unproven reports are counted separately; see
    `scorer.log.proof`.

    Args:
        unproven: Whether an unproven report counts if there is no proven one.

    Attributes:
        reports: Number of reports that were added.
        duplicates: Number of reports that repeat an earlier one.
        conflicts: Reports that contradict an earlier one.
    """

    def __init__(self, unproven: Unproven = "exclude") -> None:
        self._unproven = unproven
        self._first: dict[Key, dict[str, dict[_Place, Reported]]] = {}
        self.reports = 0
        self.duplicates = 0
        self.conflicts: list[Conflict] = []

    def add(self, sequence: int, record: OutcomeRecord) -> None:
        """Add the next outcome of the log.

        Args:
            sequence: Sequence of the record. Records must be added in the order of the log.
            record: The record.
        """
        self.reports += 1
        report = Reported(
            sequence,
            record.revision,
            record.value,
            record.occurred_at_ms,
            record.received_at_us,
            record.proof,
            source=source_in_words(record.source.kind),
            source_id=record.source.id,
        )
        kinds = self._first.setdefault((record.checkpoint, record.decision_id), {})
        place = is_proven(report.proof), report.revision
        first = kinds.setdefault(record.kind, {}).setdefault(place, report)
        if first is report:
            return
        if first.value == report.value:
            self.duplicates += 1
        else:
            self.conflicts.append(Conflict(record.checkpoint, record.decision_id, record.kind, first, report))

    def of(self, checkpoint: str, decision_id: str) -> dict[str, Reported]:
        """Return the outcome report that counts for a decision, by kind."""
        kinds: Mapping[str, dict[_Place, Reported]] = self._first.get((checkpoint, decision_id), {})
        counting = {kind: self._counting(revisions) for kind, revisions in kinds.items()}
        return {kind: report for kind, report in counting.items() if report is not None}

    @property
    def kinds(self) -> list[str]:
        """All kinds of outcomes that were reported, sorted."""
        return sorted({kind for kinds in self._first.values() for kind in kinds})

    @property
    def unproven(self) -> int:
        """Number of unproven reports, without duplicates."""
        every = (revisions for kinds in self._first.values() for revisions in kinds.values())
        return sum(not proven for revisions in every for proven, _ in revisions)

    @property
    def sources(self) -> Counter[str]:
        """Number of reports by the kind of their source, without duplicates."""
        return Counter(report.source for _, _, _, report, _ in self)

    @property
    def superseded(self) -> int:
        """Number of reports that do not count because another revision does."""
        every = (revisions for kinds in self._first.values() for revisions in kinds.values())
        return sum(len(revisions) - 1 for revisions in every)

    def __iter__(self) -> Iterator[tuple[str, str, str, Reported, bool]]:
        """Yield checkpoint, decision id, kind and report of each revision, and whether it counts."""
        for (checkpoint, decision_id), kinds in self._first.items():
            for kind, revisions in kinds.items():
                counting = self._counting(revisions)
                for report in revisions.values():
                    yield checkpoint, decision_id, kind, report, report is counting

    def _counting(self, revisions: Mapping[_Place, Reported]) -> Reported | None:
        proven, revision = max(revisions)
        return revisions[proven, revision] if proven or self._unproven == "include" else None

    def __len__(self) -> int:
        return len(self._first)
