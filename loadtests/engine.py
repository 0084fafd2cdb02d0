"""Forests beside their peers: same model, same rows, one thread, in turns, once their answers are checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from loadtests import rivals
from loadtests.figures import Figures
from loadtests.models import Rows, Spec, booster, sample
from loadtests.options import Options
from loadtests.race import Lap, race
from scorer import Forest

COMMAND: Final = "make bench ARGS=engine"
MAIN: Final = Spec(500, 6)
MODELS: Final = (
    Spec(100, 6),
    MAIN,
    Spec(300, 8),
    Spec(1000, 8),
    Spec(500, 6, categorical=True),
    Spec(500, 6, library="lightgbm"),
)
# One row at a time: so many different ones, that no branch predictor learns them.
SINGLES: Final = 64
BULK: Final = 10_000
NAMES: Final[dict[str, Callable[[Any], rivals.Predict]]] = {
    "XGBoost": rivals.xgboost,
    "ONNX Runtime": rivals.onnxruntime,
    "Treelite GTIL": rivals.treelite,
    "TL2cgen": rivals.tl2cgen,
    "LightGBM": rivals.lightgbm,
    "lleaves": rivals.lleaves,
}
LEAST_ONE: Final = {"ONNX Runtime": 8.0}
LEAST_BULK: Final = {"XGBoost": 8.0, "ONNX Runtime": 15.0}


@dataclass(frozen=True)
class Field:
    """A model, our forest of it, its peers and the rows that all of them are given."""

    spec: Spec
    model: Any
    forest: Forest
    peers: Mapping[str, rivals.Predict]
    rows: Rows

    def race(
        self, rows: list[Rows], seconds: float, clock: Callable[[], int] = time.perf_counter_ns
    ) -> dict[str, Lap]:
        """Each call takes one of `rows`; ours runs under the name "ours"."""
        predictors: dict[str, rivals.Predict] = {"ours": self.forest.predict, **self.peers}
        calls = {
            name: [lambda predict=predict, row=row: predict(row) for row in rows]
            for name, predict in predictors.items()
        }
        return race(calls, seconds=seconds, clock=clock)


def run(figures: Figures, options: Options) -> None:
    """Measures every model; the quick run only the main one, beside peers that need no compiler."""
    for spec in (MAIN,) if options.quick else MODELS:
        field = enter(spec, quick=options.quick)
        one_row(field, figures, options)
        if spec == MAIN:
            bulk(field, figures, options)


def enter(spec: Spec, *, quick: bool) -> Field:
    """Prepares a model and its peers, and checks that all of them answer alike.

    Raises:
        RuntimeError: Our answers are not bit-equal to the library's, or a peer's mean something else.
    """
    model = booster(spec)
    rows, _ = sample(spec.categorical)
    if spec.library == "lightgbm":
        forest, peers = Forest.from_lightgbm(model), ["LightGBM", "lleaves"]
        ours, theirs = forest.predict(rows, margin=True), model.predict(rows, raw_score=True)
    else:
        forest, peers = Forest.from_xgboost(model), ["XGBoost"]
        # Its converter has no categories.
        peers += ["ONNX Runtime"] if not spec.categorical else []
        peers += ["Treelite GTIL"]
        # gcc needs a quarter of an hour for larger ones.
        peers += ["TL2cgen"] if spec.depth <= 6 and not quick else []
        ours, theirs = forest.predict(rows, margin=True), rivals.xgboost_margins(model, rows)
    if not np.array_equal(ours.reshape(-1), theirs):
        raise RuntimeError(
            f"{spec.words}: margins differ from the library's; fix the engine before measuring it"
        )
    entered = {name: NAMES[name](model) for name in peers}
    expected = forest.predict(rows[:SINGLES]).astype(np.float64)
    if strangers := [
        name for name, predict in entered.items() if not rivals.agrees(predict, rows[:SINGLES], expected)
    ]:
        raise RuntimeError(f"{spec.words}: {', '.join(strangers)} answered for another model")
    return Field(spec, model, forest, entered, rows)


def one_row(field: Field, figures: Figures, options: Options) -> None:
    """`Forest.predict` of one row beside each peer's Python call."""
    name = f"{field.spec.words}, 1 row from Python"
    wanted = [peer for peer in field.peers if options.wants(f"{name} | {peer}")]
    if not wanted:
        return
    laps = field.race([field.rows[i : i + 1] for i in range(SINGLES)], 2.0 if options.quick else 4.0)
    for peer in wanted:
        figures.add(
            name=name,
            ours=laps["ours"].best * 1e6,
            unit="µs",
            peer=peer,
            theirs=laps[peer].best * 1e6,
            target=LEAST_ONE.get(peer) if field.spec == MAIN else None,
            command=COMMAND,
        )


def bulk(field: Field, figures: Figures, options: Options) -> None:
    """Many rows per call, on one core."""
    name = f"{field.spec.words}, {BULK:,} rows, per row"
    wanted = [peer for peer in field.peers if options.wants(f"{name} | {peer}")]
    if not wanted:
        return
    laps = field.race(
        [np.ascontiguousarray(field.rows[:BULK])], 4.0 if options.quick else 15.0, time.process_time_ns
    )
    for peer in wanted:
        figures.add(
            name=name,
            ours=laps["ours"].best / BULK * 1e6,
            unit="µs",
            peer=peer,
            theirs=laps[peer].best / BULK * 1e6,
            target=LEAST_BULK.get(peer),
            command=COMMAND,
        )
