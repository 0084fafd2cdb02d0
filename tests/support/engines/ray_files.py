"""Scores files in a local Ray: ray_files.py SCENARIO SCORES ACTIONS INPUT OUTPUT.

SCORES and ACTIONS are directories of bundles. The scenario "all" writes `scores` and `actions`; `killed`,
during which a worker is killed; and `none`, from a file without rows. It prints how a broken file is
refused. The scenario "driver" ends the driver after two parts, and with it all of its processes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import cluster_faults
import ray

from scorer.batch.cluster import ClusterRun, PartResult
from scorer.batch.inputs import SourceOptions
from scorer.batch.plans import PlannedPart
from scorer.batch.ray import execute_parts, score_files
from scorer.batch.scoring import BatchColumns
from scorer.errors import BatchError

ROWS = 500
KEPT = BatchColumns(keep=("id",))


def main(scenario: str, scores: str, actions: str, source: str, output: str) -> None:
    """Run a scenario."""
    ray.cloudpickle.register_pickle_by_value(cluster_faults)
    ray.init(
        num_cpus=2 if scenario == "all" else 1,
        include_dashboard=False,
        object_store_memory=150 << 20,
        _node_ip_address="127.0.0.1",
    )

    def run(fault: object, name: str, last: int | None = None) -> None:
        def execute(score: cluster_faults.ScorePart, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
            for done, result in enumerate(execute_parts({}, partial(fault, score), parts), 1):
                yield result
                if done == last:
                    os._exit(0)  # as a SIGKILL does: nothing is cleaned up

        # With so little memory, batches have 64 rows.
        files = SourceOptions.of_files(source)
        ClusterRun(Path(scores), KEPT, files, Path(output) / name, ROWS, 1).run(execute)

    (Path(output) / "workers").mkdir(exist_ok=True)
    named = partial(cluster_faults.names_worker, Path(output) / "workers")
    try:
        if scenario == "driver":
            run(named, "resumed", last=2)
            return
        totals = score_files(source, f"{output}/scores", scores, KEPT, part_rows=ROWS)
        print(f"rows: {totals.rows} {totals.scored} {totals.parts}")
        columns = BatchColumns(
            keep=("id",), id="id", checkpoint="action.authorise", eligible="may", pmf=True, bad_rows="null"
        )
        totals = score_files(source, f"{output}/actions", actions, columns, part_rows=ROWS)
        print(f"bad rows: {totals.bad_rows}")
        run(partial(cluster_faults.dies_once, Path(output) / "died", 2), "killed")
        run(named, "named")
        score_files(f"{output}/none.parquet", f"{output}/none", scores)
        try:
            score_files(f"{output}/broken", f"{output}/refused", scores, KEPT, part_rows=ROWS)
        except BatchError as error:
            print("refused:", error)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
