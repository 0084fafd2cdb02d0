"""Metrics over the requests that the live bundle flags, for decisions that are rare.

If the live bundle flags 1 % of the requests, a limit on all requests cannot detect that a candidate flags
other ones. These metrics compare rankings, so they do not depend on thresholds and increasing transformations
of the scores. Only `flagged_share_change` depends on the thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from scorer.release.gates.evidence import Bools, Floats, Observed, ShadowEvidence
from scorer.release.gates.measured import Measured, nothing
from scorer.stats import distances, proportions, ranking
from scorer.stats.interval import Interval


def count(name: str, evidence: ShadowEvidence) -> int:
    """Return the number of requests that the live bundle flagged, or gave its most severe decision."""
    rows = _pairs(evidence)
    chosen = declined(evidence, rows) if name == "declined_rows" else flagged(evidence, rows)
    return int(chosen.sum())


def flagged(evidence: ShadowEvidence, rows: Observed) -> Bools:
    """Return which rows the live bundle did not approve, `[n]`; none if no label approves."""
    names = rows.labels()
    if evidence.approve not in names:
        return np.zeros(len(rows), dtype=bool)
    return np.asarray(rows.live_label != names.index(evidence.approve))


def declined(evidence: ShadowEvidence, rows: Observed) -> Bools:
    """Return which rows got the live bundle's most severe decision, `[n]`.

    No row did if only one decision does not approve.
    """
    of = flagged(evidence, rows)
    codes = np.unique(rows.live_label[of])
    if len(codes) < 2:
        return np.zeros(len(rows), dtype=bool)
    scores = _upwards(rows, of)[1]
    means = [float(scores[rows.live_label == code].mean()) for code in codes]
    return np.asarray(rows.live_label == codes[int(np.argmax(means))])


def _kept(
    of: Callable[[ShadowEvidence, Observed], Bools], said: str
) -> Callable[[ShadowEvidence, str, bool], Measured]:
    """Return the metric of how many of some requests are among this bundle's highest scores, beyond chance.

    The number of highest scores is the number of requests that the live bundle flags. For declined requests
    it is not the number of declined ones: among requests that are certainly fraud the order is random, and
    good models differ in it.
    """

    def measured(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
        rows = _pairs(evidence)
        chosen = of(evidence, rows)
        number = int(chosen.sum())
        if not number or number == len(rows):
            return nothing(f"live {said} {number:,} of {len(rows):,} requests", number)
        flags = flagged(evidence, rows)
        own, _ = _upwards(rows, flags)
        places = int(flags.sum())
        hits = float(ranking.among_highest(own, places)[chosen].sum())
        share = places / len(rows)

        def beyond_chance(overlap: float) -> float:
            return (overlap - share) / (1 - share)

        def bounds(confidence: float) -> Interval:
            low = proportions.wilson(math.floor(hits), number, confidence).low
            high = proportions.wilson(math.ceil(hits), number, confidence).high
            return Interval(beyond_chance(low), beyond_chance(high))

        remark = (
            f"of the {number:,} requests that live {said}, {hits:,.0f} are among the {places:,} that this "
            f"bundle ranks highest; chance finds {share * number:,.1f}"
        )
        return Measured(beyond_chance(hits / number), number, bounds, remark=remark)

    return measured


def _correlation(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    rows = _pairs(evidence)
    of = flagged(evidence, rows)
    number = int(of.sum())
    if number < 2:
        return nothing(f"live flags {number:,} of {len(rows):,} requests", number)
    own, live = _upwards(rows, of)
    value = ranking.tail_correlation(own, live, of)
    if not math.isfinite(value):
        # A constant score has no ranking.
        return Measured(
            0.0,
            number,
            lambda confidence: ranking.correlation_bounds(0.0, number, confidence),
            remark="one of the two scores is constant over the flagged requests",
        )
    binned = distances.by_samples(rows.live_score, rows.score)
    psi = distances.psi(binned.second, binned.first)
    return Measured(
        value,
        number,
        lambda confidence: ranking.correlation_bounds(value, number, confidence),
        remark=f"for information: PSI of the scores against live {psi:.2f}, which a rescaling changes too",
    )


def _share_change(evidence: ShadowEvidence, _against: str, _minus: bool) -> Measured:
    """Compute the number of flagged requests of this bundle divided by that of the live bundle, minus 1."""
    rows = _pairs(evidence)
    names = rows.labels()
    live = flagged(evidence, rows)
    number = int(live.sum())
    if not number or evidence.approve not in names:
        return nothing(f"live flags {number:,} of {len(rows):,} requests", number)
    own = np.asarray(rows.label != names.index(evidence.approve))
    both, added = int((own & live).sum()), int((own & ~live).sum())
    removed = number - both
    neither = len(rows) - number - added

    def bounds(confidence: float) -> Interval:
        low, high = proportions.paired_difference(both, added, removed, neither, confidence)
        scale = len(rows) / number
        return Interval(low * scale, high * scale)

    remark = (
        f"live flags {number:,} of {len(rows):,} requests and this bundle {both + added:,}; {added:,} are "
        f"flagged in addition, {removed:,} no longer"
    )
    return Measured((added - removed) / number, len(rows), bounds, remark=remark)


def _pairs(evidence: ShadowEvidence) -> Observed:
    rows = evidence.shadow
    return rows.take(rows.comparable)


def _upwards(rows: Observed, chosen: Bools) -> tuple[Floats, Floats]:
    """Return both scores with a sign such that flagged requests have high scores."""
    if (
        chosen.any()
        and not chosen.all()
        and (rows.live_score[chosen].mean() < rows.live_score[~chosen].mean())
    ):
        return -rows.score, -rows.live_score
    return rows.score, rows.live_score


METRICS: Final[Mapping[str, Callable[[ShadowEvidence, str, bool], Measured]]] = {
    "flagged_agreement": _kept(flagged, "flags"),
    "declined_kept": _kept(declined, "gives its severest decision"),
    "tail_correlation": _correlation,
    "flagged_share_change": _share_change,
}
