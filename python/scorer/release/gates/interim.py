"""Evidence as it was at each interim analysis."""

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
    """Yield the first `count` complete intervals from the first observation on; later rows belong to none."""
    at = evidence.shadow.at
    if not len(at):
        return
    start, step = int(at.min()), seconds * 1_000_000
    complete = min((int(at.max()) - start) // step, count)
    for place in range(complete):
        begin, end = start + place * step, start + (place + 1) * step
        yield between(evidence, begin, end)


def between(evidence: ShadowEvidence, begin: int, end: int) -> ShadowEvidence:
    """Return what was decided from `begin` to before `end`, both in microseconds since 1970."""
    return replace(
        evidence,
        read=None,
        shadow=_between(evidence.shadow, begin, end),
        control=_between(evidence.control, begin, end),
        counters=[one for one in evidence.counters if begin <= one.at < end],
    )


def _between(rows: Observed, begin: int, end: int) -> Observed:
    # Rows are in order of time, so that a period is a view: every gate cuts some twenty of them.
    first, last = np.searchsorted(rows.at, (begin, end))
    return rows.take(slice(int(first), int(last)))


def prefixes(evidence: ShadowEvidence, *, least: int = 0) -> Iterator[ShadowEvidence]:
    """Yield the evidence as it was after 200, 300, 450, ... rows.

    The sizes depend on the rows alone, not on when somebody asks, so every reading spends the same alarms.

    Args:
        evidence: All rows so far.
        least: Rows of the first analysis, where more than 200 are needed.
    """
    at = evidence.shadow.at
    rows = float(max(FIRST, least))
    begin = int(at[0]) if len(at) else 0
    while rows <= len(at):
        yield between(evidence, begin, int(at[round(rows) - 1]) + 1)
        rows = float(int(rows * GROWTH))
