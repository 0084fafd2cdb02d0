"""Scores files in a local Spark: spark_files.py SCENARIO SCORES ACTIONS INPUT OUTPUT.

SCORES and ACTIONS are directories of bundles. The scenario "all" writes `scores` and `actions`; `killed`,
during which a worker is killed; and `none`, from a file without rows. It prints how a broken file is
refused. The scenario "driver" kills the driver.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import cluster_faults
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from scorer.batch.cluster import ClusterRun, PartResult
from scorer.batch.inputs import SourceOptions
from scorer.batch.plans import PlannedPart
from scorer.batch.scoring import BatchColumns
from scorer.batch.spark import execute_parts, score_files
from scorer.errors import BatchError

ROWS = 500
KEPT = BatchColumns(keep=("id",))


def main(scenario: str, scores: str, actions: str, source: str, output: str) -> None:
    """Run a scenario."""
    cloudpickle.register_pickle_by_value(cluster_faults)
    # The second number is how often Spark tries a task.
    spark = (
        SparkSession.builder.master("local[2,3]" if scenario == "all" else "local[1]")
        .config("spark.driver.memory", "1g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )

    def run(fault: object, name: str, memory: int = 1) -> None:
        def execute(score: cluster_faults.ScorePart, parts: Sequence[PlannedPart]) -> Iterable[PartResult]:
            return execute_parts(spark, partial(fault, score), parts)

        # With so little memory, batches have 64 rows.
        files = SourceOptions.of_files(source)
        ClusterRun(Path(scores), KEPT, files, Path(output) / name, ROWS, memory).run(execute)

    try:
        if scenario == "driver":
            run(partial(cluster_faults.kills_driver, os.getpid(), 3), "resumed")
            return
        totals = score_files(spark, source, f"{output}/scores", scores, KEPT, part_rows=ROWS)
        print(f"rows: {totals.rows} {totals.scored} {totals.parts}")
        columns = BatchColumns(
            keep=("id",), id="id", checkpoint="action.authorise", eligible="may", pmf=True, bad_rows="null"
        )
        totals = score_files(spark, source, f"{output}/actions", actions, columns, part_rows=ROWS)
        print(f"bad rows: {totals.bad_rows}")
        run(partial(cluster_faults.dies_once, Path(output) / "died", 2), "killed")
        (Path(output) / "workers").mkdir()
        run(partial(cluster_faults.names_worker, Path(output) / "workers"), "named")
        score_files(spark, f"{output}/none.parquet", f"{output}/none", scores)
        try:
            score_files(spark, f"{output}/broken", f"{output}/refused", scores, KEPT, part_rows=ROWS)
        except BatchError as error:
            print("refused:", error)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
