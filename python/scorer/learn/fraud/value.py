"""What decisions are worth in money, and the best thresholds within the capacity of reviews."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scorer.bundle import Band
from scorer.learn.fraud.settings import ValueSettings
from scorer.stats.arrays import Bools, Floats


@dataclass(frozen=True)
class Gains:
    """What declining or reviewing a payment gains over approving it.

    Attributes:
        decline: `[n]` in the currency of the amounts.
        review: `[n]`.
    """

    decline: Floats
    review: Floats

    def of(self, scores: Floats, thresholds: Thresholds) -> Floats:
        """Return the gain of each payment, `[n]`, by the decision on its score."""
        return np.where(
            scores >= thresholds.decline,
            self.decline,
            np.where(scores >= thresholds.review, self.review, 0.0),
        )


@dataclass(frozen=True)
class Thresholds:
    """Scores from which on payments are reviewed and declined, 0 < review <= decline."""

    review: float
    decline: float

    def bands(self) -> list[Band]:
        """Return the bands of a bundle. A decision that no score gives has no band."""
        bands = [(0.0, "approve")]
        if self.review < self.decline:
            bands.append((self.review, "review"))
        if self.decline <= 1.0:
            bands.append((self.decline, "decline"))
        return [Band(start=start, label=label) for start, label in bands]


def thresholds_of(bands: list[Band]) -> Thresholds:
    """Return the thresholds of a bundle whose bands are approve, review and decline, or some of them."""
    starts = {band.label: float(band.start) for band in bands}
    decline = starts.get("decline", np.inf)
    return Thresholds(min(starts.get("review", decline), decline), decline)


def gains(label: Bools, amount: Floats, value: ValueSettings) -> Gains:
    """Return the gains of payments whose labels are known.

    Args:
        label: `[n]` True for fraud.
        amount: `[n]`.
        value: The cost matrix.
    """
    prevented = value.fraud_loss * amount + value.fraud_fee
    lost = value.decline_loss * amount + value.decline_fee
    return Gains(
        decline=np.where(label, prevented, -lost),
        review=np.where(label, value.review_finds * prevented, 0.0) - value.review_cost,
    )


def best_thresholds(
    scores: Floats, weights: Floats, gained: Gains, *, reviews: float
) -> tuple[Thresholds, float]:
    """Return the thresholds with the greatest total gain, and that gain.

    All pairs of thresholds between different scores are compared, in n log n steps: with the payments in
    descending order of the score, the gain of declining the first i and reviewing those up to j is D(i) +
    R(j) - R(i), where D and R are cumulative gains, and the weight from i to j is limited.

    Args:
        scores: `[n]` scores above 0, at most 1.
        weights: `[n]` weights of the payments.
        gained: Their gains.
        reviews: Most payments to review, by weight.
    """
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # Position k is after the first k payments; payments of equal scores are not divided.
    places = np.concatenate([[0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1, [len(ordered)]])
    declined, reviewed, weight = (
        np.concatenate([[0.0], np.cumsum(values[order])])[places]
        for values in (gained.decline * weights, gained.review * weights, weights)
    )
    last = np.searchsorted(weight, weight + reviews, side="right") - 1
    at = _window_maxima(reviewed, last)
    total = declined - reviewed + reviewed[at]
    first = int(np.argmax(total))
    return (
        Thresholds(_between(ordered, int(places[at[first]])), _between(ordered, int(places[first]))),
        float(total[first]),
    )


def _window_maxima(values: Floats, last: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray:
    """Return for each i the position of the greatest value in [i, last[i]], for ascending `last`."""
    queue: list[int] = []
    head, added = 0, 0
    out = np.empty(len(values), np.int64)
    for i, end in enumerate(last.tolist()):
        while added <= end:
            while len(queue) > head and values[queue[-1]] < values[added]:
                queue.pop()
            queue.append(added)
            added += 1
        while queue[head] < i:
            head += 1
        out[i] = queue[head]
    return out


def _between(ordered: Floats, place: int) -> float:
    """Return a threshold that the first `place` of descending scores reach and no other one does."""
    if place == 0:
        return 2.0
    if place == len(ordered):
        return float(np.nextafter(0.0, 1.0))
    middle = (ordered[place - 1] + ordered[place]) / 2
    return float(middle if ordered[place] < middle else ordered[place - 1])
