"""Tests of runs on a cluster, with simulated engines: plans, lost attempts, continued runs, refusals."""

from __future__ import annotations

import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from batch_tables import COUNT, check_scores, payments
from servers import scorer_in_process

from scorer.batch import BatchColumns, BatchRun, BatchScorer
from scorer.batch.cluster import ClusterRun, PartResult
from scorer.batch.inputs import SourceOptions
from scorer.batch.plans import PlannedPart, plan_parts
from scorer.batch.portions import RowGroups
from scorer.batch.running import BatchTotals
from scorer.errors import BatchError

Score = Callable[[PlannedPart], PartResult]


@pytest.fixture
def bundle(built_bundles: dict[str, Path]) -> Path:
    return built_bundles["score-1"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The payments in two files whose row groups have 100 rows."""
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(payments().slice(0, 550), folder / "1.parquet", row_group_size=100)
    pq.write_table(payments().slice(550), folder / "2.parquet", row_group_size=100)
    return folder


class Engine:
    """Calls the function for each part with what a worker would unpickle, and counts the calls.

    Args:
        attempts: How often each part is scored. All results are returned.
        most: Number of parts after which the engine fails; None for no failure.
    """

    def __init__(self, *, attempts: int = 1, most: int | None = None) -> None:
        self.attempts = attempts
        self.most = most
        self.calls: Counter[int] = Counter()

    def __call__(self, score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        for done, part in enumerate(parts):
            if done == self.most:
                raise _StoppedError
            for _ in range(self.attempts):
                function, given = pickle.loads(pickle.dumps((score, part)))
                self.calls[part.number] += 1
                yield function(given)


class _StoppedError(Exception):
    """What ends a run in the middle."""


def run(bundle: Path, source: Path, output: Path, engine: Any = None, **settings: Any) -> BatchTotals:
    columns = settings.pop("columns", BatchColumns(keep=("id",)))
    made = ClusterRun(
        bundle, columns, SourceOptions.of_files(source), output, **{"part_rows": 200, **settings}
    )
    return made.run(engine or Engine())


def files(output: Path) -> list[str]:
    return sorted(path.name for path in output.iterdir() if path.name not in {"_lock", "_run.json"})


def parts(output: Path) -> list[int]:
    """Return the number of rows of each part."""
    assert files(output) == [f"part-{at:05d}.parquet" for at in range(len(files(output)))]
    return [pq.read_metadata(output / name).num_rows for name in files(output)]


# --- plans ---


def groups(*counts: int) -> RowGroups:
    return RowGroups(columns=("a",), groups=counts)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], [[]]),
        ([groups()], [[(0, 0, ())]]),
        ([groups(5)], [[(0, 0, (5,))]]),
        ([groups(5, 5, 5)], [[(0, 0, (5, 5))], [(2, 10, (5,))]]),
        ([groups(25, 3)], [[(0, 0, (25,))], [(1, 25, (3,))]]),
        ([groups(3, 3), groups(4)], [[(0, 0, (3, 3)), (0, 0, (4,))]]),
        ([groups(3, 3), groups(5)], [[(0, 0, (3, 3))], [(0, 0, (5,))]]),
        ([groups(8, 3), groups(), groups(7)], [[(0, 0, (8,))], [(1, 8, (3,)), (0, 0, ()), (0, 0, (7,))]]),
    ],
)
def test_parts_are_whole_row_groups(given: list[Any], expected: list[Any]) -> None:
    planned = plan_parts(given, 10)
    assert [part.number for part in planned] == list(range(len(expected)))
    found = [[(one.first_group, one.first_row, one.groups) for one in part.portions] for part in planned]
    assert found == expected
    assert [part.rows for part in planned] == [sum(sum(one[2]) for one in part) for part in expected]


# --- runs ---


def test_a_run_gives_the_rows_of_a_local_run(tmp_path: Path, bundle: Path, folder: Path) -> None:
    totals = run(bundle, folder, tmp_path / "out")
    check_scores(pq.read_table(tmp_path / "out"), bundle)
    assert parts(tmp_path / "out") == [200, 200, 150, 200, 200, 50]
    assert (totals.rows, totals.scored, totals.parts, totals.unused) == (COUNT, COUNT, 6, ("label",))
    local = BatchRun(
        BatchScorer.load(bundle, BatchColumns(keep=("id",))), SourceOptions((folder,)), tmp_path / "l"
    )
    local.run()
    assert pq.read_table(tmp_path / "out").equals(pq.read_table(tmp_path / "l"), check_metadata=True)


def test_csv_files_and_delta_tables(tmp_path: Path, bundle: Path) -> None:
    (tmp_path / "csv").mkdir()
    pacsv.write_csv(payments().slice(0, 333), tmp_path / "csv/1.csv")
    pacsv.write_csv(payments().slice(333), tmp_path / "csv/2.csv")
    run(bundle, tmp_path / "csv", tmp_path / "out")
    check_scores(pq.read_table(tmp_path / "out"), bundle)
    assert parts(tmp_path / "out") == [333, 667]

    deltalake = pytest.importorskip("deltalake", reason="the package deltalake is not installed")
    table = payments().append_column("day", pa.array(np.arange(COUNT) // 500))
    for at in range(2):
        # The column of the partition is in the names of directories only.
        rows = table.slice(500 * at, 500)
        deltalake.write_deltalake(tmp_path / "delta", rows, partition_by=["day"], mode="append")
    run(bundle, tmp_path / "delta", tmp_path / "d", columns=BatchColumns(keep=("id", "day")))
    found = pq.read_table(tmp_path / "d")
    # The order of the files is that of the table.
    found = found.take(np.argsort(found["day"], kind="stable"))
    check_scores(found, bundle)
    assert found["day"].to_pylist() == table["day"].to_pylist()


def test_workers_need_no_deltalake(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deltalake = pytest.importorskip("deltalake", reason="the package deltalake is not installed")
    deltalake.write_deltalake(tmp_path / "delta", payments())

    def engine(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        with monkeypatch.context() as patch:
            for name in [name for name in sys.modules if name.partition(".")[0] == "deltalake"]:
                patch.setitem(sys.modules, name, None)
            yield from Engine()(score, parts)

    run(bundle, tmp_path / "delta", tmp_path / "out", engine)
    check_scores(pq.read_table(tmp_path / "out"), bundle)


def test_an_input_without_rows_gives_an_empty_table(tmp_path: Path, bundle: Path) -> None:
    pq.write_table(payments().slice(0, 0), tmp_path / "none.parquet")
    totals = run(bundle, tmp_path / "none.parquet", tmp_path / "out", columns=BatchColumns(bad_rows="null"))
    assert (totals.rows, totals.bad_rows) == (0, 0)
    assert pq.read_table(tmp_path / "out").schema.names == ["margin", "score", "decision", "problem"]


def test_rows_without_results_are_counted(tmp_path: Path, bundle: Path, folder: Path) -> None:
    spoil(folder / "2.parquet", 7, 340)
    columns = BatchColumns(keep=("id",), bad_rows="null")
    assert run(bundle, folder, tmp_path / "out", columns=columns).bad_rows == 2
    found = pq.read_table(tmp_path / "out").to_pylist()
    assert [row["id"] for row in found if row["problem"]] == ["p557", "p890"]
    # The counts are also those of a run that has nothing to do.
    assert run(bundle, folder, tmp_path / "out", columns=columns).bad_rows == 2


def spoil(file: Path, *at: int) -> None:
    """Make amounts of a file infinite, which a server refuses."""
    table = pq.read_table(file)
    amount = table["amount"].to_numpy().copy()
    amount[list(at)] = np.inf
    pq.write_table(
        table.set_column(table.schema.get_field_index("amount"), "amount", pa.array(amount)),
        file,
        row_group_size=100,
    )


# --- attempts ---


def test_repeated_attempts_double_no_rows(tmp_path: Path, bundle: Path, folder: Path) -> None:
    engine = Engine(attempts=3)
    totals = run(bundle, folder, tmp_path / "out", engine)
    assert set(engine.calls.values()) == {3} and totals.rows == COUNT
    check_scores(pq.read_table(tmp_path / "out"), bundle)
    assert parts(tmp_path / "out") == [200, 200, 150, 200, 200, 50], "no staged file is left"


def test_unfinished_files_of_dead_attempts_are_removed(tmp_path: Path, bundle: Path, folder: Path) -> None:
    def engine(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        for path in ("_staged-0123-00001-ab.parquet", "__staged-0123-00001-cd.parquet.unfinished"):
            (tmp_path / "out" / path).write_bytes(b"half")
        yield from Engine()(score, parts)

    run(bundle, folder, tmp_path / "out", engine)
    check_scores(pq.read_table(tmp_path / "out"), bundle)
    assert len(parts(tmp_path / "out")) == 6


def test_a_run_is_continued_after_its_staged_and_finished_parts(
    tmp_path: Path, bundle: Path, folder: Path
) -> None:
    for most, finished in ((2, 2), (1, 3)):
        with pytest.raises(_StoppedError):
            run(bundle, folder, tmp_path / "out", Engine(most=most))
        names = files(tmp_path / "out")
        assert len([name for name in names if "part" in name or name.startswith("_staged-")]) == finished
    engine = Engine()
    totals = run(bundle, folder, tmp_path / "out", engine)
    assert engine.calls == dict.fromkeys((3, 4, 5), 1)
    assert (totals.rows, totals.scored) == (COUNT, 200 + 200 + 50)
    check_scores(pq.read_table(tmp_path / "out"), bundle)
    assert parts(tmp_path / "out") == [200, 200, 150, 200, 200, 50]
    again = Engine()
    assert run(bundle, folder, tmp_path / "out", again).scored == 0
    assert not again.calls, "a complete run starts no task"


def test_staged_files_of_another_run_are_not_used(
    tmp_path: Path, built_bundles: dict[str, Path], folder: Path
) -> None:
    with pytest.raises(_StoppedError):
        run(built_bundles["score-2"], folder, tmp_path / "out", Engine(most=2))
    (tmp_path / "out/_run.json").unlink()
    left = [path.rename(tmp_path / path.name) for path in (tmp_path / "out").glob("_staged-*")]

    def engine(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        # A worker of the removed run is late.
        for path in left:
            path.rename(tmp_path / "out" / path.name)
        yield from Engine(most=1)(score, parts)

    with pytest.raises(_StoppedError):
        run(built_bundles["score-1"], folder, tmp_path / "out", engine)
    run(built_bundles["score-1"], folder, tmp_path / "out")
    check_scores(pq.read_table(tmp_path / "out"), built_bundles["score-1"])
    assert len(parts(tmp_path / "out")) == 6


@pytest.mark.parametrize(("failures", "passes"), [(2, True), (3, False)])
def test_parts_are_tried_again_if_a_file_cannot_be_read(
    tmp_path: Path, bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, failures: int, passes: bool
) -> None:
    engine, remaining = Engine(), [failures]

    def flaky(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        for part in parts:
            away = part.number == 4 and remaining[0] > 0
            hidden = tmp_path / "hidden"
            if away:
                remaining[0] -= 1
                (folder / "2.parquet").rename(hidden)
            yield from engine(score, [part])
            if away:
                hidden.rename(folder / "2.parquet")

    if passes:
        run(bundle, folder, tmp_path / "out", flaky)
        check_scores(pq.read_table(tmp_path / "out"), bundle)
    else:
        with pytest.raises(BatchError, match=r'^input ".*/2.parquet": it cannot be read: .*No such file'):
            run(bundle, folder, tmp_path / "out", flaky)
        assert len([name for name in files(tmp_path / "out") if name.startswith("part-")]) == 5
        run(bundle, folder, tmp_path / "out")
        check_scores(pq.read_table(tmp_path / "out"), bundle)
    assert engine.calls == {**dict.fromkeys((0, 1, 2, 3, 5), 1), 4: 3}


# --- refusals ---


def refused(*given: Any, **settings: Any) -> str:
    with pytest.raises(BatchError) as caught:
        run(*given, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_bad_file_is_named_and_the_others_are_scored(tmp_path: Path, bundle: Path, folder: Path) -> None:
    file = folder / "2.parquet"
    chunk = pq.read_metadata(file).row_group(2).column(1)
    content = bytearray(file.read_bytes())
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    content[start : start + 40] = b"\xff" * 40
    file.write_bytes(content)
    engine = Engine()
    said = refused(bundle, folder, tmp_path / "out", engine)
    assert said.startswith(f'input "{file}": it cannot be read: ')
    assert [name for name in files(tmp_path / "out") if name.startswith("part-")] == [
        f"part-{at:05d}.parquet" for at in (0, 1, 2, 3, 5)
    ]
    (folder / "2.parquet").write_bytes(b"PAR1 no table")
    assert f'input "{file}": it cannot be read: ' in refused(bundle, folder, tmp_path / "o2")


def test_a_refused_row_is_named_by_its_place_in_its_file(tmp_path: Path, bundle: Path, folder: Path) -> None:
    spoil(folder / "2.parquet", 340)
    said = refused(bundle, folder, tmp_path / "out")
    assert said.startswith(
        f'input "{folder / "2.parquet"}": row 340: feature "amount": the value is infinite'
    )
    assert "more parts" not in said
    spoil(folder / "2.parquet", 7)
    said = refused(bundle, folder, tmp_path / "o2")
    assert f'input "{folder / "2.parquet"}": row 7: ' in said and said.endswith("(and 1 more parts)")


def test_a_file_that_changes_during_the_run_is_refused(tmp_path: Path, bundle: Path, folder: Path) -> None:
    def engine(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        changed = payments(COUNT, first=9).slice(550)
        pq.write_table(changed, folder / "2.parquet", row_group_size=100)
        yield from Engine()(score, parts)

    said = refused(bundle, folder, tmp_path / "out", engine)
    assert said.startswith(f'input "{folder / "2.parquet"}": the file has changed since the run was planned')


def test_results_that_the_driver_cannot_see_are_refused(tmp_path: Path, bundle: Path, folder: Path) -> None:
    def elsewhere(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        for result in Engine()(score, parts):
            (tmp_path / "out" / result.staged).unlink()
            yield result

    assert "all machines must have the same file system" in refused(
        bundle, folder, tmp_path / "out", elsewhere
    )

    def short(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        for result in Engine()(score, parts):
            path = tmp_path / "o2" / result.staged
            pq.write_table(pq.read_table(path).slice(1), path)
            yield result

    assert "the file has 199 rows and the input 200" in refused(bundle, folder, tmp_path / "o2", short)

    def silent(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        yield from Engine()(score, parts[1:])

    assert "the engine returned no result of part 0" in refused(bundle, folder, tmp_path / "o3", silent)


def test_local_runs_and_runs_of_a_cluster_do_not_continue_each_other(
    tmp_path: Path, bundle: Path, folder: Path
) -> None:
    scorer = BatchScorer.load(bundle, BatchColumns(keep=("id",)))
    BatchRun(scorer, SourceOptions((folder,)), tmp_path / "local", part_rows=200).run()
    assert '(cut: null, now "row groups")' in refused(bundle, folder, tmp_path / "local")
    run(bundle, folder, tmp_path / "out")
    with pytest.raises(BatchError, match=r'\(cut: "row groups", now null\)'):
        BatchRun(scorer, SourceOptions((folder,)), tmp_path / "out", part_rows=200).run()


def test_outputs_and_inputs_that_one_process_handles(tmp_path: Path, bundle: Path, folder: Path) -> None:
    for name in ("out.parquet", "out.csv"):
        said = refused(bundle, folder, tmp_path / name)
        assert "a cluster writes a directory of Parquet parts; give an output without this ending" in said
    query = ClusterRun(
        bundle,
        BatchColumns(),
        SourceOptions(sql="SELECT 1.0 AS amount, 1 AS hour, 1 AS count_24h, 1 AS distance"),
        tmp_path / "o",
    )
    with pytest.raises(BatchError, match="--sql: a query is computed by one process"):
        query.run(Engine())


def test_the_command_names_what_an_engine_needs(
    tmp_path: Path, bundle: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["score", str(folder), "-o", str(tmp_path / "out"), "--bundle", str(bundle)]
    said = scorer_in_process(*common, "--cluster", "local[2]")
    assert said.returncode == 1 and "--cluster: the engine is local; add --engine spark" in said.stderr
    for engine, package in {"spark": "pyspark", "ray": "ray"}.items():
        monkeypatch.setitem(sys.modules, package, None)
        said = scorer_in_process(*common, "--engine", engine)
        assert said.returncode == 1 and said.stderr.count("\n") == 1
        assert (
            f"--engine {engine}: the package {package} is not installed; pip install 'scorer[{engine}]'"
            in (said.stderr)
        )
    assert not (tmp_path / "out").exists()


def test_the_record_lists_parts_in_order(tmp_path: Path, bundle: Path, folder: Path) -> None:
    def backwards(score: Score, parts: Sequence[PlannedPart]) -> Iterator[PartResult]:
        yield from Engine()(score, parts[::-1])

    run(bundle, folder, tmp_path / "out", backwards)
    record = json.loads((tmp_path / "out/_run.json").read_text())
    assert [part["name"] for part in record["parts"]] == files(tmp_path / "out")
    assert record["complete"]
