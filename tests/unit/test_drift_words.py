"""Tests of the sentences that name the cause of drift."""

from __future__ import annotations

from dataclasses import replace

from scorer.drift.looking import Finding

RATE = Finding(
    quantity="missing:amount", kind="missing", name="amount", hours=24, judged=True, shifted=True, rows=900,
    psi=0.2, kl=0.1, js=0.02, threshold=0.1, before=0.01, after=0.3,
)  # fmt: skip


def test_a_cause_has_the_direction_and_the_window() -> None:
    assert RATE.cause == "missing amount: rate rose from 1.00% to 30.00% in the last 24 h"
    values = replace(RATE, kind="feature", part="below 3", before=0.5, after=0.25, hours=0)
    assert values.cause == "feature amount: share of below 3 fell from 50.00% to 25.00% in the last week"
    segment = replace(RATE, kind="segment_outcome", name="issuer=A", after=0.010001)
    assert segment.cause == "segment outcome issuer=A: rate stayed at 1.00% in the last 24 h"
    empty = replace(RATE, kind="outcome", name="", before=None, after=None)
    assert empty.cause == "outcome: there are no rows to compare in the last 24 h"
