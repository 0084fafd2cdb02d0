"""Batch scoring: a bundle on whole tables, with the bits of a server's answers.

encoding    Arrow columns to the float32 columns that the engine reads
scoring     `BatchScorer`: a record batch in, a record batch out
inputs      Parquet, CSV, a Delta table or a SQL query as record batches
portions    files and row groups that separate processes read
plans       which portions each part of a cluster's output holds
checksums   checksums of rows, by which a continued run recognises the rows of a SQL query
outputs     the parts of an output and the record of a run, by which a run is continued
running     the run from an input to an output, in one process
cluster     the run on a cluster whose tasks read and write files themselves
workers     the scorers of worker processes
spark, ray  adapters for the engines of these names: of files, and of data frames
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scorer.batch.running import BatchRun, BatchTotals
    from scorer.batch.scoring import BatchColumns, BatchScorer

_HOMES = {
    "BatchColumns": "scorer.batch.scoring",
    "BatchRun": "scorer.batch.running",
    "BatchScorer": "scorer.batch.scoring",
    "BatchTotals": "scorer.batch.running",
}

__all__ = ["BatchColumns", "BatchRun", "BatchScorer", "BatchTotals"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value
