"""Fitting calibration maps on held-out data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import IsotonicMap, SigmoidMap
from scorer.errors import BundleError


def fit_isotonic(scores: npt.ArrayLike, labels: npt.ArrayLike) -> IsotonicMap:
    """Fit the non-decreasing map with the least squared error (isotonic regression).

    The map is constant on some intervals, so different predictions can become equal. Use `fit_sigmoid` for
    action bundles, whose policy depends on small differences between actions.

    Args:
        scores: The model's predictions for held-out rows, ``[n]``.
        labels: The outcomes, 0 or 1, ``[n]``.

    Raises:
        BundleError: The lengths differ, a score is not finite, or the labels are not 0 and 1 with both
            occurring.
    """
    from sklearn.isotonic import IsotonicRegression

    x, y = _checked(scores, labels)
    model = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip").fit(x, y)
    knots_x = np.asarray(model.X_thresholds_, dtype=np.float64)
    knots_y = np.clip(np.asarray(model.y_thresholds_, dtype=np.float64), 0.0, 1.0)
    return IsotonicMap(x=knots_x.tolist(), y=np.maximum.accumulate(knots_y).tolist())


def fit_centred_isotonic(
    scores: npt.ArrayLike, labels: npt.ArrayLike, weights: npt.ArrayLike | None = None
) -> IsotonicMap:
    """Fit a strictly increasing, piecewise linear map by centred isotonic regression.

    Plain isotonic regression is a step function: all rows of a step have the same probability, and the
    model's ranking among them is lost. Here each step is replaced by its centre, and the map is linear
    between centres (Oron and Flournoy 2017), so that it keeps the ranking.

    Args:
        scores: The model's predictions for held-out rows, ``[n]``, from 0 to 1.
        labels: The outcomes, 0 or 1, ``[n]``.
        weights: Weights of the rows, ``[n]``, above 0; None: 1 for each.

    Raises:
        BundleError: The lengths differ, a score is not finite, or the labels are not 0 and 1 with both
            occurring.
    """
    from sklearn.isotonic import IsotonicRegression

    x, y = _checked(scores, labels)
    w = np.ones(len(x)) if weights is None else np.asarray(weights, dtype=np.float64).ravel()
    steps = IsotonicRegression(y_min=0.0, y_max=1.0).fit_transform(x, y, sample_weight=w)
    order = np.argsort(x, kind="stable")
    values, first = np.unique(steps[order], return_index=True)
    count = np.add.reduceat(w[order], first)
    centres = np.add.reduceat((x * w)[order], first) / count
    # A step of exactly 0 does not mean that the outcome is impossible, so one more is assumed. The same
    # applies to 1.
    if values[0] == 0:
        values[0] = min(0.5 / (count[0] + 1), values[1] / 2)
    if values[-1] == 1:
        values[-1] = max(1 - 0.5 / (count[-1] + 1), (1 + values[-2]) / 2)
    # The ranking is kept beyond the outer centres as well: the map continues to half of the lowest step at 0,
    # and to half of the way to 1 at 1.
    knots = np.concatenate([[0.0], centres, [1.0]])
    heights = np.concatenate([[values[0] / 2], values, [(1 + values[-1]) / 2]])
    rising = np.concatenate([[True], (np.diff(knots) > 0) & (np.diff(heights) > 0)])
    return IsotonicMap(x=knots[rising].tolist(), y=heights[rising].tolist())


def fit_sigmoid(margins: npt.ArrayLike, labels: npt.ArrayLike) -> SigmoidMap:
    """Fit a logistic regression of the labels on the margin (Platt scaling).

    Args:
        margins: The model's raw outputs for held-out rows, before its link function, ``[n]``.
        labels: The outcomes, 0 or 1, ``[n]``.

    Raises:
        BundleError: The lengths differ, a margin is not finite, the labels are not 0 and 1 with both
            occurring, or the fitted slope is not positive, so that calibration would reverse the ranking.
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
