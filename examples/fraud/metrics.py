"""Measures of how well scores rank fraud, as used in the field."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from scorer.learn.errors import DataError

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Ranking:
    """Measures of a ranking of transactions by score.

    Attributes:
        auc: Area under the ROC curve.
        average_precision: Area under the precision-recall curve, as the step-wise sum (AUCPR).
        card_precision_100: Share of compromised cards among the 100 most suspicious ones of each day,
            averaged over the days. A card that was found may be found again on later days.
        rows: Number of evaluated transactions.
        frauds: Number of frauds among them.
    """

    auc: float
    average_precision: float
    card_precision_100: float
    rows: int
    frauds: int

    def as_dict(self) -> dict[str, float]:
        """Return the measures as a dictionary, for lineage and summaries."""
        return asdict(self)


def ranking(scores: Array, fraud: Array, customer: Array, day: Array) -> Ranking:
    """Measure `[n]` scores against the labels.

    Args:
        scores: `[n]` scores.
        fraud: `[n]` labels, 1 for fraud.
        customer: `[n]` customers.
        day: `[n]` days.

    Raises:
        DataError: Only one class is present, so nothing can be ranked.
    """
    frauds = int(fraud.sum())
    if not 0 < frauds < len(fraud):
        raise DataError(
            f"{len(fraud)} test transactions contain {frauds} frauds; both kinds are needed to rank scores"
        )
    return Ranking(
        auc=float(roc_auc_score(fraud, scores)),
        average_precision=float(average_precision_score(fraud, scores)),
        card_precision_100=card_precision(scores, fraud, customer, day, 100),
        rows=len(fraud),
        frauds=frauds,
    )


def card_precision(scores: Array, fraud: Array, customer: Array, day: Array, top: int) -> float:
    """Return the precision among the `top` cards of each day, ranked by their highest score of the day."""
    precisions = []
    for today in np.unique(day):
        rows = np.flatnonzero(day == today)
        cards, code = np.unique(customer[rows], return_inverse=True)
        highest = np.full(len(cards), -np.inf)
        np.maximum.at(highest, code, scores[rows].astype(np.float64))
        compromised = np.zeros(len(cards), dtype=bool)
        np.logical_or.at(compromised, code, fraud[rows] == 1)
        chosen = np.argsort(-highest, kind="stable")[:top]
        precisions.append(compromised[chosen].sum() / top)
    return float(np.mean(precisions))
