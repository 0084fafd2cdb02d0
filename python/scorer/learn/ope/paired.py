"""Which of two policies is better on the same rows: their difference is known far better than either."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorer.learn.errors import DataError
from scorer.learn.ope import intervals
from scorer.learn.ope.estimate import Estimate
from scorer.learn.ope.moments import PseudoOutcomeDesign
from scorer.stats.means import student


def paired(candidate: Estimate, baseline: Estimate, *, alpha: float = 0.05) -> Estimate:
    """`candidate - baseline`, row by row, with an interval of its own.

    Args:
        candidate: of one policy, on some rows.
        baseline: of another one, on the very same rows; may be `logged_value`.
        alpha: one minus the confidence.

    Raises:
        DataError: they are not over the same rows.
    """
    if len(candidate.pseudo) != len(baseline.pseudo) or not len(candidate.pseudo):
        raise DataError(
            f"a paired difference needs the same rows; these are {len(candidate.pseudo)} "
            f"and {len(baseline.pseudo)}"
        )
    pseudo = candidate.pseudo - baseline.pseudo
    effective = min(candidate.effective_rows, baseline.effective_rows)
    ours, theirs = candidate.design, baseline.design
    if ours is not None and theirs is not None:
        first, second = ours, theirs

        def design(rows: slice) -> PseudoOutcomeDesign:
            return first(rows).minus(second(rows))

        low, high = intervals.score(pseudo, effective, design, alpha=alpha)
        kind = "score"
    else:
        low, high = intervals.student_by_size(pseudo, effective, alpha=alpha, clusters=candidate.clusters)
        kind = "t"
    return Estimate(
        value=float(pseudo.mean()),
        low=low,
        high=high,
        rows=len(pseudo),
        effective_rows=effective,
        mean_weight=candidate.mean_weight,
        largest_weight=max(candidate.largest_weight, baseline.largest_weight),
        estimator=f"{candidate.estimator} - {baseline.estimator}",
        interval=kind,
        pseudo=pseudo,
        clusters=candidate.clusters,
    )


def paired_difference(ours: npt.ArrayLike, theirs: npt.ArrayLike, *, alpha: float = 0.05) -> Estimate:
    """The mean difference of two outcomes of the same payments, with Student's interval."""
    difference = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    n = len(difference)
    low, high = student(difference, confidence=1 - alpha / 2)
    return Estimate(
        float(difference.mean()),
        low,
        high,
        n,
        float(n),
        estimator="difference",
        interval="t",
        pseudo=difference,
    )
