"""Calibration maps, fitted on data the model has not seen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import IsotonicMap, SigmoidMap
from scorer.errors import BundleError


def fit_isotonic(scores: npt.ArrayLike, labels: npt.ArrayLike) -> IsotonicMap:
    """The non-decreasing map that fits best.

    It is flat in places, so rows that the model tells apart may end up equal: for action bundles, where
    small differences between actions matter, `fit_sigmoid` keeps them apart.

    Args:
        scores: The model's predictions.
        labels: What came true, 0 or 1.
    """
    from sklearn.isotonic import IsotonicRegression

    x, y = _checked(scores, labels)
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(x, y)
    knots_x = np.asarray(model.X_thresholds_, dtype=np.float64)
    knots_y = np.clip(np.asarray(model.y_thresholds_, dtype=np.float64), 0.0, 1.0)
    return IsotonicMap(x=knots_x.tolist(), y=np.maximum.accumulate(knots_y).tolist())


def fit_sigmoid(margins: npt.ArrayLike, labels: npt.ArrayLike) -> SigmoidMap:
    """Platt scaling: a logistic regression on the margin.

    Args:
        margins: The model's raw outputs, before its link.
        labels: What came true, 0 or 1.

    Raises:
        BundleError: The margins fall where the labels rise; such a model is not to be calibrated.
    """
    from sklearn.linear_model import LogisticRegression

    x, y = _checked(margins, labels)
    model = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(x[:, None], y)
    slope, intercept = float(model.coef_[0, 0]), float(model.intercept_[0])
    if not slope > 0.0:
        raise BundleError(
            f"calibration: the fitted slope is {slope:.4g}; the margins do not rise with the labels, "
            "check the labels"
        )
    return SigmoidMap(slope=slope, intercept=intercept)


def _checked(
    scores: npt.ArrayLike, labels: npt.ArrayLike
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    x, y = np.asarray(scores, dtype=np.float64).ravel(), np.asarray(labels, dtype=np.float64).ravel()
    if len(x) != len(y) or len(x) == 0:
        raise BundleError(
            f"calibration: {len(x)} scores and {len(y)} labels; give as many of each, at least one"
        )
    if not np.isfinite(x).all():
        raise BundleError("calibration: a score is NaN or infinite; check the model's output")
    if not np.isin(y, (0.0, 1.0)).all() or len(np.unique(y)) != 2:
        raise BundleError("calibration: labels must be 0 and 1, and both must occur; check the held-out data")
    return x, y
