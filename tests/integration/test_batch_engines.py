"""Tests that Spark and Ray give the bits of the library: local clusters, in environments of their own.

Data frames pass their columns through the engine. Of files, the engine passes only the names, and its tasks
read and write them; there, workers and drivers are killed.
"""

from __future__ import annotations

import ast
import json
import shutil
import signal
from datetime import UTC, datetime
from pathlib import Path

import batch_engines
import components
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bundles import FEATURES, rows, tiny_score_bundle

from scorer.batch import BatchColumns, BatchScorer
from scorer.bundle.rules import BundleRules

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


@pytest.fixture
def files(tmp_path: Path, table: pa.Table) -> Path:
    """The payments in three files. `out` has a file without rows, and files of which one is broken."""
    folder, broken = tmp_path / "in", tmp_path / "out/broken"
    folder.mkdir()
    broken.mkdir(parents=True)
    for number, (first, count) in enumerate(((0, 1700), (1700, 900), (2600, 1400))):
        pq.write_table(table.slice(first, count), folder / f"{number}.parquet", row_group_size=250)
    pq.write_table(table.slice(0, 0), tmp_path / "out/none.parquet")
    for file in folder.iterdir():
        shutil.copy(file, broken)
    spoiled = broken / "1.parquet"
    start = pq.read_metadata(spoiled).row_group(1).column(0).dictionary_page_offset
    content = bytearray(spoiled.read_bytes())
    content[start : start + 40] = b"\xff" * 40
    spoiled.write_bytes(content)
    return folder


PARTS = [500, 500, 500, 200, 500, 400, 500, 500, 400]
"""Rows of the parts of `files`, which are at most 500 and consist of row groups of 250."""


def check_files(output: Path, said: str, table: pa.Table, bundles: dict[str, Path]) -> None:
    """Check what the programs for files have written."""
    lines = dict(line.split(": ", 1) for line in said.splitlines() if ": " in line)
    score, keep = bundles["score-1"], BatchColumns(keep=("id",))
    assert lines["rows"] == f"{COUNT} {COUNT} {len(PARTS)}"
    check(output / "scores", table, score, keep)
    check(output / "actions", table, bundles["action-1"], ACTIONS)
    assert lines["bad rows"] == str(
        pq.read_table(output / "actions")["problem"].is_valid().to_pylist().count(True)
    )
    assert (output / "died").exists(), "a worker was killed"
    for name in ("scores", "actions", "killed", "named"):
        # No row is lost, doubled or in another place, and no file of a dead attempt is left.
        check_parts(output / name, table)
        if name in {"killed", "named"}:
            check(output / name, table, score, keep)
    assert pq.read_table(output / "none").num_rows == 0
    assert lines["refused"].startswith(f'input "{output / "broken/1.parquet"}": it cannot be read: ')
    loads = [tuple(map(int, path.read_text().split())) for path in (output / "workers").iterdir()]
    # Every worker has loaded each of the two bundles at most once.
    assert len(loads) >= len(PARTS) and all(count <= 2 for count, _ in loads)


def check_parts(output: Path, table: pa.Table) -> None:
    """Check that an output has the parts of `files`, in the order of the table, and no other files."""
    names = sorted(path.name for path in output.iterdir() if path.name not in {"_lock", "_run.json"})
    assert names == [f"part-{at:05d}.parquet" for at in range(len(PARTS))]
    tables = [pq.read_table(output / name) for name in names]
    assert [part.num_rows for part in tables] == PARTS
    assert pa.concat_tables(tables)["id"].to_pylist() == table["id"].to_pylist()


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
def test_tasks_of_spark_score_files(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table, files: Path
) -> None:
    components.require("PySpark")
    bundles = [str(built_bundles[name]) for name in ("score-1", "action-1")]
    arguments = ["all", *bundles, str(files), str(tmp_path / "out")]
    said = batch_engines.run_program("spark", ENGINES / "spark_files.py", arguments, tmp_path)
    check_files(tmp_path / "out", said, table, built_bundles)


@pytest.mark.timeout(600)
def test_a_killed_driver_of_spark_is_continued(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table, files: Path
) -> None:
    components.require("PySpark")
    bundle, output = built_bundles["score-1"], tmp_path / "out/resumed"
    arguments = ["driver", str(bundle), str(built_bundles["action-1"]), str(files), str(tmp_path / "out")]
    program = ENGINES / "spark_files.py"
    batch_engines.run_program("spark", program, arguments, tmp_path, code=-signal.SIGKILL)
    assert not list(output.glob("part-*")), "only the driver names parts"
    staged = len(list(output.glob("_staged-*")))
    assert staged >= 3
    # The command continues the run, with Spark's own configuration.
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\nspark.driver.memory 1g\nspark.driver.host 127.0.0.1\n"
        "spark.driver.bindAddress 127.0.0.1\n"
    )
    command = [
        "score",
        str(files),
        "-o",
        str(output),
        "--bundle",
        str(bundle),
        "--keep",
        "id",
        "--part-rows",
        "500",
    ]
    command += ["--engine", "spark", "--cluster", "local[2]", "--json"]
    said = batch_engines.run_program(
        "spark",
        ENGINES / "scorer_command.py",
        command,
        tmp_path,
        variables={"SPARK_CONF_DIR": str(tmp_path)},
    )
    totals = json.loads(said)
    # A worker may have completed another part after the driver was killed.
    assert (totals["rows"], totals["parts"]) == (COUNT, len(PARTS))
    assert 0 < totals["scored"] <= COUNT - sum(PARTS[:staged])
    check_parts(output, table)
    check(output, table, bundle, BatchColumns(keep=("id",)))


RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "half"
when = "amount > 50.0"
decision = "decline"
queue = "level_2"
rollout = 50.0

[[rules]]
id = "ended"
when = "hour < 12.0"
floor = 0.9
until = 2026-11-20
"""


@pytest.mark.timeout(600)
def test_tasks_of_spark_apply_the_rules_of_a_bundle(tmp_path: Path, table: pa.Table, files: Path) -> None:
    components.require("PySpark")
    bundle, output = tmp_path / "ruled", tmp_path / "out/ruled"
    tiny_score_bundle(bundle, rules=BundleRules(RULES))
    at = datetime(2026, 11, 19, tzinfo=UTC)
    (tmp_path / "spark-defaults.conf").write_text(
        "spark.ui.enabled false\nspark.driver.memory 1g\nspark.driver.host 127.0.0.1\n"
        "spark.driver.bindAddress 127.0.0.1\n"
    )
    command = ["score", str(files), "-o", str(output), "--bundle", str(bundle), "--keep", "id", "--id", "id"]
    command += ["--at", at.isoformat(), "--engine", "spark", "--cluster", "local[2]", "--json"]
    batch_engines.run_program(
        "spark",
        ENGINES / "scorer_command.py",
        command,
        tmp_path,
        variables={"SPARK_CONF_DIR": str(tmp_path)},
    )
    check(output, table, bundle, BatchColumns(keep=("id",), id="id", at=int(at.timestamp())))
    fired = {rule for row in pq.read_table(output)["rules"].to_pylist() for rule in row}
    assert fired == {"half", "ended"}


def run_ray(program: str, arguments: list[str], home: Path) -> str:
    """Run a program with Ray, which `make test-ray` installs, in a network of its own."""
    if not batch_engines.python_of("ray").exists():
        pytest.skip("Ray is not installed; `make test-ray` installs it and runs this test")
    components.require("unshare and setpriv as root")
    # Ray listens on every interface. Its processes end with the namespace.
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    alone += ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    return batch_engines.run_program("ray", ENGINES / program, arguments, home, prefix=alone)


@pytest.mark.timeout(600)
def test_ray_scores_with_the_same_bits(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table
) -> None:
    """CI does not install Ray; `make test-ray` does, and runs this test."""
    arguments = [str(built_bundles["score-1"]), str(built_bundles["action-1"])]
    arguments += [str(tmp_path / "payments.parquet"), str(tmp_path / "out")]
    run_ray("ray_scores.py", arguments, tmp_path)
    check(tmp_path / "out/scores", table, built_bundles["score-1"], BatchColumns(keep=("id",)))
    check(tmp_path / "out/actions", table, built_bundles["action-1"], ACTIONS)


@pytest.mark.timeout(600)
def test_tasks_of_ray_score_files(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table, files: Path
) -> None:
    bundles = [str(built_bundles[name]) for name in ("score-1", "action-1")]
    said = run_ray("ray_files.py", ["all", *bundles, str(files), str(tmp_path / "out")], tmp_path)
    check_files(tmp_path / "out", said, table, built_bundles)


@pytest.mark.timeout(600)
def test_an_ended_driver_of_ray_is_continued(
    tmp_path: Path, built_bundles: dict[str, Path], table: pa.Table, files: Path
) -> None:
    bundle, output = built_bundles["score-1"], tmp_path / "out/resumed"
    arguments = ["driver", str(bundle), str(built_bundles["action-1"]), str(files), str(tmp_path / "out")]
    run_ray("ray_files.py", arguments, tmp_path)
    assert not list(output.glob("part-*")), "only the driver names parts"
    staged = list(output.glob("_staged-*"))
    assert 2 <= len(staged) < len(PARTS)
    finished = sum(pq.read_metadata(path).num_rows for path in staged)
    command = [
        "score",
        str(files),
        "-o",
        str(output),
        "--bundle",
        str(bundle),
        "--keep",
        "id",
        "--part-rows",
        "500",
    ]
    totals = json.loads(run_ray("scorer_command.py", [*command, "--engine", "ray", "--json"], tmp_path))
    assert (totals["rows"], totals["parts"], totals["scored"]) == (COUNT, len(PARTS), COUNT - finished)
    check_parts(output, table)
    check(output, table, bundle, BatchColumns(keep=("id",)))
