"""The estimators. Each is a mean of pseudo-outcomes: a direct part, plus weights on what a control missed.

| estimator | direct | weight | control |
|---|---|---|---|
| IPW | 0 | w, at most a limit | 0 |
| SNIPW | 0 | w over its mean | 0 |
| DM | sum pi q | 0 | |
| DR | sum pi q | w, at most a limit | q |
| SNDR | sum pi q | w over its mean | q |
| Switch-DR | sum pi q | w where it is at most a limit | q |
| DRos | sum pi q | L w / (w^2 + L) | q |

What the weights are over (actions, factors of actions, several loggers) is the target's business
(`weighting`): with those, IPW is MIPS or the pseudo-inverse estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.ope import intervals
from scorer.learn.ope.estimate import Estimate
from scorer.learn.ope.intervals import PseudoOutcomeDesign
from scorer.learn.ope.logged import Target
from scorer.stats.arrays import Floats
from scorer.stats.means import effective_sample_size

Shape = Callable[[Floats], Floats]


def ipw(target: Target, limit: float = math.inf, *, alpha: float = 0.05) -> Estimate:
    """Inverse propensity weighting; unbiased without a limit where the log could go wherever it goes."""
    return _weighted(target, "IPW", lambda w: np.minimum(w, limit), limit, model=False, alpha=alpha)


def snipw(target: Target, *, alpha: float = 0.05) -> Estimate:
    """Self-normalised: a weighted mean, so it stays within the rewards and ignores a shift of them."""
    return _normalised(target, "SNIPW", model=False, alpha=alpha)


def dm(target: Target, *, alpha: float = 0.05) -> Estimate:
    """The model's word alone. The interval is for the mean over contexts; the model's error is not in it."""
    target.needs_model("DM")
    n = len(target.logged)
    low, high = intervals.student_by_size(target.direct, n, alpha=alpha, clusters=target.logged.clusters)
    return Estimate(
        float(target.direct.mean()),
        low,
        high,
        n,
        float(n),
        estimator="DM",
        interval="t, without the model's error",
        pseudo=target.direct,
        clusters=target.logged.clusters,
    )


def dr(target: Target, limit: float = math.inf, *, alpha: float = 0.05) -> Estimate:
    """Doubly robust: the model's word, mended by what it missed; unbiased without a limit."""
    target.needs_model("DR")
    return _weighted(target, "DR", lambda w: np.minimum(w, limit), limit, model=True, alpha=alpha)


def sndr(target: Target, *, alpha: float = 0.05) -> Estimate:
    """Doubly robust with the correction self-normalised."""
    target.needs_model("SNDR")
    return _normalised(target, "SNDR", model=True, alpha=alpha)


def switch_dr(target: Target, limit: float, *, alpha: float = 0.05) -> Estimate:
    """Doubly robust where the weight is at most `limit`, the model's word elsewhere."""
    target.needs_model("Switch-DR")
    return _weighted(
        target, "Switch-DR", lambda w: np.where(w <= limit, w, 0.0), limit, model=True, alpha=alpha
    )


def dr_os(target: Target, shrink: float, *, alpha: float = 0.05) -> Estimate:
    """Doubly robust with optimistic shrinkage: weights `L w / (w^2 + L)` of Su et al. (2020)."""
    target.needs_model("DRos")
    if shrink < 0:
        raise DataError(f"DRos: a shrinkage of {shrink} is not 0 or more")

    def shrunk(w: Floats) -> Floats:
        return (
            w
            if math.isinf(shrink)
            else np.divide(shrink * w, w**2 + shrink, out=np.zeros_like(w), where=w > 0)
        )

    return _weighted(target, "DRos", shrunk, shrink, model=True, alpha=alpha)


def dr_scores(target: Target) -> Floats:
    """Return the doubly robust pseudo-outcomes without an interval; their mean is `dr(target).value`.

    Args:
        target: with a reward model.

    Returns:
        `[n]` in the order of the log.
    """
    target.needs_model("DR")
    return _scores(target, target.weight)


def logged_target(target: Target) -> Target:
    """The policy that filled the log, as a target on the same rows and with the same model."""
    logging = target.logged.pmf
    if logging is None:
        raise DataError("the logged policy as a target needs a log with whole pmfs")
    return Target(target.logged, logging, target.model, name="logged")


def _scores(target: Target, weight: Floats) -> Floats:
    return np.asarray(target.direct + weight * (target.logged.reward - target.predicted))


def _weighted(
    target: Target, name: str, shape: Shape, setting: float, *, model: bool, alpha: float
) -> Estimate:
    if math.isnan(setting):
        raise DataError(f"{name}: its setting is not a number")
    weight = shape(target.weight)
    pseudo = _scores(target, weight) if model else weight * target.logged.reward
    if not math.isinf(setting):
        name = f"{name}({setting:g})"

    def design(rows: slice) -> PseudoOutcomeDesign:
        return _design(target, shape(target.weights(rows)), rows, model=model, offset=0.0, level=0.0)

    return _estimate(target, name, pseudo, weight, design, alpha)


def _normalised(target: Target, name: str, *, model: bool, alpha: float) -> Estimate:
    """Linearised around the ratio: the mean is the estimate, the spread that of the delta method."""
    mean = float(target.weight.mean())
    if mean <= 0:
        raise DataError(f"{name}: {target.name} never chooses what was logged; no weight is left")
    direct, predicted = (target.direct, target.predicted) if model else (0.0, 0.0)
    missed = target.logged.reward - predicted
    offset = float((target.weight * missed).mean()) / mean
    pseudo = np.asarray(direct + offset + target.weight * (missed - offset) / mean)

    def design(rows: slice) -> PseudoOutcomeDesign:
        return _design(target, target.weights(rows) / mean, rows, model=model, offset=offset, level=offset)

    return _estimate(target, name, pseudo, target.weight, design, alpha)


def _estimate(
    target: Target,
    name: str,
    pseudo: Floats,
    weight: Floats,
    design: Callable[[slice], PseudoOutcomeDesign],
    alpha: float,
) -> Estimate:
    effective = effective_sample_size(weight) or 1.0
    clusters = target.logged.clusters
    known = clusters is None and target.logged.pmf is not None and target.model is not None
    if known:
        low, high = intervals.score(
            pseudo, effective, design, alpha=alpha, bounded=float(target.direct.mean())
        )
    else:
        low, high = intervals.student_by_size(pseudo, effective, alpha=alpha, clusters=clusters)
    return Estimate(
        value=float(pseudo.mean()),
        low=low,
        high=high,
        rows=len(pseudo),
        effective_rows=effective,
        mean_weight=float(weight.mean()),
        largest_weight=float(weight.max()),
        estimator=name,
        interval="score" if known else "t",
        pseudo=pseudo,
        clusters=clusters,
        design=design if known else None,
    )


def _design(
    target: Target, weight: Floats, rows: slice, *, model: bool, offset: float, level: float
) -> PseudoOutcomeDesign:
    logging, predicted = target.logged.pmf, target.needs_model("an interval from moments")
    assert logging is not None  # noqa: S101 - the caller has looked
    control = predicted[rows] + offset if model else np.full_like(weight, offset)
    drift = None if model and offset == 0.0 else weight * (predicted[rows] - control)
    direct = target.direct[rows] if model else np.zeros(len(weight))
    return PseudoOutcomeDesign(logging[rows], predicted[rows], weight, drift, direct + level)
