"""Comparison of served with offline results: logged rows are computed again with the bundle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from scorer.bundle import Bundle
from scorer.ids import eligible_actions

SAMPLE = 2_000


def parity(bundle: Bundle, rows: Sequence[dict[str, Any]]) -> tuple[int, float] | None:
    """Return the number of rows that were computed again, and the largest difference of a result.

    The difference is infinite for a row with another number of features than the schema, and for a row whose
    offline score is not finite.

    Args:
        bundle: The bundle.
        rows: Rows with features, as `load.sample` returns them.
    """
    if not rows:
        return None
    features = [np.frombuffer(row["features"], np.float32) for row in rows]
    if any(len(one) != bundle.num_features for one in features):
        return len(rows), math.inf
    matrix = np.stack(features)
    served = np.array([row["score"] for row in rows])
    if bundle.kind == "score":
        return len(rows), _apart(bundle.score(matrix).scores, served)
    place = {action: at for at, action in enumerate(bundle.actions)}
    chosen = [place.get(row["label"]) for row in rows]
    if any(one is None for one in chosen):
        return len(rows), math.inf
    masks = np.stack([eligible_actions(row["eligible"], len(place)) for row in rows])
    pmf, rewards = bundle.evaluate(matrix, eligible=masks)
    at = np.arange(len(rows)), np.array(chosen)
    drawn = np.array([row["propensity"] for row in rows])
    return len(rows), max(_apart(rewards[at], served), _apart(pmf[at], drawn))


def _apart(offline: Any, served: Any) -> float:
    apart = np.abs(offline - served)
    return float(apart.max()) if np.isfinite(apart).all() else math.inf
