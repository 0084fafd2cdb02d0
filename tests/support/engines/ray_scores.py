"""Scores a Parquet file in a local Ray: ray_scores.py SCORES ACTIONS INPUT OUTPUT.

SCORES and ACTIONS are directories of bundles. The results are in `scores` and `actions` of OUTPUT.
"""

from __future__ import annotations

import sys

import ray

from scorer.batch.ray import score_dataset
from scorer.batch.scoring import BatchColumns


def main(scores: str, actions: str, source: str, output: str) -> None:
    """Score the file with both bundles."""
    # With one CPU, reading and scoring would wait for each other.
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=150 << 20, _node_ip_address="127.0.0.1")
    try:
        rows = ray.data.read_parquet(source)
        score_dataset(rows, scores, BatchColumns(keep=("id",)), batch_size=300).write_parquet(
            f"{output}/scores"
        )
        columns = BatchColumns(
            keep=("id",), id="id", checkpoint="action.authorise", eligible="may", pmf=True, bad_rows="null"
        )
        score_dataset(rows, actions, columns, batch_size=300).write_parquet(f"{output}/actions")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
