"""Looking more than once without more false alarms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy import stats

from scorer.release.gates.evidence import Evidence

FIRST = 200
"""Rows of the first look."""
GROWTH = 1.5
"""By how much the rows of a look exceed those of the one before."""


def per_interval(alpha: float, count: int, limit: int) -> float:
    """How often one interval may fail, so that more than `limit` of `count` do with probability alpha.

    They are independent: the a with P(Binomial(count, a) > limit) = alpha, a quantile of a beta distribution.
    """
    return float(stats.beta.ppf(alpha, limit + 1, count - limit))


def intervals(evidence: Evidence, seconds: int, count: int) -> Iterator[Evidence]:
    """The first `count` complete intervals from the first observation on; later rows are of no interval."""
    at = evidence.shadow.at
    if not len(at):
        return
    start, step = int(at.min()), seconds * 1_000_000
    complete = min((int(at.max()) - start) // step, count)
    for place in range(complete):
        begin, end = start + place * step, start + (place + 1) * step
        yield between(evidence, begin, end)


def between(evidence: Evidence, begin: int, end: int) -> Evidence:
    """What was decided from one moment to another, microseconds."""
    shadow, control = evidence.shadow, evidence.control
    return replace(
        evidence,
        shadow=shadow.take((shadow.at >= begin) & (shadow.at < end)),
        control=control.take((control.at >= begin) & (control.at < end)),
        counters=[one for one in evidence.counters if begin <= one.at < end],
    )


def prefixes(evidence: Evidence, *, least: int = 0) -> Iterator[Evidence]:
    """The evidence as it was after 200, 300, 450, ... rows: what is known decides, not when one looks."""
    at = np.sort(evidence.shadow.at)
    rows = float(max(FIRST, least))
    begin = int(at[0]) if len(at) else 0
    while rows <= len(at):
        yield between(evidence, begin, int(at[round(rows) - 1]) + 1)
        rows = float(int(rows * GROWTH))


def spent(look: int) -> float:
    """The part of all alarms that look number 1, 2, ... may raise: 1/2, 1/6, 1/12, ..., in all 1."""
    return 1 / (look * (look + 1))
