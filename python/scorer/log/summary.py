"""What is in a log, in numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from os import PathLike

from scorer.log.outcomes import OutcomeJoin
from scorer.log.reading import Advance, Finding, LogReader, Segment


@dataclass
class Summary:
    """A log in numbers."""

    segments: list[Segment] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)
    """By kind of record."""
    checkpoints: Counter[str] = field(default_factory=Counter)
    """Decisions by checkpoint."""
    bundles: Counter[str] = field(default_factory=Counter)
    """Decisions by digest."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Decisions that the model's policy did not make, by "source (reason)"."""
    observations: Counter[str] = field(default_factory=Counter)
    """Observations by "checkpoint lane"."""
    unscored: Counter[str] = field(default_factory=Counter)
    """Observations without a score, by "checkpoint lane (reason)"."""
    sequences: tuple[int, int] | None = None
    decided_us: tuple[int, int] | None = None
    """First and last decision, microseconds since the Unix epoch."""
    outcomes: OutcomeJoin = field(default_factory=OutcomeJoin)

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.bytes for segment in self.segments)


def summarise(directory: str | PathLike[str], advance: Advance | None = None) -> Summary:
    """Reads a whole log and counts.

    Raises:
        LogError: The directory is no log or cannot be read.
    """
    reader = LogReader(directory)
    summary = Summary()
    for sequence, record in reader.records(advance):
        kind = record.WhichOneof("record") or "unknown"
        summary.records[kind] += 1
        first = summary.sequences[0] if summary.sequences else sequence
        summary.sequences = (first, sequence)
        if kind == "outcome":
            summary.outcomes.add(sequence, record.outcome)
        elif kind == "observation":
            seen = record.observation
            lane = f"{seen.decision.checkpoint} {seen.decision.lane}"
            summary.observations[lane] += 1
            if seen.error:
                summary.unscored[f"{lane} ({seen.error})"] += 1
        elif kind == "decision":
            decision = record.decision
            summary.checkpoints[decision.checkpoint] += 1
            summary.bundles[f"sha256:{decision.bundle.hex()}"] += 1
            if decision.fallback_source:
                summary.fallbacks[f"{decision.fallback_source} ({decision.fallback_reason})"] += 1
            at = decision.decided_at_us
            low, high = summary.decided_us or (at, at)
            summary.decided_us = (min(low, at), max(high, at))
    summary.segments = reader.segments
    summary.findings = reader.findings
    return summary
