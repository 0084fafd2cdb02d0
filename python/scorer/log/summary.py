"""Counts of a log's records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from os import PathLike

from scorer.ids import digest_text
from scorer.log.outcomes import OutcomeJoin
from scorer.log.reading import Advance, LogFinding, LogSegment
from scorer.log.scanning import scan


@dataclass
class LogSummary:
    """Counts of a log's records, by kind, checkpoint, bundle and lane."""

    segments: list[LogSegment] = field(default_factory=list)
    findings: list[LogFinding] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)
    """Records by kind."""
    checkpoints: Counter[str] = field(default_factory=Counter)
    """Decisions by checkpoint."""
    bundles: Counter[str] = field(default_factory=Counter)
    """Decisions by digest."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Fallback decisions, by "source (reason)"."""
    observations: Counter[str] = field(default_factory=Counter)
    """Observations by "checkpoint lane"."""
    unscored: Counter[str] = field(default_factory=Counter)
    """Observations without a score, by "checkpoint lane (reason)"."""
    sequences: tuple[int, int] | None = None
    decided_us: tuple[int, int] | None = None
    """Times of the first and last decision in microseconds since the Unix epoch; None without decisions."""
    outcomes: OutcomeJoin = field(default_factory=OutcomeJoin)

    @property
    def bytes(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.bytes for segment in self.segments)


def summarise(directory: str | PathLike[str], advance: Advance | None = None) -> LogSummary:
    """Read a complete log and count its records.

    Args:
        directory: The log's directory.
        advance: Called with the bytes read so far and the total bytes.

    Raises:
        LogError: The directory is not a log or cannot be read.
    """
    entries = scan(directory, advance=advance)
    summary = LogSummary()
    for sequence, kind, record in entries:
        summary.records[kind] += 1
        first = summary.sequences[0] if summary.sequences else sequence
        summary.sequences = (first, sequence)
        if kind == "outcome":
            summary.outcomes.add(sequence, record)
        elif kind == "observation":
            lane = f"{record.decision.checkpoint} {record.decision.lane}"
            summary.observations[lane] += 1
            if record.error:
                summary.unscored[f"{lane} ({record.error})"] += 1
        elif kind == "decision":
            summary.checkpoints[record.checkpoint] += 1
            summary.bundles[digest_text(record.bundle)] += 1
            if record.fallback_source:
                summary.fallbacks[f"{record.fallback_source} ({record.fallback_reason})"] += 1
            at = record.decided_at_us
            low, high = summary.decided_us or (at, at)
            summary.decided_us = (min(low, at), max(high, at))
    summary.segments = entries.segments
    summary.findings = entries.findings
    return summary
