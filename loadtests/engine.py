"""The forest beside its peers: one row through each library's own Python call, in one run, as ratios.

Calls take turns in short blocks, so that a busy moment of the machine meets all of them while each finds its
own caches warm, as it does in a server; medians are compared.
Results that are not equal would make the times meaningless: margins are checked first, bit for bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

FEATURES = 40
MISSING = 0.05
ROWS = 2_000
BLOCK = 50
WARM = 10


def compare(trees: int = 500, depth: int = 6) -> Iterator[dict[str, Any]]:
    """Measures one model; yields a figure per peer.

    Args:
        trees: Of the XGBoost model.
        depth: Of each tree.

    Yields:
        ``name, ours, unit, peer, theirs, ratio``; times in microseconds, ratio = theirs / ours.
    """
    import numpy as np
    import treelite
    import xgboost as xgb

    from scorer import Forest

    random = np.random.default_rng(1)
    x = random.normal(size=(20_000, FEATURES)).astype(np.float32)
    odds = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3:10].sum(axis=1) / 3
    y = random.random(len(x)) < 1 / (1 + np.exp(-odds))
    x[random.random(x.shape) < MISSING] = np.nan
    settings = {"objective": "binary:logistic", "max_depth": depth, "eta": 0.1, "nthread": 1}
    booster = xgb.train(settings, xgb.DMatrix(x, y), trees)
    forest = Forest.from_xgboost(booster)
    compiled = treelite.frontend.from_xgboost(booster)
    rows = [x[i : i + 1] for i in range(ROWS)]

    margins = booster.predict(xgb.DMatrix(x[:ROWS]), output_margin=True)
    if not np.array_equal(forest.predict(x[:ROWS], margin=True), margins):
        raise SystemExit("error: margins differ from XGBoost's; fix the engine before measuring it")

    calls: dict[str, Callable[[Any], object]] = {
        "scorer Forest.predict": forest.predict,
        "XGBoost inplace_predict": booster.inplace_predict,
        "Treelite GTIL": lambda row: treelite.gtil.predict(compiled, row, nthread=1),
    }
    medians = _medians(calls, rows)
    ours = medians.pop("scorer Forest.predict")
    for peer, theirs in medians.items():
        yield {
            "name": f"1 row, {trees} trees x depth {depth}, {FEATURES} features, from Python, 1 thread",
            "ours": round(ours, 2),
            "unit": "us",
            "peer": peer,
            "theirs": round(theirs, 1),
            "ratio": round(theirs / ours, 1),
        }


def _medians(calls: dict[str, Callable[[Any], object]], rows: list[Any]) -> dict[str, float]:
    times: dict[str, list[int]] = {name: [] for name in calls}
    for first in range(0, len(rows), BLOCK):
        for name, call in calls.items():
            for i, row in enumerate(rows[first : first + BLOCK]):
                started = time.perf_counter_ns()
                call(row)
                taken = time.perf_counter_ns() - started
                if i >= WARM:
                    times[name].append(taken)
    return {name: sorted(taken)[len(taken) // 2] / 1000 for name, taken in times.items()}
