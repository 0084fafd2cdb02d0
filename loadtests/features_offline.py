"""Time of offline feature values: `python -m loadtests.features_offline --handbook PATH`.

PATH is the Parquet file of the handbook's transactions. The command writes events and decisions, then a
training table with the features of `examples/features/handbook.toml`, and prints the times in seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from examples.datasets import HANDBOOK, dataset
from examples.features.handbook import SET, write_tables
from scorer.features import read_set
from scorer.features.building import build_table
from scorer.features.events import EventTable


def main() -> None:
    """Build the training table, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--handbook", type=Path, default=dataset(HANDBOOK), help="the handbook's transactions"
    )
    parser.add_argument("--out", type=Path, help="training table to keep; default: none is kept")
    parser.add_argument("--memory-mb", type=int, default=2048, help="largest memory of DuckDB, MB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as path:
        directory = Path(path)
        began = last = time.perf_counter()
        tables = write_tables(options.handbook, directory)

        def step(name: str) -> None:
            nonlocal last
            now = time.perf_counter()
            print(f"{now - last:7.1f} s  {name}", flush=True)
            last = now

        step("conversion")
        built = build_table(
            read_set(SET),
            {
                "payment": EventTable([str(tables.payments)]),
                "fraud": EventTable([str(tables.frauds)], received_after=7 * 86_400),
            },
            [str(tables.decisions)],
            options.out or directory / "training.parquet",
            memory_mb=options.memory_mb,
            step=step,
        )
        print(f"{time.perf_counter() - began:7.1f} s  in all, {built.rows:,} decisions")


if __name__ == "__main__":
    main()
