"""Measures of how well scores rank fraud, as used in the field."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from sklearn.metrics import average_precision_score, roc_auc_score

from scorer.learn.errors import DataError
from scorer.learn.fraud.measures import card_precision_by_day

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
    daily = card_precision_by_day(
        np.asarray(scores, np.float64), fraud == 1, np.asarray(customer, np.int64), np.asarray(day, np.int64)
    )
    return Ranking(
        auc=float(roc_auc_score(fraud, scores)),
        average_precision=float(average_precision_score(fraud, scores)),
        card_precision_100=float(daily.mean()),
        rows=len(fraud),
        frauds=frauds,
    )
