"""Batch scoring on one core: rows per second of scorer and of XGBoost's own ways, local, in Spark and in Ray.

`make bench-batch` runs every part. A part is a process that may use one core only, with all of its children
(Spark's JVM, Python workers, Ray's daemons). A whole job reads the same Parquet files with 40 float32
features and an id, and writes Parquet files with the id and the score, one for each file. Before the
rounds, each contestant runs once untimed; in a round, each runs once, in an order that rotates. The figures
are medians of the rounds, with their range. The scores of all contestants are compared with XGBoost's.

Ray listens on all interfaces, so its part runs in a network namespace, which needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "loadtests/results"
BATCH: Final = 16_384
SPARK_BATCH: Final = 10_000
"""Spark's own default."""
FILES: Final = 2
"""Files of the table, and partitions of every job."""
NAMES: Final = [f"f{at}" for at in range(40)]
OURS: Final = {"scorer in tasks": "tasks", "scorer on a data frame": "data frame", "scorer": ""}
LOCAL: Final = "scorer, file to file"
TIMES: Final = 5.0
SHARE: Final = 0.8

Rates = dict[str, list[float]]
Contestant = Callable[[str], Path | None]
"""A function that scores the table "rows" or "few", and returns the directory that it has written, if any."""


def main() -> int:
    """Run the parts and print the table of their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table")
    parser.add_argument("--rounds", type=int, default=5, help="timed runs of each contestant")
    parser.add_argument(
        "--parts", nargs="+", choices=list(PARTS), default=list(PARTS), help="what is measured"
    )
    parser.add_argument("--inside", metavar="DIR", type=Path, help="internal: be the process of one part")
    options = parser.parse_args()
    if options.inside is not None:
        _be_part(options.parts[0], options.inside, options.rounds)
        return 0
    with tempfile.TemporaryDirectory(prefix="bench-batch-") as scratch:
        directory = Path(scratch)
        _prepare(directory, options.rows)
        found = {part: _run_part(part, directory, options.rounds) for part in options.parts}
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {_processor()}, Python {platform.python_version()}",
        "load_average": os.getloadavg(),
        "rows": options.rows,
        "rounds": options.rounds,
        "rates": found,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"batch-{datetime.now(UTC):%Y%m%dT%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1))
    print(table(found))
    print(f"\n{path.relative_to(ROOT)}")
    return 0


def table(found: Mapping[str, Rates]) -> str:
    """Return the figures as a table in Markdown.

    Args:
        found: Rates in rows per second by part and contestant. The names of ours start with "scorer".
    """
    lines = ["| where | what | rows/s per core | range | scorer is |", "|---|---|--:|--:|--:|"]
    for part, rates in found.items():
        for name, values in rates.items():
            who, _, kind = name.rpartition(", ")
            ours = {label: rates.get(f"{one}, {kind}") for one, label in OURS.items()}
            ratios = [
                f"{_verdict(median(own) / median(values))} {label}".rstrip()
                for label, own in ours.items()
                if own and who and who not in OURS
            ]
            span = f"{min(values):,.0f} to {max(values):,.0f}"
            lines.append(f"| {part} | {name} | {median(values):,.0f} | {span} | {'; '.join(ratios)} |")
    local = found.get("local", {}).get(LOCAL)
    for part in ("spark", "ray"):
        for who, label in OURS.items():
            own = found.get(part, {}).get(f"{who}, whole job")
            if local and own:
                share = median(own) / median(local)
                kept = "met" if share >= SHARE else "missed"
                target = f"target {SHARE:.0%}: {kept}"
                lines.append(f"\n{part}, {label}: {share:.0%} of the local rate file to file ({target})")
    return "\n".join(lines)


def _verdict(ratio: float) -> str:
    return f"{ratio:.1f}× ({'met' if ratio >= TIMES else 'missed'})"


# --- the table and the processes ---


def _prepare(directory: Path, count: int) -> None:
    """Write the table, a small one for warming up, and the paths of the model and the bundle."""
    from loadtests.engine.models import MISSING
    from loadtests.peers.subject import subject

    model = subject()
    random = np.random.default_rng(3)
    for name, rows in (("rows", count), ("few", max(count // 20, 1000))):
        columns = {}
        for feature in NAMES:
            values = random.standard_normal(rows, np.float32)
            values[random.random(rows) < MISSING] = np.nan
            columns[feature] = pa.array(values)
        whole = pa.table({**columns, "id": pa.array([f"order-{at}" for at in range(rows)])})
        (directory / name).mkdir()
        for at in range(FILES):
            part = whole.slice(at * rows // FILES, (at + 1) * rows // FILES - at * rows // FILES)
            pq.write_table(part, directory / name / f"rows-{at}.parquet", row_group_size=131_072)
    about = {"model": str(model.model), "bundle": str(model.bundle)}
    (directory / "about.json").write_text(json.dumps(about))


def _run_part(part: str, directory: Path, rounds: int) -> Rates:
    python = sys.executable if part == "local" else ROOT / f".build/{part}/bin/python"
    if not Path(python).exists():
        raise SystemExit(f"{part}: it is not installed; run `make {part}`")
    # Workers of Spark and Ray import the functions by the name of this module, so it is no program here.
    command = [
        str(python),
        "-c",
        "from loadtests.batch import main; main()",
        "--parts",
        part,
        "--rounds",
        str(rounds),
    ]
    command += ["--inside", str(directory)]
    if part == "ray":
        alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command = [*alone, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *command]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK"))},
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), str(ROOT)]),
        "PYSPARK_PYTHON": str(python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(directory),
        "TMPDIR": str(directory),
        # Libraries take their number of threads from here, not from the cores that they may use.
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    found: Rates = json.loads((directory / f"{part}.json").read_text())
    return found


def _be_part(part: str, directory: Path, rounds: int) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    PARTS[part](directory, rounds)


def _measured(contestants: Mapping[str, Contestant], directory: Path, rounds: int) -> Rates:
    """Return the rates of contestants in rows per second, after a comparison of their scores."""
    model, _, rows = _about(directory)
    rates: Rates = {name: [] for name in contestants}
    few = pq.read_table(directory / "few")
    predicted = _booster(model).inplace_predict(_stacked(few))
    expected = dict(zip(few["id"].to_pylist(), predicted, strict=True))
    for run in contestants.values():
        if (output := run("few")) is not None:
            _compare(output, expected)
            shutil.rmtree(output)
    names = list(contestants)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            began = time.perf_counter()
            output = contestants[name]("rows")
            rates[name].append(rows / (time.perf_counter() - began))
            sys.stderr.write(f"   {name}: {rates[name][-1]:,.0f} rows/s\n")
            if output is not None:
                shutil.rmtree(output)
    return rates


def _about(directory: Path) -> tuple[str, str, int]:
    about = json.loads((directory / "about.json").read_text())
    return (
        about["model"],
        about["bundle"],
        sum(pq.read_metadata(file).num_rows for file in _files(directory, "rows")),
    )


def _files(directory: Path, name: str) -> list[Path]:
    """Return the files of the table "rows" or "few"."""
    return sorted((directory / name).iterdir())


@cache
def _booster(model: str) -> Any:
    """Return the model, which each process loads once."""
    import xgboost

    return xgboost.Booster({"nthread": 1}, model_file=model)


def _stacked(batch: pa.RecordBatch | pa.Table) -> Any:
    """Return the features as XGBoost reads them, float32 `[n, features]`."""
    return np.stack([batch.column(name).to_numpy() for name in NAMES], axis=1)


def _compare(output: Path, expected: Mapping[str, float]) -> None:
    """Check that the scores of an output, in any order, are XGBoost's."""
    found = pq.read_table(output)
    if "probability" in found.column_names:
        # A vector of Spark with the probabilities of both classes.
        scores = [row["values"][1] for row in found["probability"].to_pylist()]
    else:
        scores = found["score"].to_pylist()
    ids = found["id"].to_pylist()
    np.testing.assert_allclose(scores, [expected[name] for name in ids], rtol=1e-6)
    assert sorted(ids) == sorted(expected)


def _predict_file(model: str, source: Path, output: Path) -> None:
    """Read a file, score it with XGBoost and write the ids and scores, as our tasks do."""
    schema = pa.schema({"id": pa.string(), "score": pa.float32()})
    opened = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
    with opened, pq.ParquetWriter(output, schema, compression="zstd") as writer:
        for batch in opened.iter_batches(BATCH, use_threads=False):
            scores = pa.array(_booster(model).inplace_predict(_stacked(batch)))
            writer.write_batch(pa.record_batch([batch.column("id"), scores], schema=schema))


def _outputs(directory: Path) -> Iterator[Path]:
    """Yield directories that do not exist."""
    return (directory / f"out-{number}" for number in range(1 << 20))


def _part_rows(directory: Path, name: str) -> int:
    """Return the rows of a part of our jobs, so that each file gives one part."""
    return max(pq.read_metadata(file).num_rows for file in _files(directory, name))


def _nothing(_done: object) -> None:
    """Return no output of a contestant that writes no files."""


# --- the parts ---


def _local(directory: Path, rounds: int) -> None:
    from scorer.batch import BatchColumns, BatchRun, BatchScorer
    from scorer.batch.inputs import SourceOptions

    model, bundle, _ = _about(directory)
    booster = _booster(model)
    scorer = BatchScorer.load(bundle, BatchColumns(keep=("id",)))
    outputs = _outputs(directory)
    ready = {name: _stacked(pq.read_table(directory / name)) for name in ("rows", "few")}
    blocks = {
        name: [np.ascontiguousarray(rows[at : at + BATCH].T) for at in range(0, len(rows), BATCH)]
        for name, rows in ready.items()
    }

    def engine(name: str) -> None:
        for block in blocks[name]:
            scorer.bundle.score_columns(block)

    def ours(name: str) -> Path:
        source = SourceOptions((directory / name,))
        output = next(outputs)
        BatchRun(scorer, source, output, part_rows=_part_rows(directory, name), threads=1).run()
        return output

    def theirs(name: str) -> Path:
        output = next(outputs)
        output.mkdir()
        for file in _files(directory, name):
            _predict_file(model, file, output / file.name)
        return output

    contestants: dict[str, Contestant] = {
        "scorer, ready arrays": engine,
        "XGBoost inplace_predict, ready arrays": lambda name: _nothing(booster.inplace_predict(ready[name])),
        LOCAL: ours,
        "XGBoost inplace_predict, file to file": theirs,
    }
    _write(directory, "local", _measured(contestants, directory, rounds))


def _spark(directory: Path, rounds: int) -> None:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.functions import pandas_udf
    from xgboost import XGBClassifier
    from xgboost.spark import SparkXGBClassifier, SparkXGBClassifierModel

    from scorer.batch import BatchColumns
    from scorer.batch.spark import score_files, score_frame

    model, bundle, _ = _about(directory)
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(SPARK_BATCH))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    classifier = XGBClassifier(n_jobs=1)
    classifier.load_model(model)
    estimator = SparkXGBClassifier(features_col=NAMES)
    transformer = estimator._copyValues(SparkXGBClassifierModel(classifier))
    outputs, columns = _outputs(directory), BatchColumns(keep=("id",))

    # The annotations select the kind of pandas_udf; Spark reads them when the function is wrapped.
    def predict(batches: Any) -> Any:
        import pandas as pd

        booster = _booster(model)
        for columns in batches:
            rows = np.stack([column.to_numpy() for column in columns], axis=1)
            yield pd.Series(booster.inplace_predict(rows))

    import pandas as pd

    predict.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    udf = pandas_udf(predict, "float")

    def read(name: str) -> DataFrame:
        return spark.read.parquet(str(directory / name))

    def write(frame: DataFrame) -> Path:
        output = next(outputs)
        frame.write.parquet(str(output))
        return output

    def ours(name: str) -> Path:
        output = next(outputs)
        part_rows = _part_rows(directory, name)
        score_files(spark, directory / name, output, bundle, columns, part_rows=part_rows)
        return output

    def theirs(name: str) -> Path:
        output = next(outputs)
        output.mkdir()
        files = _files(directory, name)
        spark.sparkContext.parallelize(files, len(files)).foreach(partial(_predict_into, model, output))
        return output

    contestants: dict[str, Contestant] = {
        "scorer in tasks, whole job": ours,
        "scorer on a data frame, whole job": lambda name: write(score_frame(read(name), bundle, columns)),
        "xgboost.spark transform, whole job": lambda name: write(
            transformer.transform(read(name)).select("id", "probability")
        ),
        "XGBoost inplace_predict in a pandas_udf, whole job": lambda name: write(
            read(name).select("id", udf(*NAMES).alias("score"))
        ),
        "XGBoost inplace_predict in tasks, whole job": theirs,
        "columns to Python and back unchanged": lambda name: _nothing(
            read(name)
            .mapInArrow(_few_columns, "id string, f0 float")
            .write.format("noop")
            .mode("overwrite")
            .save()
        ),
    }
    rates = _measured(contestants, directory, rounds)
    # The rate of the scorer alone, measured in Spark's worker.
    seconds = partial(_timed, bundle)
    rates["scorer, in the worker"] = []
    for _ in range(rounds):
        found = read("rows").mapInArrow(seconds, "rows long, seconds double").collect()
        rates["scorer, in the worker"].append(
            sum(one.rows for one in found) / sum(one.seconds for one in found)
        )
    _write(directory, "spark", rates)
    spark.stop()


def _few_columns(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["id", "f0"])


def _timed(bundle: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from scorer.batch import BatchColumns, BatchScorer

    scorer = BatchScorer.load(bundle, BatchColumns(keep=("id",)))
    rows, seconds = 0, 0.0
    for batch in batches:
        began = time.perf_counter()
        scorer.score(batch)
        seconds += time.perf_counter() - began
        rows += batch.num_rows
    yield pa.record_batch({"rows": [rows], "seconds": [seconds]})


def _ray(directory: Path, rounds: int) -> None:
    import ray

    from scorer.batch import BatchColumns
    from scorer.batch.ray import score_dataset, score_files

    model, bundle, _ = _about(directory)
    # Two logical processors share the one core: with one, reading and scoring wait for each other.
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=500 << 20, _node_ip_address="127.0.0.1")
    ray.data.DataContext.get_current().enable_progress_bars = False
    outputs, columns = _outputs(directory), BatchColumns(keep=("id",))
    predict = ray.remote(num_cpus=1)(_predict_into)

    def read(name: str) -> Any:
        return ray.data.read_parquet(str(directory / name))

    def write(rows: Any) -> Path:
        output = next(outputs)
        rows.write_parquet(str(output))
        return output

    def ours(name: str) -> Path:
        output = next(outputs)
        score_files(directory / name, output, bundle, columns, part_rows=_part_rows(directory, name))
        return output

    def theirs(name: str) -> Path:
        output = next(outputs)
        output.mkdir()
        ray.get([predict.remote(model, output, file) for file in _files(directory, name)])
        return output

    contestants: dict[str, Contestant] = {
        "scorer in tasks, whole job": ours,
        "scorer on a data frame, whole job": lambda name: write(score_dataset(read(name), bundle, columns)),
        "XGBoost inplace_predict in map_batches, whole job": lambda name: write(
            read(name).map_batches(
                partial(_predicted, model), batch_format="pyarrow", batch_size=BATCH, zero_copy_batch=True
            )
        ),
        "XGBoost inplace_predict in tasks, whole job": theirs,
    }
    _write(directory, "ray", _measured(contestants, directory, rounds))
    ray.shutdown()


def _predict_into(model: str, output: Path, file: Path) -> None:
    _predict_file(model, file, output / file.name)


def _predicted(model: str, rows: pa.Table) -> pa.Table:
    return pa.table({"id": rows["id"], "score": _booster(model).inplace_predict(_stacked(rows))})


PARTS: Final[dict[str, Callable[[Path, int], None]]] = {"local": _local, "spark": _spark, "ray": _ray}


def _write(directory: Path, part: str, rates: Rates) -> None:
    (directory / f"{part}.json").write_text(json.dumps(rates))


def _commit() -> str:
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown"
    )


if __name__ == "__main__":
    sys.exit(main())
