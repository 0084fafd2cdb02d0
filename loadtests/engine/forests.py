"""Measure the scoring of rows: one at a time through native APIs and from Python, and many per call.

Native APIs (Rust or C) are compared with native APIs, and Python calls with Python calls. All get the same
rows, return probabilities and take turns (race.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadtests.engine import native, rivals
from loadtests.engine.models import Rows, Spec, booster, sample
from loadtests.engine.race import BLOCKS, Lap, Program, PythonCalls, Racer, race, running
from loadtests.figures import Figures
from loadtests.options import Options
from scorer import Forest

COMMAND: Final = "make bench ARGS=engine"
MAIN: Final = Spec(500, 6)
# The kernels are not designed for the last six: deep, unbinned, unbalanced, wide or categorical.
MODELS: Final = (
    Spec(100, 6),
    MAIN,
    Spec(300, 8),
    Spec(1000, 8),
    Spec(100, 6, library="lightgbm"),
    Spec(500, 6, categorical=True),
    Spec(200, 12),
    Spec(500, 6, method="exact"),
    Spec(200, 0, library="lightgbm", leaves=255),
    Spec(500, 6, features=300),
    Spec(200, 10, forest=True),
)
# Number of different rows that are scored one at a time: too many for a branch predictor to learn.
SINGLES: Final = 64
BULK: Final = 10_000
OURS: Final = "scorer"
NAMES: Final[dict[str, Callable[[Any], rivals.Predict]]] = {
    "XGBoost": rivals.xgboost,
    "ONNX Runtime": rivals.onnxruntime,
    "oneDAL (daal4py)": rivals.daal4py,
    "Treelite GTIL": rivals.treelite,
    "TL2cgen": rivals.tl2cgen,
    "LightGBM": rivals.lightgbm,
    "lleaves": rivals.lleaves,
}
XGBOOST_C: Final = "XGBoost C API"
ONNX_C: Final = "ONNX Runtime C API"
LIGHTGBM_C: Final = "LightGBM C API, single-row fast"
LEAST_NATIVE: Final = {XGBOOST_C: 70.0, ONNX_C: 12.0}
LEAST_PYTHON: Final = {"ONNX Runtime": 8.0}
LEAST_BULK: Final = {"XGBoost": 8.0, "ONNX Runtime": 15.0}
MOST_MEMORY: Final = 2.0
LONGEST: Final = Spec(5000, 6)
TREES: Final = (10, 30, 100, 300, 1000, 2000, 3000, 5000)
ROWS: Final = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)


@dataclass(frozen=True)
class Field:
    """A model, our forest of it, its peers and the rows of all of them."""

    spec: Spec
    model: Any
    forest: Forest
    peers: Mapping[str, rivals.Predict]
    rows: Rows

    @property
    def file_name(self) -> str:
        """The name of the spec as part of a file name."""
        return "".join(letter if letter.isalnum() else "-" for letter in self.spec.words.replace("×", "x"))

    def python_racers(
        self, rows: list[Rows], clock: Callable[[], int] = time.perf_counter_ns
    ) -> dict[str, Racer]:
        """Return the Python calls of ours and the peers, one call for each element of `rows`."""
        predictors: dict[str, rivals.Predict] = {OURS: self.forest.predict, **self.peers}
        return {
            name: PythonCalls([lambda predict=predict, row=row: predict(row) for row in rows], clock)
            for name, predict in predictors.items()
        }

    def singles(self) -> list[Rows]:
        """Return the rows that are scored one at a time."""
        return [self.rows[at : at + 1] for at in range(SINGLES)]


def run(figures: Figures, options: Options) -> None:
    """Measure every model, or in the quick run only the main one."""
    for spec in (MAIN,) if options.quick else MODELS:
        field = enter(smoked(spec) if options.smoke else spec, compiled=not (options.quick or options.smoke))
        one_row(field, figures, options)
        if spec == MAIN:
            bulk(field, figures, options)


def smoked(spec: Spec) -> Spec:
    """Return a small model of the same kind, for the smoke run."""
    return replace(spec, trees=max(spec.trees // 50, 2))


def enter(spec: Spec, *, compiled: bool) -> Field:
    """Prepare a model and its peers, and check that all of them give the same probabilities.

    Args:
        spec: The model.
        compiled: Whether to include peers that compile the model. The first compilation takes minutes.

    Raises:
        RuntimeError: Our margins are not bit-equal to the library's, or a peer evaluates another model.
    """
    model = booster(spec)
    rows, _ = sample(spec)
    if spec.library == "lightgbm":
        forest, peers = Forest.from_lightgbm(model), ["LightGBM"]
        # LLVM needs a quarter of an hour to compile trees of 255 leaves.
        peers += ["lleaves"] if compiled and not spec.leaves else []
        margins, expected = forest.predict(rows, margin=True), model.predict(rows, raw_score=True)
    else:
        forest, peers = Forest.from_xgboost(model), ["XGBoost", "Treelite GTIL"]
        # The other converters do not support categories. gcc needs a quarter of an hour to compile larger
        # forests.
        peers += ["ONNX Runtime", "oneDAL (daal4py)"] if not spec.categorical else []
        peers += ["TL2cgen"] if compiled and not spec.categorical and spec.depth <= 6 else []
        margins, expected = forest.predict(rows, margin=True), rivals.xgboost_margins(model, rows)
    if not np.array_equal(margins.reshape(-1), expected):
        raise RuntimeError(f"{spec.words}: margins differ from the library's; fix that before measuring")
    field = Field(spec, model, forest, {name: NAMES[name](model) for name in peers}, rows)
    rivals.check(field.peers, rows[:SINGLES], forest.predict(rows[:SINGLES]), spec.words)
    return field


@contextmanager
def native_racers(field: Field) -> Iterator[dict[str, Program]]:
    """Run the programs of a model and check that each gives the same probabilities as ours."""
    rows = native.kept(f"{field.file_name}.f32", np.ascontiguousarray(field.rows[:SINGLES]).tobytes())
    packed = native.kept(f"{field.file_name}.bin", field.forest.to_bytes())
    features = str(field.spec.features)
    commands: dict[str, list[str | Path]] = {
        OURS: [native.program("turns"), "--forest", packed, "--rows", rows]
    }
    if field.spec.library == "lightgbm":
        text = native.kept(f"{field.file_name}.txt", field.model.model_to_string().encode())
        program = native.peer_program("lightgbm_turns", "lightgbm", "lib/lib_lightgbm.so")
        commands[LIGHTGBM_C] = [program, text, rows, features]
    else:
        commands |= xgboost_commands(field.model, field.file_name, rows, features, 1, field.spec.categorical)
    with ExitStack() as opened:
        programs = {
            name: opened.enter_context(running(command, SINGLES)) for name, command in commands.items()
        }
        expected = field.forest.predict(field.rows[:SINGLES])
        answers = {name: lambda _, program=program: program.answers() for name, program in programs.items()}
        rivals.check(answers, field.rows[:SINGLES], expected, field.spec.words)
        yield programs


def xgboost_commands(
    model: Any, name: str, rows: Path, features: str, block: int, categorical: bool
) -> dict[str, list[str | Path]]:
    """Return the commands that evaluate an XGBoost model through C APIs, with `block` rows per call."""
    saved = native.kept(f"{name}.ubj", model.save_raw("ubj"))
    program = native.peer_program("xgboost_turns", "xgboost", "lib/libxgboost.so")
    commands: dict[str, list[str | Path]] = {XGBOOST_C: [program, saved, rows, features, str(block)]}
    if not categorical:
        converted = rivals.onnx_model(model)
        onnx = native.kept(f"{name}.onnx", converted.SerializeToString())
        program = native.peer_program("onnxruntime_turns", "onnxruntime", "capi/libonnxruntime.so.*")
        output = converted.graph.output[-1].name
        commands[ONNX_C] = [program, onnx, rows, features, str(block), output]
    return commands


def one_row(field: Field, figures: Figures, options: Options) -> None:
    """Measure one row per call through native APIs and from Python, and the memory of the forest."""
    by_native, by_python = (f"{field.spec.words}, 1 row, {way}" for way in ("native", "Python"))
    seconds = _seconds(options, quick=4.0, full=10.0)
    main = field.spec == MAIN
    with native_racers(field) as programs:
        racers: dict[str, Racer] = {f"native {name}": program for name, program in programs.items()}
        racers |= {f"python {name}": racer for name, racer in field.python_racers(field.singles()).items()}
        laps = race(racers, seconds=seconds)
        heap = programs[OURS].about["heap_bytes"]
    for name, way, least in (
        (by_native, "native ", LEAST_NATIVE),
        (by_python, "python ", LEAST_PYTHON),
    ):
        ours = laps[way + OURS]
        for peer, lap in laps.items():
            peer_name = peer.removeprefix(way)
            if peer.startswith(way) and peer_name != OURS and options.wants(f"{name} | {peer_name}"):
                beside(figures, name, ours, peer_name, lap, least.get(peer_name) if main else None)
    if field.spec.library != "lightgbm" and not options.only:
        figures.add(
            name=f"{field.spec.words}, memory of the loaded forest, its UBJ being 1",
            ours=heap / len(field.model.save_raw("ubj")),
            unit="×",
            target=MOST_MEMORY,
            command=COMMAND,
        )


def bulk(field: Field, figures: Figures, options: Options) -> None:
    """Measure many rows per call on one core, with each library's Python call."""
    name = f"{field.spec.words}, {BULK:,} rows per call, per row"
    rows = [np.ascontiguousarray(field.rows[:BULK])]
    racers = field.python_racers(rows, time.process_time_ns)
    laps = race(
        racers, seconds=_seconds(options, quick=6.0, full=20.0), blocks=3 if options.smoke else BLOCKS
    )
    for peer in field.peers:
        if options.wants(f"{name} | {peer}"):
            beside(figures, name, laps[OURS], peer, laps[peer], LEAST_BULK.get(peer), rows=BULK)


def beside(
    figures: Figures, name: str, ours: Lap, peer: str, theirs: Lap, target: float | None, *, rows: int = 1
) -> None:
    """Add a figure that compares two racers, in microseconds per row."""
    factor = 1e6 / rows
    figures.add(
        name=name,
        ours=ours.scaled(factor),
        unit="µs",
        peer=peer,
        theirs=theirs.scaled(factor),
        target=target,
        command=COMMAND,
    )


def _seconds(options: Options, *, quick: float, full: float) -> float:
    return 0.1 if options.smoke else quick if options.quick else full


def curves(figures: Figures, options: Options) -> None:
    """Measure the time by number of trees, up to forests larger than all caches, and by rows per call."""
    longest = smoked(LONGEST) if options.smoke else LONGEST
    whole = booster(longest)
    for trees in (trees for trees in TREES if trees <= longest.trees):
        model = whole[:trees]
        spec = Spec(trees, LONGEST.depth)
        field = Field(spec, model, Forest.from_xgboost(model), {}, sample(spec)[0])
        with native_racers(field) as programs:
            laps = race(programs, seconds=_seconds(options, quick=1.0, full=3.0), blocks=3)
            heap = programs[OURS].about["heap_bytes"]
        figures.add(name="memory", ours=heap, unit="bytes", command=COMMAND, plot="trees", x=trees)
        for peer, lap in laps.items():
            if peer != OURS:
                _point(figures, "1 row, native", laps[OURS], peer, lap, "trees", trees, rows=1)
    field = enter(smoked(MAIN) if options.smoke else MAIN, compiled=False)
    for count in ROWS:
        # No row is used twice within a call. Short calls are repeated with different rows.
        calls = [field.rows[at * count : (at + 1) * count] for at in range(max(1, SINGLES // count))]
        clock = time.perf_counter_ns if count <= 10 else time.process_time_ns
        racers = field.python_racers(calls, clock)
        laps = race(racers, seconds=_seconds(options, quick=1.0, full=2.0), blocks=3)
        for peer in field.peers:
            _point(figures, "Python", laps[OURS], peer, laps[peer], "rows", count, rows=count)


def _point(
    figures: Figures, name: str, ours: Lap, peer: str, theirs: Lap, plot: str, x: int, *, rows: int
) -> None:
    figures.add(
        name=name,
        ours=ours.scaled(1e6 / rows),
        unit="µs",
        peer=peer,
        theirs=theirs.scaled(1e6 / rows),
        command=COMMAND,
        plot=plot,
        x=x,
    )
