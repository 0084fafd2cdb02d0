"""The numbers behind the report's plots: small, and the same for the same evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle import Action
from scorer.learn.experience import State
from scorer.learn.gate.estimate import PolicyComparison
from scorer.stats.arrays import Floats

_ARMS = 15


def collect(found: PolicyComparison, actions: Sequence[Action]) -> dict[str, Any]:
    """Everything that is plotted; empty where the window has nothing settled."""
    if not len(found.settled):
        return {}
    weights = found.weights(found.candidate)
    return {
        "propensities": _logarithms(found.settled.propensity),
        "weights": _logarithms(weights[weights > 0]) | {"zero": int((weights == 0).sum())},
        "live_weights": _logarithms(found.weights(found.live)),
        "arms": _arms(found, actions),
        "factors": _factors(found, actions),
        "calibration": _calibration(found),
        "joins": _joins(found, actions),
        "days": _days(found),
    }


def _logarithms(values: Floats) -> dict[str, Any]:
    """A histogram over powers of ten."""
    values = values[values > 0]
    if not len(values):
        return {"edges": [], "counts": []}
    exponents = np.log10(values)
    low, high = np.floor(exponents.min() * 4) / 4, np.ceil(exponents.max() * 4 + 1e-9) / 4
    edges = np.arange(low, max(high, low + 0.25) + 0.125, 0.25)
    counts, _ = np.histogram(exponents, edges)
    return {"edges": edges.round(6).tolist(), "counts": counts.tolist()}


def _arms(found: PolicyComparison, actions: Sequence[Action]) -> list[dict[str, Any]]:
    """Actions with the largest share under either policy, then all others together."""
    shares = np.stack([found.candidate.mean(axis=0), found.live.mean(axis=0)])
    order = np.argsort(-shares.max(axis=0), kind="stable")
    rows = [
        {"action": actions[at].id, "candidate": float(shares[0, at]), "live": float(shares[1, at])}
        for at in order[:_ARMS]
    ]
    rest = shares[:, order[_ARMS:]].sum(axis=1)
    if len(order) > _ARMS:
        name = f"{len(order) - _ARMS} others"
        rows.append({"action": name, "candidate": float(rest[0]), "live": float(rest[1])})
    return rows


def _levels(actions: Sequence[Action]) -> list[tuple[str, str, npt.NDArray[np.bool_]]]:
    names = dict.fromkeys(factor for action in actions for factor in action.factors)
    pairs = dict.fromkeys(
        (factor, action.factors[factor]) for factor in names for action in actions if factor in action.factors
    )
    return [
        (factor, level, np.array([action.factors.get(factor) == level for action in actions]))
        for factor, level in pairs
    ]


def _factors(found: PolicyComparison, actions: Sequence[Action]) -> list[dict[str, Any]]:
    return [
        {
            "level": f"{factor}={level}",
            "candidate": float(found.candidate[:, own].sum(axis=1).mean()),
            "live": float(found.live[:, own].sum(axis=1).mean()),
        }
        for factor, level, own in _levels(actions)
    ]


def _joins(found: PolicyComparison, actions: Sequence[Action]) -> list[dict[str, Any]]:
    """Outcomes by factor level: missingness that depends on the action biases every estimate."""
    window = found.window
    levels = _levels(actions) or [
        ("action", action.id, np.arange(len(actions)) == at) for at, action in enumerate(actions)
    ]
    rows = []
    for factor, level, own in levels:
        state = window.state[own[window.action]]
        if len(state):
            rows.append(
                {
                    "family": f"{factor}={level}",
                    "decisions": len(state),
                    "settled": int((state == State.SETTLED).sum()),
                    "missing": int((state == State.MISSING).sum()),
                }
            )
    return rows


def _calibration(found: PolicyComparison) -> list[dict[str, float]]:
    """The candidate's oracle on the actions taken, in tenths of the decisions by prediction."""
    rows = np.arange(len(found.settled))
    predicted, reward = found.candidate_oracle[rows, found.settled.action], found.settled.reward
    order = np.argsort(predicted, kind="stable")
    return [
        {
            "predicted": float(predicted[part].mean()),
            "observed": float(reward[part].mean()),
            "rows": float(len(part)),
        }
        for part in np.array_split(order, min(10, len(order)))
    ]


def _days(found: PolicyComparison) -> list[dict[str, float]]:
    """Both values day by day."""
    day = found.settled.time_ms // 86_400_000
    candidate, live = found.scores(found.candidate), found.scores(found.live)
    return [
        {
            "day_ms": float(one * 86_400_000),
            "candidate": float(candidate[day == one].mean()),
            "candidate_error": _error(candidate[day == one]),
            "live": float(live[day == one].mean()),
            "live_error": _error(live[day == one]),
            "rows": float((day == one).sum()),
        }
        for one in np.unique(day)
    ]


def _error(scores: Floats) -> float:
    """Standard error of a mean."""
    return float(scores.std(ddof=1)) / len(scores) ** 0.5 if len(scores) > 1 else 0.0
