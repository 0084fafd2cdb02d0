"""Tests that Spark and Ray give the bits of the library: local clusters, in environments of their own."""

from __future__ import annotations

import ast
from pathlib import Path

import batch_engines
import components
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundles import FEATURES, rows

from scorer.batch import BatchColumns, BatchScorer

COUNT = 4000
ENGINES = Path(__file__).parents[1] / "support/engines"
ACTIONS = BatchColumns(
    keep=("id",), id="id", checkpoint="action.authorise", eligible="may", pmf=True, bad_rows="null"
)


@pytest.fixture
def table(tmp_path: Path) -> pa.Table:
    """Payments in `payments.parquet`: with missing values, a row that is refused, and eligible actions."""
    data = rows(COUNT, seed=31).astype(np.float64)
    data[::9, 1] = np.nan
    columns = {name: pa.array(data[:, at], from_pandas=True) for at, name in enumerate(FEATURES)}
    may = [
        ["3ds=off|exemption=tra", "3ds=frictionless|exemption=low"] if at % 2 else None for at in range(COUNT)
    ]
    may[123] = []
    made = pa.table(
        {**columns, "id": [f"order-{at}" for at in range(COUNT)], "may": pa.array(may, pa.list_(pa.string()))}
    )
    pq.write_table(made, tmp_path / "payments.parquet")
    return made


def check(directory: Path, table: pa.Table, bundle: Path, columns: BatchColumns) -> None:
    """Compare the files of an engine with the library, row by row, in the order of ids."""
    found = pq.read_table(directory).sort_by("id")
    batch = table.combine_chunks().to_batches()[0]
    expected = pa.Table.from_batches([BatchScorer.load(bundle, columns).score(batch)]).sort_by("id")
    assert found.num_rows == COUNT
    assert found.schema.names == expected.schema.names
    assert found.to_pylist() == expected.to_pylist()


@pytest.mark.timeout(600)
def test_spark_scores_with_the_same_bits(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table
) -> None:
    components.require("PySpark")
    arguments = [str(built_bundles["score-1"]), str(built_bundles["action-1"])]
    arguments += [str(tmp_path / "payments.parquet"), str(tmp_path / "out")]
    said = batch_engines.run_program("spark", ENGINES / "spark_scores.py", arguments, tmp_path)
    check(tmp_path / "out/scores", table, built_bundles["score-1"], BatchColumns(keep=("id",)))
    check(tmp_path / "out/actions", table, built_bundles["action-1"], ACTIONS)
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    assert lines["refused"].startswith('feature "hour": the data frame has no such column; add it')
    # Every worker has loaded each of the two bundles at most once, and used them for several partitions.
    loads = ast.literal_eval(lines["loads"])
    assert all(count <= 2 for _, count, _ in loads)
    assert sum(uses for _, _, uses in loads) > sum(count for _, count, _ in loads)


@pytest.mark.timeout(600)
def test_ray_scores_with_the_same_bits(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table
) -> None:
    """CI does not install Ray; `make test-ray` does, and runs this test."""
    if not batch_engines.python_of("ray").exists():
        pytest.skip("Ray is not installed; `make test-ray` installs it and runs this test")
    components.require("unshare and setpriv as root")
    arguments = [str(built_bundles["score-1"]), str(built_bundles["action-1"])]
    arguments += [str(tmp_path / "payments.parquet"), str(tmp_path / "out")]
    # Ray listens on every interface, so it gets a network of its own, which ends with its processes.
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    alone += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    batch_engines.run_program("ray", ENGINES / "ray_scores.py", arguments, tmp_path, prefix=alone)
    check(tmp_path / "out/scores", table, built_bundles["score-1"], BatchColumns(keep=("id",)))
    check(tmp_path / "out/actions", table, built_bundles["action-1"], ACTIONS)
