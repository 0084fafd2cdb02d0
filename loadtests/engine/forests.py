"""Rows through a forest: one at a time through Rust and through Python, and many per call."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from loadtests.engine import native, rivals
from loadtests.engine.models import Rows, Spec, booster, sample
from loadtests.engine.race import Lap, race
from loadtests.figures import Figures
from loadtests.options import Options
from scorer import Forest

COMMAND: Final = "make bench ARGS=engine"
MAIN: Final = Spec(500, 6)
MODELS: Final = (
    Spec(100, 6),
    MAIN,
    Spec(300, 8),
    Spec(1000, 8),
    Spec(500, 6, categorical=True),
    Spec(100, 6, library="lightgbm"),
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
LEAST_RUST: Final = {"XGBoost": 70.0, "ONNX Runtime": 12.0}
LEAST_PYTHON: Final = {"ONNX Runtime": 8.0}
LEAST_BULK: Final = {"XGBoost": 8.0, "ONNX Runtime": 15.0}
MOST_MEMORY: Final = 2.0
LONGEST: Final = Spec(5000, 6)
TREES: Final = (10, 30, 100, 300, 1000, 2000, 3000, 5000)
ROWS: Final = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Field:
    """A model, our forest of it, its peers, and the rows that all of them are given."""

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
        # On a busy machine, short calls need many tries to find each peer undisturbed once.
        least_rounds = 15 if len(rows) == SINGLES else 5
        return race(calls, seconds=seconds, clock=clock, least_rounds=least_rounds)

    def singles(self) -> list[Rows]:
        """Rows to give one at a time."""
        return [self.rows[i : i + 1] for i in range(SINGLES)]


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
    rows, _ = sample(spec)
    if spec.library == "lightgbm":
        forest, peers = Forest.from_lightgbm(model), ["LightGBM", "lleaves"]
        margins, expected = forest.predict(rows, margin=True), model.predict(rows, raw_score=True)
    else:
        forest, peers = Forest.from_xgboost(model), ["XGBoost", "Treelite GTIL"]
        # Converters of the others have no categories; for larger forests gcc needs a quarter of an hour.
        peers += ["ONNX Runtime"] if not spec.categorical else []
        peers += ["TL2cgen"] if not spec.categorical and spec.depth <= 6 and not quick else []
        margins, expected = forest.predict(rows, margin=True), rivals.xgboost_margins(model, rows)
    if not np.array_equal(margins.reshape(-1), expected):
        raise RuntimeError(f"{spec.words}: margins differ from the library's; fix that before measuring")
    field = Field(spec, model, forest, {name: NAMES[name](model) for name in peers}, rows)
    rivals.check(field.peers, rows[:SINGLES], forest.predict(rows[:SINGLES]), spec.words)
    return field


def through_rust(field: Field, work: str = "single", count: int = SINGLES) -> dict[str, Any]:
    """The same rows without Python; the program compares every margin with ours, checked before."""
    rows = np.ascontiguousarray(field.rows[:count])
    name = field.spec.words.replace(",", "").replace("×", "x").replace(" ", "-")
    packed = native.kept(f"{name}.bin", field.forest.to_bytes())
    options = [f"work={work}", f"rows={native.kept(f'{name}.f32', rows.tobytes())}", f"count={count}"]
    if field.spec.library != "lightgbm":
        margins = field.forest.predict(rows, margin=True).astype(np.float32)
        options.append(f"expect={native.kept(f'{name}.margins', margins.tobytes())}")
    return native.measured("forest_cost", packed, *options, f"repeat={200_000 // count}")


def one_row(field: Field, figures: Figures, options: Options) -> None:
    """One row per call, through Rust and through Python, beside each peer's Python call; and the memory."""
    rust, python = (f"{field.spec.words}, 1 row, {through}" for through in ("Rust API", "Forest.predict"))
    if not any(options.wants(f"{name} | {peer}") for name in (rust, python) for peer in field.peers):
        return
    turns, seconds = (3, 1.0) if options.quick else (4, 1.5)
    best, laps = native.in_turns(
        lambda: through_rust(field), lambda: field.race(field.singles(), seconds), turns
    )
    main = field.spec == MAIN
    for name, ours, least in (
        (rust, best["min_ns"] / 1e3, LEAST_RUST),
        (python, laps["ours"].best * 1e6, LEAST_PYTHON),
    ):
        for peer in field.peers:
            if options.wants(f"{name} | {peer}"):
                figures.add(
                    name=name,
                    ours=ours,
                    unit="µs",
                    peer=peer,
                    theirs=laps[peer].best * 1e6,
                    target=least.get(peer) if main else None,
                    command=COMMAND,
                )
    if field.spec.library != "lightgbm" and not options.only:
        figures.add(
            name=f"{field.spec.words}, memory of the loaded forest, its UBJ being 1",
            ours=best["heap_bytes"] / len(field.model.save_raw("ubj")),
            unit="×",
            target=MOST_MEMORY,
            command=COMMAND,
        )


def bulk(field: Field, figures: Figures, options: Options) -> None:
    """Many rows per call, on one core, through each library's Python call."""
    name = f"{field.spec.words}, {BULK:,} rows per call, per row"
    wanted = [peer for peer in field.peers if options.wants(f"{name} | {peer}")]
    if not wanted:
        return
    rows = [np.ascontiguousarray(field.rows[:BULK])]
    laps = field.race(rows, 4.0 if options.quick else 15.0, time.process_time_ns)
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


def curves(figures: Figures) -> None:
    """How cost grows with trees, up to where no cache holds them, and with rows per call."""
    whole = booster(LONGEST)
    for trees in TREES:
        spec = Spec(trees, LONGEST.depth)
        model = whole[:trees]
        forest = Forest.from_xgboost(model)
        peers = {name: NAMES[name](model) for name in ("XGBoost", "ONNX Runtime", "Treelite GTIL")}
        field = Field(spec, model, forest, peers, sample(spec)[0])
        best, laps = native.in_turns(
            lambda field=field: through_rust(field),  # type: ignore[misc]
            lambda field=field: field.race(field.singles(), 1.0),  # type: ignore[misc]
            2,
        )
        figures.add(
            name="memory", ours=best["heap_bytes"], unit="bytes", command=COMMAND, plot="trees", x=trees
        )
        for peer in peers:
            figures.add(
                name="1 row, Rust API", ours=best["min_ns"] / 1e3, unit="µs", peer=peer,
                theirs=laps[peer].best * 1e6, command=COMMAND, plot="trees", x=trees,
            )  # fmt: skip
    field = enter(MAIN, quick=True)
    for count in ROWS:
        # No row twice within a call; several calls where they are short.
        calls = [field.rows[i * count : (i + 1) * count] for i in range(max(1, SINGLES // count))]
        clock = time.perf_counter_ns if count <= 10 else time.process_time_ns
        laps = field.race(calls, 1.5, clock)
        for peer in field.peers:
            figures.add(
                name="Forest.predict", ours=laps["ours"].best / count * 1e6, unit="µs", peer=peer,
                theirs=laps[peer].best / count * 1e6, command=COMMAND, plot="rows", x=count,
            )  # fmt: skip
