"""The evidence at each interim analysis."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from scorer.release.gates.evidence import Observed, ShadowEvidence

FIRST = 200
"""Rows of the first interim analysis."""
GROWTH = 1.5
"""Factor from the rows of one analysis to those of the next."""


def intervals(evidence: ShadowEvidence, seconds: int, count: int) -> Iterator[ShadowEvidence]:
    """Yield the first `count` complete intervals, starting at the first observation."""
    at = evidence.shadow.at
    if not len(at):
        return
    start, step = int(at.min()), seconds * 1_000_000
    complete = min((int(at.max()) - start) // step, count)
    for place in range(complete):
        begin, end = start + place * step, start + (place + 1) * step
        yield between(evidence, begin, end)


def none_of(evidence: ShadowEvidence) -> ShadowEvidence:
    """Return the evidence as it was before any row."""
    return between(evidence, 0, 0)


def between(evidence: ShadowEvidence, begin: int, end: int) -> ShadowEvidence:
    """Return the decisions from `begin` to before `end`, both in microseconds since the Unix epoch."""
    return replace(
        evidence,
        read=None,
        shadow=_between(evidence.shadow, begin, end),
        control=_between(evidence.control, begin, end),
        counters=[one for one in evidence.counters if begin <= one.at < end],
    )


def _between(rows: Observed, begin: int, end: int) -> Observed:
    # Rows are in order of time, so a period can be a view. Every gate needs about twenty periods.
    first, last = np.searchsorted(rows.at, (begin, end))
    return rows.take(slice(int(first), int(last)))


def prefixes(evidence: ShadowEvidence, *, least: int = 0) -> Iterator[ShadowEvidence]:
    """Yield the evidence after 200, 300, 450, ... rows.

    The sizes do not depend on the time of the evaluation, so every evaluation uses the same part of the
    false-alarm rate.

    Args:
        evidence: All rows so far.
        least: Number of rows of the first analysis, if it needs more than 200.
    """
    at = evidence.shadow.at
    rows = float(max(FIRST, least))
    begin = int(at[0]) if len(at) else 0
    while rows <= len(at):
        yield between(evidence, begin, int(at[round(rows) - 1]) + 1)
        rows = float(int(rows * GROWTH))
