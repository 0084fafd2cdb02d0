"""Measure forests of every shape beside the peers in one run: one row per call, and many.

All racers take turns on one thread, from Python, with the same rows. A forest whose margins differ from those
of its library in one bit is not measured.

```sh
make bench-shapes ARGS='--only lossguide --seconds 3'
```
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadtests.engine import rivals
from loadtests.engine.models import Rows, Spec, booster, sample
from loadtests.engine.race import Lap, PythonCalls, Racer, race
from loadtests.figures import Figures, cpu_facts, processor_name
from loadtests.options import Options
from scorer import Forest

COMMAND: Final = "make bench-shapes"
OURS: Final = "scorer"
ONNX: Final = "ONNX Runtime"
LIBRARY: Final = {"xgboost": "XGBoost", "lightgbm": "LightGBM"}
# The shapes, by a short name.
SHAPES: Final[Mapping[str, Spec]] = {
    "hist": Spec(500, 6),
    "deep": Spec(200, 12),
    "exact": Spec(300, 8, method="exact"),
    "wide": Spec(300, 6, features=300),
    "lossguide": Spec(200, 0, leaves=255),
    "categorical": Spec(500, 6, categorical=True, categories=6),
    "lightgbm": Spec(300, 0, library="lightgbm", leaves=255),
    "lightgbm-categorical": Spec(300, 0, library="lightgbm", leaves=255, categorical=True, categories=6),
    "random-forest": Spec(300, 16, forest=True),
    "sparse": Spec(300, 6, features=1000, missing=0.95),
    "classes": Spec(100, 6, classes=10),
}
# ONNX Runtime's operator has no sets of categories, and its converters take minutes for them.
LEAST_SINGLE: Final = {ONNX: 8.0, "XGBoost": 20.0, "LightGBM": 20.0}
LEAST_BULK: Final = {ONNX: 12.0, "XGBoost": 9.0, "LightGBM": 9.0}
SINGLES: Final = 64
BULK: Final = 2048
MOST_MEMORY: Final = 1.5


@dataclass(frozen=True)
class Measured:
    """One comparison: microseconds per row of ours and of a peer."""

    shape: str
    way: str
    peer: str
    ours: Lap
    theirs: Lap
    rows: int
    target: float

    @property
    def ratio(self) -> float:
        """The factor by which ours is faster, by medians."""
        return self.theirs.median / self.ours.median


@dataclass(frozen=True)
class Field:
    """A model's forest, its peers and the rows of all of them."""

    spec: Spec
    forest: Forest
    peers: Mapping[str, rivals.Predict]
    rows: Rows
    file_bytes: int


def enter(spec: Spec) -> Field:
    """Train a model or read it, and check every racer's answers.

    Raises:
        RuntimeError: Our margins are not bit-equal to the library's, or a peer evaluates another model.
    """
    model = booster(spec)
    rows, _ = sample(spec)
    rows = np.ascontiguousarray(rows[:BULK])
    peers: dict[str, rivals.Predict] = {}
    if spec.library == "lightgbm":
        forest = Forest.from_lightgbm(model)
        expected = model.predict(rows, raw_score=True)
        peers["LightGBM"] = rivals.lightgbm(model)
        file_bytes = len(model.model_to_string())
    else:
        forest = Forest.from_xgboost(model)
        expected = rivals.xgboost_margins(model, rows)
        peers["XGBoost"] = rivals.xgboost(model)
        file_bytes = len(model.save_raw("ubj"))
    if not np.array_equal(forest.predict(rows, margin=True).reshape(expected.shape), expected):
        raise RuntimeError(f"{spec.words}: margins differ from the library's; fix that before measuring")
    if not spec.categorical:
        peers[ONNX] = rivals.onnxruntime(model)
    ours = forest.predict(rows[:SINGLES]).reshape(SINGLES, -1)[:, -1]
    rivals.check(peers, rows[:SINGLES], ours, spec.words)
    return Field(spec, forest, peers, rows, file_bytes)


def measure(name: str, field: Field, seconds: float) -> Iterator[Measured]:
    """Let all racers take turns, first with one row per call, then with many."""
    calls: dict[str, rivals.Predict] = {OURS: field.forest.predict, **field.peers}
    singles = [field.rows[at : at + 1] for at in range(SINGLES)]
    for way, blocks, clock, least, rows in (
        ("1 row", singles, time.perf_counter_ns, LEAST_SINGLE, 1),
        (f"{BULK:,} rows", [field.rows], time.process_time_ns, LEAST_BULK, BULK),
    ):
        racers: dict[str, Racer] = {
            racer: PythonCalls([lambda call=call, block=block: call(block) for block in blocks], clock)
            for racer, call in calls.items()
        }
        laps = race(racers, seconds=seconds)
        for peer in field.peers:
            if peer == ONNX or ONNX not in field.peers or rows > 1:
                yield Measured(name, way, peer, laps[OURS], laps[peer], rows, least[peer])


def run(figures: Figures, options: Options) -> None:
    """Add the figures of every shape."""
    for name, spec in SHAPES.items():
        small = replace(spec, trees=max(spec.trees // 50, 2)) if options.smoke else spec
        field = enter(small)
        for found in measure(name, field, 0.1 if options.smoke else 6.0):
            factor = 1e6 / found.rows
            figures.add(
                name=f"{spec.words}, {found.way} per call, Python, per row",
                ours=found.ours.scaled(factor),
                unit="µs",
                peer=found.peer,
                theirs=found.theirs.scaled(factor),
                target=found.target,
                command=COMMAND,
            )


def main() -> None:
    """Print a table of every shape, its targets and the memory of its forest."""
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n\n")[0])
    parser.add_argument("--only", nargs="*", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--seconds", type=float, default=4.0, help="time for each way of a shape")
    asked = parser.parse_args()
    sys.stdout.write(
        f"{processor_name(cpu_facts())}, one thread, from Python; µs per row, medians, all racers in turns\n"
    )
    for name in asked.only:
        spec = SHAPES[name]
        field = enter(spec)
        memory = field.forest.nbytes / field.file_bytes
        sys.stdout.write(f"{name}: {spec.words}; memory {memory:.2f} of the model file (≤ {MOST_MEMORY})\n")
        for found in measure(name, field, asked.seconds):
            factor = 1e6 / found.rows
            verdict = "met" if found.ratio >= found.target else "missed"
            ours, theirs = found.ours.median * factor, found.theirs.median * factor
            sys.stdout.write(
                f"  {found.way:11} {ours:8.2f}  {found.peer:13} {theirs:9.2f}  {found.ratio:6.1f}×"
                f"  (≥ {found.target:.0f}×, {verdict})\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
