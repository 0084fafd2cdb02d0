"""Scores a Parquet file in a local Spark: spark_scores.py SCORES ACTIONS INPUT OUTPUT.

SCORES and ACTIONS are directories of bundles. The results are in `scores` and `actions` of OUTPUT. The last
line lists the worker processes, with how many bundles each has loaded and how often it has used one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from scorer.batch.scoring import BatchColumns
from scorer.batch.spark import score_frame
from scorer.errors import BatchError


def loads(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield the id of the process, how many bundles it has loaded, and how often it has used one."""
    import pyarrow as pa

    from scorer.batch.workers import worker_scorer

    for _ in batches:
        pass
    about = worker_scorer.cache_info()
    yield pa.record_batch(
        {"process": [os.getpid()], "loads": [about.misses], "uses": [about.hits + about.misses]}
    )


def main(scores: str, actions: str, source: str, output: str) -> None:
    """Score the file with both bundles."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "300")
        .getOrCreate()
    )
    try:
        rows = spark.read.parquet(source).repartition(4)
        score_frame(rows, scores, BatchColumns(keep=("id",))).write.parquet(f"{output}/scores")
        columns = BatchColumns(
            keep=("id",), id="id", checkpoint="action.authorise", eligible="may", pmf=True, bad_rows="null"
        )
        score_frame(rows, actions, columns).write.parquet(f"{output}/actions")
        try:
            score_frame(rows.drop("hour"), scores)
        except BatchError as error:
            print("refused:", error)
        found = rows.mapInArrow(loads, "process long, loads long, uses long").collect()
        print("loads:", sorted({(row.process, row.loads, row.uses) for row in found}))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
