"""Public data sets, which the demo, the benchmarks and some tests use when they are present.

The repository contains none of them.
"""

import os
from pathlib import Path

HANDBOOK = "handbook_transactions_2018-04_to_08.parquet"
"""Simulated card transactions of the handbook on machine learning for the detection of card fraud."""

ROUTING = "psp_routing_2019-01.csv"
"""Card payment attempts of an online shop over four payment service providers, January 2019."""


def dataset(name: str) -> Path:
    """Return the path of a data set, which need not exist.

    The directory is that of the environment variable `SCORER_DATASETS`; by default `shared/data` beside the
    repository.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("SCORER_DATASETS", beside)) / name


def present(name: str) -> Path | None:
    """Return the path of a data set; None if it is absent."""
    path = dataset(name)
    return path if path.is_file() else None
