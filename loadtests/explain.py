"""Measure explanations of one row on one thread, beside XGBoost's and shap's.

``python -m loadtests.explain`` prints one line per contender and the ratios. All get the same XGBoost model
and the same rows and take turns in rounds; the figures are medians over the rounds. The engine is measured
by a Rust program and from Python. `make bench-explain` installs `shap`; a message says so
if it is absent. The walk with reasons is also measured on a small and on a large model.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np

from loadtests.engine.models import Rows, Spec, booster, sample
from loadtests.engine.native import program
from scorer.forest import Forest

SINGLES: Final = 64
"""Number of different rows that are explained one at a time."""
OURS: Final = "scorer, exact"
XGBOOST: Final = "XGBoost pred_contribs"
SHAP: Final = "shap.TreeExplainer"
LEAST: Final = {XGBOOST: 5.0, SHAP: 20.0}
"""By what factor the exact contributions must be faster."""
MOST_EXACT_US: Final = 300.0
MOST_REASONS: Final = 2.0
SHAPES: Final = (Spec(100, 4), Spec(2000, 8))
"""Further models on which the walk with reasons is measured."""
TOLERANCE: Final = 1e-5

Explain = Callable[[Rows], Any]


@dataclass(frozen=True)
class Contender:
    """A way to explain one row, ``[1, features]``, from Python.

    Attributes:
        name: Its name in the output.
        explain: Function from a row to its contributions.
        calls: Calls per round; slow ones get fewer.
    """

    name: str
    explain: Explain
    calls: int


def contenders(model: Any, forest: Forest) -> list[Contender]:
    """Return the ways to explain a row of an XGBoost model."""
    import xgboost

    def contribs(row: Rows) -> Any:
        return model.predict(xgboost.DMatrix(row, nthread=1), pred_contribs=True)

    found = [Contender(OURS, forest.contributions, SINGLES), Contender(XGBOOST, contribs, SINGLES)]
    if importlib.util.find_spec("shap") is None:
        print("shap is not measured, because it is not installed; use `make bench-explain`", file=sys.stderr)
        return found
    import shap

    explainer = shap.TreeExplainer(model)
    return [*found, Contender(SHAP, explainer.shap_values, 16)]


def race(field: list[Contender], rows: Rows, rounds: int) -> dict[str, float]:
    """Return the median microseconds per row of each contender. They take turns in every round."""
    laps: dict[str, list[float]] = {contender.name: [] for contender in field}
    for number in range(rounds + 1):
        for contender in field:
            began = time.perf_counter()
            for at in range(contender.calls):
                contender.explain(rows[at : at + 1])
            # The first round only warms up.
            if number:
                laps[contender.name].append((time.perf_counter() - began) / contender.calls * 1e6)
    return {name: median(laps[name]) for name in laps}


def native(forest: Forest, rows: Rows) -> dict[str, float]:
    """Return the figures of the Rust program: the bare walk, the walk with reasons, exact contributions.

    Args:
        forest: A forest with covers.
        rows: The rows that are explained, ``[n, features]``.
    """
    covers = forest.covers()
    if covers is None:
        raise SystemExit("the model has no covers; use a model that XGBoost has trained")
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        forest.save(folder / "forest.bin")
        (folder / "covers.bin").write_bytes(covers)
        (folder / "rows.f32").write_bytes(rows.astype("<f4").tobytes())
        command = [str(program("explain_cost")), "--forest", str(folder / "forest.bin")]
        command += ["--covers", str(folder / "covers.bin"), "--rows", str(folder / "rows.f32")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def ratios(spec: Spec, figures: dict[str, float]) -> str:
    """Return the line with the bare walk and the walk with reasons of one model."""
    walk, reasons, warm_walk, warm = (
        figures[f"{key}_ns"] / 1e3 for key in ("walk", "reasons", "warm_walk", "warm_reasons")
    )
    return (
        f"  {spec.words} trees: walk {walk:.2f} us, with reasons {reasons:.2f} us, "
        f"{figures['reasons_ratio']:.2f}x; with warm caches {warm_walk:.2f} and {warm:.2f} us, "
        f"{figures['warm_reasons_ratio']:.2f}x; tables {figures['reasons_bytes'] / 1e6:.2f} MB, "
        f"prepared in {figures['prepare_reasons_ms']:.1f} ms"
    )


def agreement(model: Any, forest: Forest, rows: Rows) -> float:
    """Return the greatest difference between the exact contributions and XGBoost's."""
    import xgboost

    expected = model.predict(xgboost.DMatrix(rows, nthread=1), pred_contribs=True)
    return float(np.abs(forest.contributions(rows) - expected).max())


def verdicts(figures: dict[str, float], times: dict[str, float], difference: float) -> list[tuple[str, bool]]:
    """Return each target with its figure and whether it is met."""
    exact, ratio = figures["exact_ns"] / 1e3, figures["reasons_ratio"]
    lines = [
        (f"walk with reasons {ratio:.2f}x the bare walk (at most {MOST_REASONS:g}x)", ratio <= MOST_REASONS),
        (f"exact contributions {exact:.0f} us (at most {MOST_EXACT_US:g} us)", exact <= MOST_EXACT_US),
        (f"difference from XGBoost {difference:.1e} (at most {TOLERANCE:.0e})", difference <= TOLERANCE),
    ]
    for name, least in LEAST.items():
        if name in times:
            factor = times[name] / times[OURS]
            lines.append((f"{factor:.1f}x as fast as {name} (at least {least:g}x)", factor >= least))
    return lines


def main() -> None:
    """Measure and print the figures of one model."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.explain", description=__doc__)
    parser.add_argument("--trees", type=int, default=500, help="Number of trees.")
    parser.add_argument("--depth", type=int, default=6, help="Depth of the trees.")
    parser.add_argument("--rounds", type=int, default=15, help="Rounds in which the contenders take turns.")
    options = parser.parse_args()
    spec = Spec(options.trees, options.depth)
    model = booster(spec)
    model.set_param({"nthread": 1})
    forest = Forest.from_xgboost(model)
    rows = sample(spec)[0][:SINGLES]
    figures = native(forest, rows)
    times = race(contenders(model, forest), rows, options.rounds)
    print(f"{spec.words} trees, {forest.num_features} features, one row, one thread")
    for key in ("walk_ns", "reasons_ns", "exact_ns"):
        print(f"  Rust, {key.removesuffix('_ns'):8} {figures[key] / 1e3:10.1f} us")
    print(ratios(spec, figures))
    for other in SHAPES:
        print(ratios(other, native(Forest.from_xgboost(booster(other)), sample(other)[0][:SINGLES])))
    for name, microseconds in times.items():
        print(f"  Python, {name:24} {microseconds:10.1f} us")
    for line, met in verdicts(figures, times, agreement(model, forest, rows)):
        print(f"  {'met' if met else 'NOT MET'}: {line}")


if __name__ == "__main__":
    main()
