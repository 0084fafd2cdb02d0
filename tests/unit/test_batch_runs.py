"""Tests of ``scorer score``: formats of inputs and outputs, continued runs, refusals, bounded memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from batch_tables import COUNT, check_scores, payments
from bundles import FEATURES, rows, score_bundle_of
from servers import environment, scorer_in_process
from trained import Trained

from scorer.batch import BatchRun, BatchScorer
from scorer.batch.inputs import SourceOptions
from scorer.batch.running import BatchTotals
from scorer.batch.scoring import BatchColumns
from scorer.bundle import Bundle, Feature
from scorer.errors import BatchError


@pytest.fixture
def bundle(built_bundles: dict[str, Path]) -> Path:
    return built_bundles["score-1"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    # Row groups whose ends are no ends of parts.
    path = tmp_path / "payments.parquet"
    pq.write_table(payments(), path, row_group_size=130)
    return path


def score(output: Path, bundle: Path, *more: str, code: int = 0) -> str:
    """Run the command, and return what it wrote."""
    found = scorer_in_process("score", "-o", str(output), "--bundle", str(bundle), *more)
    assert found.returncode == code, found
    return found.stdout if code == 0 else found.stderr


def read(output: Path) -> pa.Table:
    return pacsv.read_csv(output) if output.suffix == ".csv" else pq.read_table(output)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- inputs and outputs ---


@pytest.mark.parametrize("output", ["scores", "scores.parquet", "scores.csv"])
@pytest.mark.parametrize("source", ["parquet", "csv", "sql"])
def test_every_input_and_output(tmp_path: Path, bundle: Path, file: Path, source: str, output: str) -> None:
    given = [str(file)]
    if source == "csv":
        given = [str(tmp_path / "payments.csv")]
        pacsv.write_csv(payments(), given[0])
    elif source == "sql":
        given = ["--sql", f"SELECT * FROM '{file}' WHERE label >= 0"]
    said = score(tmp_path / output, bundle, *given, "--keep", "id", "--part-rows", "300")
    check_scores(read(tmp_path / output), bundle)
    assert f"{COUNT:,} rows scored in " in said and " rows/s" in said
    if output == "scores":
        parts = [f"part-0000{at}.parquet" for at in range(4)]
        assert names(tmp_path / output) == ["_lock", "_run.json", *parts]
        assert [pq.read_metadata(tmp_path / output / part).num_rows for part in parts] == [300, 300, 300, 100]
        digest = Bundle.load(bundle).digest.encode()
        assert pq.read_schema(tmp_path / output / parts[0]).metadata[b"scorer.bundle"] == digest
    else:
        assert {output, f".{output}.parts"} & set(names(tmp_path)) == {output}, "the parts are removed"


def test_a_directory_of_files_is_read_in_the_order_of_names(tmp_path: Path, bundle: Path) -> None:
    whole = payments()
    folder = tmp_path / "in"
    for name, start in (("b/2.parquet", 400), ("a.parquet", 0)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(whole.slice(start, 400 if start == 0 else None), folder / name)
    for hidden in ("_old.parquet", ".tmp.parquet", "_delta/x.parquet"):
        (folder / hidden).parent.mkdir(exist_ok=True)
        (folder / hidden).write_bytes(b"no table")
    score(tmp_path / "out", bundle, str(folder), "--keep", "id", "--part-rows", "350", "--threads", "3")
    check_scores(read(tmp_path / "out"), bundle)


def test_a_delta_table_in_a_version(tmp_path: Path, bundle: Path) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the package deltalake is not installed")
    table = tmp_path / "table"
    deltalake.write_deltalake(table, payments())
    deltalake.write_deltalake(table, payments(), mode="append")
    score(tmp_path / "new", bundle, str(table), "--keep", "id")
    assert read(tmp_path / "new").num_rows == 2 * COUNT
    score(tmp_path / "old", bundle, str(table), "--keep", "id", "--delta-version", "0")
    check_scores(read(tmp_path / "old"), bundle)


def test_a_delta_table_needs_its_package(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "table/_delta_log").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    said = score(tmp_path / "out", bundle, str(tmp_path / "table"), code=1)
    assert 'reading a Delta table needs the package "deltalake"; install it' in said


def test_an_input_without_rows_gives_an_empty_table(tmp_path: Path, bundle: Path) -> None:
    pq.write_table(payments().slice(0, 0), tmp_path / "none.parquet")
    for output in ("out", "out.parquet", "out.csv"):
        score(tmp_path / output, bundle, str(tmp_path / "none.parquet"))
        if output != "out.csv":
            assert read(tmp_path / output).schema.names == ["margin", "score", "decision"]


def test_actions_from_the_command_line(tmp_path: Path, built_bundles: dict[str, Path], file: Path) -> None:
    more = ["--id", "id", "--checkpoint", "action.authorise", "--pmf", "--keep", "id"]
    score(tmp_path / "out", built_bundles["action-1"], str(file), *more)
    found = read(tmp_path / "out").slice(17, 1).to_pylist()[0]
    bundle = Bundle.load(built_bundles["action-1"])
    row = rows(COUNT, seed=11)[17]
    chosen = bundle.select(row, checkpoint="action.authorise", decision_id="p17")
    assert (found["action"], found["propensity"]) == (chosen.action, chosen.propensity)
    assert found["pmf"] == chosen.pmf.tolist()
    said = score(tmp_path / "out.csv", built_bundles["action-1"], str(file), *more, code=1)
    assert 'column "pmf" is a list or a struct, which CSV cannot hold' in said


def test_totals_and_unused_columns(tmp_path: Path, bundle: Path, file: Path) -> None:
    found = scorer_in_process(
        "score", str(file), "-o", str(tmp_path / "out"), "--bundle", str(bundle), "--json"
    )
    totals = json.loads(found.stdout)
    assert (totals["rows"], totals["scored"], totals["bad_rows"], totals["parts"]) == (COUNT, COUNT, 0, 1)
    assert totals["unused"] == ["id", "label"] and totals["rows_per_second"] > 0
    found = scorer_in_process(
        "score", str(file), "-o", str(tmp_path / "o2"), "--bundle", str(bundle), "--keep", "id"
    )
    assert found.stderr == "columns that were not used: label; --keep copies them to the output\n"


def test_refused_rows_are_counted(tmp_path: Path, bundle: Path) -> None:
    table = payments()
    amount = table["amount"].to_numpy().copy()
    amount[[5, 900]] = np.inf
    table = table.set_column(table.schema.get_field_index("amount"), "amount", pa.array(amount))
    pq.write_table(table, tmp_path / "in.parquet")
    said = score(tmp_path / "out", bundle, str(tmp_path / "in.parquet"), code=1)
    assert said.startswith('error: row 5: feature "amount": the value is infinite')
    assert names(tmp_path / "out") == ["_lock", "_run.json"], "no part has its name"
    said = score(tmp_path / "o2", bundle, str(tmp_path / "in.parquet"), "--bad-rows", "null", "--keep", "id")
    assert "2 rows have no result" in said
    found = read(tmp_path / "o2")
    assert [row["id"] for row in found.to_pylist() if row["problem"]] == ["p5", "p900"]


# --- continued runs ---


def run(bundle: Path, source: SourceOptions, output: Path, **settings: Any) -> BatchTotals:
    columns = BatchColumns(keep=("id",))
    scorer = BatchScorer.load(bundle, columns)
    return BatchRun(scorer, source, output, **{"part_rows": 150, "threads": 2, **settings}).run()


class _StoppedError(Exception):
    """What ends a run in the middle."""


def interrupt(
    monkeypatch: pytest.MonkeyPatch, bundle: Path, source: SourceOptions, output: Path, *, at: int
) -> None:
    """Run until the row `at`, then fail."""
    original = BatchScorer.score

    def fail(self: BatchScorer, batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        if first_row + batch.num_rows > at:
            raise _StoppedError
        return original(self, batch, first_row)

    with monkeypatch.context() as patch:
        patch.setattr(BatchScorer, "score", fail)
        with pytest.raises(_StoppedError):
            run(bundle, source, output)


def sources(file: Path) -> dict[str, SourceOptions]:
    folder = file.parent / "csv"
    folder.mkdir()
    pacsv.write_csv(payments().slice(0, 333), folder / "1.csv")
    pacsv.write_csv(payments().slice(333), folder / "2.csv")
    pq.write_table(payments().slice(0, 333), folder.parent / "one.parquet", row_group_size=77)
    pq.write_table(payments().slice(333), folder.parent / "two.parquet", row_group_size=77)
    return {
        "parquet": SourceOptions((folder.parent / "one.parquet", folder.parent / "two.parquet")),
        "csv": SourceOptions((folder,)),
        "sql": SourceOptions(sql=f"SELECT * FROM '{file}' ORDER BY label"),
    }


@pytest.mark.parametrize("kind", ["parquet", "csv", "sql"])
@pytest.mark.parametrize("output", ["out", "out.parquet", "out.csv"])
def test_a_run_is_continued_after_its_finished_parts(
    tmp_path: Path, bundle: Path, file: Path, monkeypatch: pytest.MonkeyPatch, kind: str, output: str
) -> None:
    source = sources(file)[kind]
    interrupt(monkeypatch, bundle, source, tmp_path / output, at=500)
    totals = run(bundle, source, tmp_path / output)
    assert totals.rows == COUNT
    assert totals.scored == COUNT - 450, "three parts of 150 rows were finished"
    check_scores(read(tmp_path / output), bundle)


def test_a_killed_process_is_continued(tmp_path: Path, bundle: Path, file: Path) -> None:
    command = [sys.executable, "-m", "scorer.cli", "score", str(file), "-o", str(tmp_path / "out")]
    command += ["--bundle", str(bundle), "--keep", "id", "--part-rows", "5", "--threads", "1"]
    record = tmp_path / "out/_run.json"
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if record.exists() and len(json.loads(record.read_bytes())["parts"]) >= 3:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    finished = json.loads(record.read_bytes())
    assert 3 <= len(finished["parts"]) < COUNT // 5 and not finished["complete"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=100, check=True)
    assert f"{5 * len(finished['parts']):,} rows were finished before" in done.stdout
    check_scores(read(tmp_path / "out"), bundle)
    assert not [name for name in names(tmp_path / "out") if name.endswith(".unfinished")]


def test_a_complete_run_scores_nothing_again(tmp_path: Path, bundle: Path, file: Path) -> None:
    source = SourceOptions((file,))
    run(bundle, source, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert run(bundle, source, tmp_path / "out").scored == 0
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("bundle", r"it belongs to another run \(bundle: "),
        ("input", r"it belongs to another run \(input: files: (bytes|modified_ns): "),
        ("settings", r"it belongs to another run \(part_rows: 150, now 151\)"),
        ("columns", r"it belongs to another run \(columns: bad_rows: \"fail\", now \"null\"\)"),
        ("part", 'part-00001.parquet": the finished part is missing or was changed'),
    ],
)
def test_a_run_that_is_another_one_is_refused(
    tmp_path: Path,
    built_bundles: dict[str, Path],
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    reason: str,
) -> None:
    bundle, source, output = built_bundles["score-1"], SourceOptions((file,)), tmp_path / "out"
    interrupt(monkeypatch, bundle, source, output, at=500)
    settings: dict[str, Any] = {}
    if change == "bundle":
        bundle = built_bundles["score-2"]
    elif change == "input":
        pq.write_table(payments(), file)
    elif change == "settings":
        settings = {"part_rows": 151}
    elif change == "part":
        (output / "part-00001.parquet").write_bytes(b"")
    before = names(output)
    with pytest.raises(BatchError, match=reason):
        if change == "columns":
            columns = BatchColumns(keep=("id",), bad_rows="null")
            BatchRun(BatchScorer.load(bundle, columns), source, output, part_rows=150).run()
        else:
            run(bundle, source, output, **settings)
    assert names(output) == before


def test_a_query_with_other_rows_is_refused(
    tmp_path: Path, bundle: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = SourceOptions(sql=f"SELECT * FROM '{file}'")
    interrupt(monkeypatch, bundle, source, tmp_path / "out", at=500)
    table = payments()
    # One row of the second part has another value in the last place of float32.
    amount = table["amount"].to_numpy().astype(np.float32)
    amount[200] = np.nextafter(amount[200], np.float32(np.inf))
    changed = table.set_column(1, "amount", pa.array(amount))
    pq.write_table(changed, file)
    with pytest.raises(
        BatchError, match=r"the query returns other rows than when part-00001.parquet was written"
    ):
        run(bundle, source, tmp_path / "out")


def test_other_files_and_other_processes_are_left_alone(tmp_path: Path, bundle: Path, file: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("mine")
    assert 'has other files, such as "notes"' in score(tmp_path / "mine", bundle, str(file), code=1)
    (tmp_path / "old.csv").write_text("mine")
    assert "the file exists; remove it or give another" in score(
        tmp_path / "old.csv", bundle, str(file), code=1
    )
    assert (tmp_path / "old.csv").read_text() == "mine"
    from scorer.batch.outputs import BatchOutput

    with BatchOutput(tmp_path / "out").opened({}, at=0):
        assert "another process writes it" in score(tmp_path / "out", bundle, str(file), code=1)


# --- refused inputs ---


def sentence(*arguments: str, code: int = 1) -> Sequence[str]:
    found = scorer_in_process("score", *arguments)
    assert found.returncode == code, found
    return found.stderr


def test_refused_inputs(tmp_path: Path, bundle: Path, file: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("a")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 no table")
    (tmp_path / "bad.csv").write_text("amount,hour,count_24h,distance\n1,2,3,4\n1,x,3,4\n")
    (tmp_path / "short.csv").write_text("amount,hour,distance\n1,2,3\n")
    for given, reason in {
        (): "input: give either paths or a query with --sql",
        (str(file), "--sql", "SELECT 1"): "input: give either paths or a query with --sql",
        (str(tmp_path / "gone"),): "there is no such file or directory; correct the path",
        (str(tmp_path / "empty"),): "the directory has no Parquet or CSV files",
        (str(tmp_path / "text.txt"),): "the ending must be .parquet, .pq or .csv",
        (str(tmp_path / "broken.parquet"),): 'broken.parquet": it cannot be read: ',
        (str(tmp_path / "bad.csv"),): "it cannot be read: In CSV column #1: ",
        (str(tmp_path / "short.csv"),): 'feature "count_24h": "',
        (str(file), str(tmp_path / "bad.csv")): "Parquet and CSV files are mixed",
        (str(file), "--delta-version", "1"): "this is no Delta table; remove --delta-version",
        ("--sql", "SELEC 1"): "--sql: Parser Error",
        ("--sql", "SELECT 1; SELECT 2"): "--sql: exactly one SELECT is needed",
        ("--sql", "CREATE TABLE t (a INT)"): "--sql: exactly one SELECT is needed",
        ("--sql", "SELECT * FROM nothing"): "--sql: Catalog Error",
        ("--sql", "SELECT 1 AS amount"): 'feature "hour": the query has no such column',
    }.items():
        said = sentence(*given, "-o", str(tmp_path / "out"), "--bundle", str(bundle))
        assert reason in said and said.count("\n") == 1, said
    assert not list(tmp_path.glob("out/part*"))


def test_kept_columns_have_one_type(tmp_path: Path, bundle: Path) -> None:
    pq.write_table(payments(), tmp_path / "1.parquet")
    table = payments()
    pq.write_table(table.set_column(0, "id", pa.array(range(COUNT))), tmp_path / "2.parquet")
    both = [str(tmp_path / name) for name in ("1.parquet", "2.parquet")]
    said = sentence(*both, "--keep", "id", "-o", str(tmp_path / "out"), "--bundle", str(bundle))
    assert 'column "id": it has type int64 in ' in said


def test_csv_categories_flags_and_missing_values(tmp_path: Path, score_bundle: Trained) -> None:
    """An empty field is missing; "NA" and "007" are categories; a flag is true, false, 1 or 0."""
    (tmp_path / "in.csv").write_text(
        'amount,hour,country,night\n1.5,3,DE,true\n2,,NA,0\n3,nan,,1\n4,5,"NL",\n'
    )
    score(tmp_path / "out", score_bundle.path, str(tmp_path / "in.csv"))
    nan = np.nan
    encoded = np.float32([[1.5, 3, 1, 1], [2, nan, nan, 0], [3, nan, nan, 1], [4, 5, 0, nan]])
    np.testing.assert_array_equal(read(tmp_path / "out")["score"], score_bundle.bundle.score(encoded).scores)

    names = ["NA", "007", *map(str, range(2, 24))]
    bundle = tmp_path / "bundle"
    score_bundle_of(bundle, [Feature(name="x"), Feature(name="c", type="category", categories=names)])
    (tmp_path / "in.csv").write_text("x,c\n1,NA\n2,007\n3,\n4,23\n")
    score(tmp_path / "o2", bundle, str(tmp_path / "in.csv"))
    encoded = np.float32([[1, 0], [2, 1], [3, nan], [4, 23]])
    np.testing.assert_array_equal(read(tmp_path / "o2")["score"], Bundle.load(bundle).score(encoded).scores)
    (tmp_path / "in.csv").write_text("x,c\n1,NA\n2,07\n")
    said = score(tmp_path / "o3", bundle, str(tmp_path / "in.csv"), code=1)
    assert said.startswith('error: row 1: feature "c": category "07" is not in its dictionary; add it or set')


# --- memory ---

_MEASURED = """
import resource, sys
from scorer.cli import main
sys.argv[0] = "scorer"
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_memory_does_not_grow_with_the_input(tmp_path: Path, bundle: Path) -> None:
    """One row group of 1.5 million rows and 160 MiB of text takes less than its own size."""
    count = 1_500_000
    data = np.random.default_rng(1).random((len(FEATURES), count))
    table = pa.table(
        {
            **{name: data[at] for at, name in enumerate(FEATURES)},
            "note": pa.array([f"{at:0100d}" for at in range(1000)]).take(pa.array(np.arange(count) % 1000)),
        }
    )
    pq.write_table(
        table, tmp_path / "big.parquet", row_group_size=count, use_dictionary=False, compression="none"
    )
    size = table.nbytes >> 20

    def peak(source: str) -> int:
        command = [sys.executable, "-c", _MEASURED, "score", source, "-o", f"{source}.out", "--threads", "1"]
        command += ["--bundle", str(bundle), "--keep", "note", "--memory", "16"]
        done = subprocess.run(
            command, env=environment(), capture_output=True, text=True, timeout=300, check=True
        )
        return int(done.stdout.split()[-1])

    small = tmp_path / "small.parquet"
    pq.write_table(table.slice(0, 1000), small)
    grown = peak(str(tmp_path / "big.parquet")) - peak(str(small))
    assert grown < size / 2, f"{grown} MiB more for an input of {size} MiB"
