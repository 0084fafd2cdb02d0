"""How the time of batch scoring divides between Python and the engine: `python -m loadtests.batch_time`.

A process scores batches of 16,384 rows of two tables with a forest of 500 trees of depth 6 and 40 features.
The first has 40 columns of float32, as the table of `loadtests.batch` does. The second has the types whose
encoding takes longest: float64, integers and decimals with nulls, and categories as text. Times are processor
times of the process, so other programs of the machine change them little.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa

from loadtests.batch import BATCH, NAMES
from loadtests.engine.models import MISSING, Spec, booster, sample
from loadtests.peers.subject import subject

SPEC: Final = Spec(500, 6)
CATEGORIES: Final = tuple(f"category-{number}" for number in range(12))
DECIMALS, INTEGERS, TEXTS = range(4), range(4, 12), range(12, 16)
"""Columns of the second table; the others are float64."""


@dataclass(frozen=True)
class BatchTimes:
    """Processor times of one batch in ms, medians of the rounds.

    Attributes:
        whole: From the record batch of the rows to that of the results.
        encode: Columns of Arrow to float32 columns, in Python.
        engine: Float32 columns to margins, scores and bands, in Rust.
    """

    whole: float
    encode: float
    engine: float

    @property
    def python(self) -> float:
        """Share of the time that is not the engine's."""
        return 1 - self.engine / self.whole


def main() -> int:
    """Measure both tables and print how the time divides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="batches of each table")
    options = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print("| table | ms per batch | encoding | engine | results | share of Python |")
    print("|---|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory(prefix="batch-time-") as folder:
        cases = {
            "40 float32": (subject().bundle, _numbers()),
            "float64, int64 and decimal with nulls, text": (_mixed_bundle(Path(folder)), mixed()),
        }
        for name, (bundle, batch) in cases.items():
            times = measure(bundle, batch, options.rounds)
            print(row(name, times), flush=True)
    return 0


def row(name: str, times: BatchTimes) -> str:
    """Return a row of the printed table."""
    results = times.whole - times.encode - times.engine
    return (
        f"| {name} | {times.whole:.1f} | {times.encode:.2f} | {times.engine:.1f} | {results:.2f} | "
        f"{times.python:.1%} |"
    )


def measure(bundle: Path, batch: pa.RecordBatch, rounds: int) -> BatchTimes:
    """Return the times of a batch.

    Args:
        bundle: Directory of a score bundle.
        batch: Rows with its features.
        rounds: Number of measurements; one more is not counted.
    """
    from scorer.batch import BatchScorer

    scorer = BatchScorer.load(bundle)
    scorer.check(batch.schema, "the table")
    found: list[tuple[float, float, float]] = []
    for _ in range(rounds + 1):
        began = time.process_time()
        encoded, problems = scorer.encoder.encode(batch)
        after_encoding = time.process_time()
        _, refused = scorer.bundle.score_columns(encoded)
        after_engine = time.process_time()
        scorer.score(batch)
        ended = time.process_time()
        assert not problems
        assert not refused
        found.append((ended - after_engine, after_encoding - began, after_engine - after_encoding))
    whole, encode, engine = (1000 * median(column) for column in zip(*found[1:], strict=True))
    return BatchTimes(whole, encode, engine)


def _numbers() -> pa.RecordBatch:
    """Return a batch of float32 columns, in which missing values are NaN."""
    random = np.random.default_rng(3)
    columns = {}
    for name in NAMES:
        values = random.standard_normal(BATCH, np.float32)
        values[random.random(BATCH) < MISSING] = np.nan
        columns[name] = pa.array(values)
    return pa.record_batch(columns)


def mixed() -> pa.RecordBatch:
    """Return a batch of the types that take longest, in which missing values are null."""
    random = np.random.default_rng(4)
    columns: dict[str, Any] = {}
    for at, name in enumerate(NAMES):
        absent = random.random(BATCH) < MISSING
        if at in TEXTS:
            values = np.array(CATEGORIES)[random.integers(len(CATEGORIES), size=BATCH)]
            columns[name] = pa.array(values.tolist(), pa.string(), mask=absent)
        elif at in INTEGERS:
            columns[name] = pa.array(random.integers(-3, 4, BATCH), pa.int64(), mask=absent)
        elif at in DECIMALS:
            cents = random.integers(-300, 301, BATCH).tolist()
            decimals = [Decimal(value).scaleb(-2) for value in cents]
            columns[name] = pa.array(decimals, pa.decimal128(18, 2), mask=absent)
        else:
            columns[name] = pa.array(random.standard_normal(BATCH), pa.float64(), mask=absent)
    return pa.record_batch(columns)


def _mixed_bundle(directory: Path) -> Path:
    """Build a bundle of the same forest in which some features are categories."""
    from scorer.bundle import Band, Feature, Lineage, SchemaFile, build_score_bundle

    model, rows = booster(SPEC), sample(SPEC)[0][:6000].copy()
    model.feature_names = list(NAMES)
    rows[:, list(TEXTS)] = np.random.default_rng(5).integers(len(CATEGORIES), size=(len(rows), len(TEXTS)))
    options: Mapping[str, Any] = {"type": "category", "categories": CATEGORIES}
    build_score_bundle(
        directory / "bundle",
        name="mixed",
        model=model,
        schema=SchemaFile(
            features=[Feature(name=name, **(options if at in TEXTS else {})) for at, name in enumerate(NAMES)]
        ),
        bands=[Band(start=0.0, label="approve"), Band(start=0.5, label="review")],
        training=rows[:4000],
        validation=rows[4000:],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="bench", run_id="bench"),
        golden_cases=256,
    )
    return directory / "bundle"


if __name__ == "__main__":
    sys.exit(main())
