"""Tests of the check of a file of outcomes: rules by row, formats, comparison with logs, and the journal."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path
from typing import Any

import labelling
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelling import DAY, POINT, START, MemoryLog, MemorySource
from typer.testing import CliRunner

from scorer.cli import app
from scorer.learn.errors import DataError
from scorer.learn.imports import checking
from scorer.learn.imports.checking import REJECT, SEND, SKIP, ImportPlan, OutcomeFile, check_file
from scorer.learn.imports.files import file_rows
from scorer.learn.imports.journal import ImportJournal
from scorer.learn.imports.rows import BadRowError, ImportDefaults, OutcomeRow, parse_row

NOW = START + 100 * DAY
DEFAULTS = ImportDefaults(kind="fraud", value=None, kinds=("fraud", "chargeback"), now_ms=NOW)


def check(path: Path, source: Any = None, *, columns: Any = None, **more: Any) -> ImportPlan:
    return check_file(OutcomeFile(path, POINT, DEFAULTS, columns or {}), source, **more)


def of_rules(plan: ImportPlan) -> dict[str, int]:
    return {one.name: one.count for one in plan.findings if one.name != "without a token"}


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"decision_id": "", "value": 1}, "no decision id"),
        ({"decision_id": None, "value": 1}, "no decision id"),
        ({"decision_id": "x" * 81, "value": 1}, "bad decision id"),
        ({"decision_id": "päy", "value": 1}, "bad decision id"),
        ({"decision_id": "a", "kind": "refund", "value": 1}, "wrong kind"),
        ({"decision_id": "a", "kind": "k" * 65, "value": 1}, "wrong kind"),
        ({"decision_id": "a", "value": "yes"}, "not a number"),
        ({"decision_id": "a", "value": ""}, "not a number"),
        ({"decision_id": "a", "value": "nan"}, "not a number"),
        ({"decision_id": "a", "value": 1, "revision": "-1"}, "bad revision"),
        ({"decision_id": "a", "value": 1, "revision": "1.5"}, "bad revision"),
        ({"decision_id": "a", "value": 1, "revision": 2**32}, "bad revision"),
        ({"decision_id": "a", "value": 1, "occurred_at": "yesterday"}, "unreadable time"),
        ({"decision_id": "a", "value": 1, "occurred_at": -5}, "unreadable time"),
        ({"decision_id": "a", "value": 1, "occurred_at": NOW + 3_600_000}, "future time"),
        ({"decision_id": "a", "value": 1, "decision_token": "%%%"}, "bad token"),
    ],
)
def test_a_row_that_breaks_a_rule_is_named_by_it(fields: dict[str, Any], rule: str) -> None:
    with pytest.raises(BadRowError) as caught:
        parse_row(fields, DEFAULTS)
    assert caught.value.rule == rule


def test_values_of_texts_and_of_typed_files_are_read_alike() -> None:
    token = base64.b64encode(b"token").decode()
    expected = OutcomeRow("a", "fraud", 1.0, 2, True, START, b"token")
    moment = "2026-01-05T00:00:00+00:00"
    assert (
        parse_row(
            {
                "decision_id": " a ",
                "value": "1",
                "revision": "2.0",
                "occurred_at": moment,
                "decision_token": token,
            },
            DEFAULTS,
        )
        == expected
    )
    assert (
        parse_row(
            {
                "decision_id": "a",
                "value": True,
                "revision": 2,
                "occurred_at": START,
                "decision_token": b"token",
            },
            DEFAULTS,
        )
        == expected
    )
    # No time zone means UTC.
    assert parse_row({"decision_id": "a", "value": 0, "occurred_at": moment[:19]}, DEFAULTS) == OutcomeRow(
        "a", "fraud", 0.0, 0, False, START
    )


def test_all_formats_give_the_same_rows(tmp_path: Path) -> None:
    rows = [{"decision_id": f"d{at}", "value": at % 2, "when": START + at} for at in range(9_000)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=700)
    lines = [f"{one['decision_id']},ignored,{one['value']},{one['when']}" for one in rows]
    (tmp_path / "a.csv").write_text("\ufeffdecision_id,note,value,when\n" + "\n".join(lines))
    columns = {"occurred_at": "when"}
    parsed = []
    for name in ("a.jsonl", "a.parquet", "a.csv"):
        found = [(at, parse_row(row, DEFAULTS)) for at, row in file_rows(tmp_path / name, columns)]  # type: ignore[arg-type]
        parsed.append(found)
    assert parsed[0] == parsed[1] == parsed[2]
    assert parsed[0][-1] == (9_000, OutcomeRow("d8999", "fraud", 1.0, 0, False, START + 8_999))


def test_files_that_cannot_be_read_are_errors_and_rows_that_cannot_are_findings(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("decision_id,value\na,1\nb\nc,1,2\nd,1\n")
    plan = check(path)
    assert plan.action.tolist() == [SEND, REJECT, REJECT, SEND] and of_rules(plan) == {"unreadable row": 2}
    assert plan.findings[0].examples == ("row 2: 1 cells under 2 headings", "row 3: 3 cells under 2 headings")
    lines = tmp_path / "a.jsonl"
    lines.write_text(
        '{"decision_id": "a", "value": 1}\n[1]\n{"x\n' + "y" * 200_000 + "\n" + '{"decision_id": "b"}'
    )
    assert of_rules(check(lines)) == {"unreadable row": 3, "not a number": 1}
    for name, content, message in (
        ("b.csv", "id,value\na,1\n", 'has no column "decision_id"; it has id, value'),
        ("c.csv", "decision_id,value,value\n", 'has the column "value" twice'),
        ("d.csv", "decision_id\n", "has no rows"),
        ("e.txt", "", "is none of the formats"),
        ("f.parquet", "no", "is not a Parquet file"),
        ("g.csv", "decision_id\n\xff", "cannot be read"),
    ):
        (tmp_path / name).write_bytes(content.encode("latin-1"))
        with pytest.raises(DataError, match=message):
            check(tmp_path / name)
    with pytest.raises(DataError, match="cannot be read"):
        check(tmp_path / "absent.csv")


def write(path: Path, rows: list[tuple[Any, ...]]) -> Path:
    header = "decision_id,kind,value,revision,occurred_at\n"
    path.write_text(header + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def log(place: int, decided: dict[str, int], reports: list[tuple[str, str, float, int]]) -> MemoryLog:
    """Return a log of decisions at days, and of reports: id, kind, value and revision."""
    time_ms = START + np.array(list(decided.values())) * DAY
    ids, kinds, values, revisions = (list(column) for column in zip(*reports, strict=True))
    return MemoryLog(
        f"log-{place}",
        [
            labelling.decisions(list(decided), time_ms),
            labelling.outcomes(
                ids, kinds, values, [START + 50 * DAY] * len(ids), first=100, revision=np.array(revisions)
            ),
        ],
    )


def test_rows_are_compared_with_each_other_and_with_the_logs(tmp_path: Path) -> None:
    source = MemorySource(
        [
            log(0, {"a": 0, "b": 0, "c": 0, "e": 0}, [("a", "fraud", 1, 0), ("b", "fraud", 1, 2)]),
            log(1, {"d": 5, "a": 9}, [("b", "fraud", 0, 2), ("c", "other", 1, 0)]),
        ]
    )
    rows: list[tuple[Any, ...]] = [
        ("a", "fraud", 1, 0, ""),  # already recorded
        ("a", "fraud", 0, 1, ""),  # a reversal
        ("b", "fraud", 0, 2, ""),  # contradicts the first report of the revision
        ("b", "fraud", 0, 1, ""),  # older than the log
        ("c", "fraud", 1, "", ""),
        ("c", "fraud", 1, "", ""),  # a duplicate in the file
        ("c", "chargeback", 0, "", ""),  # contradicts the next row
        ("c", "chargeback", 1, "", ""),
        ("d", "fraud", 1, "", START + 4 * DAY),  # before its decision
        ("d", "fraud", 1, 3, START + 6 * DAY),
        ("gone", "fraud", 1, "", ""),
        ("e", "fraud", 1, "", ""),
    ]
    plan = check(write(tmp_path / "a.csv", rows), source)
    codes = {"-": SKIP, "!": REJECT, "+": SEND}
    assert plan.action.tolist() == [codes[one] for one in "-+!++-!!!+!+"]
    assert plan.log.tolist() == [0, 0, 0, 0, 0, -1, -1, -1, 1, 1, -1, 0]
    assert of_rules(plan) == {
        "contradiction in the file": 2,
        "unknown decision": 1,
        "before its decision": 1,
        "contradicts the log": 1,
        "duplicate in the file": 1,
        "already recorded": 1,
        "older than the log": 1,
    }
    assert plan.counts() == {"rows": 12, "reported": 5, "skipped": 2, "rejected": 5}
    example = {one.name: one.examples for one in plan.findings}["contradicts the log"]
    assert example == ("row 3: revision 2 has 1 in the log, and 0 here",)


def test_with_revise_another_value_becomes_the_next_revision_and_an_equal_one_is_skipped(
    tmp_path: Path,
) -> None:
    reports = [("a", "fraud", 1.0, 0), ("a", "fraud", 0.0, 3), ("b", "fraud", 1.0, 4)]
    source = MemorySource([log(0, {"a": 0, "b": 0, "c": 0}, reports)])
    rows: list[tuple[Any, ...]] = [
        ("a", "fraud", 1, "", ""),
        ("b", "fraud", 1, "", ""),
        ("c", "fraud", 1, "", ""),
    ]
    plan = check(write(tmp_path / "a.csv", rows), source, revise=True)
    assert plan.action.tolist() == [SEND, SKIP, SEND] and plan.revision.tolist() == [4, 0, 0]
    assert of_rules(plan) == {"already recorded": 1, "corrects the log": 1}
    with pytest.raises(DataError, match="give the logs with --log"):
        check(tmp_path / "a.csv", revise=True)


@pytest.mark.parametrize("seed", range(4))
def test_the_comparison_equals_a_naive_one(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_CHUNK", 7)
    pick = random.Random(seed)
    decided = {f"d{at}": at % 3 for at in range(12)}
    kinds = ("fraud", "chargeback")
    reports = [
        (f"d{pick.randrange(14)}", pick.choice(kinds), float(pick.randrange(2)), pick.randrange(3))
        for _ in range(25)
    ]
    rows = [
        (f"d{pick.randrange(14)}", pick.choice(kinds), pick.randrange(2), pick.randrange(3), "")
        for _ in range(40)
    ]
    plan = check(write(tmp_path / "a.csv", rows), MemorySource([log(0, decided, reports)]))
    recorded: dict[tuple[str, str, int], float] = {}
    for name, kind, value, revision in reports:
        recorded.setdefault((name, kind, revision), value)
    expected, seen = [], {}
    values: dict[Any, set[int]] = {}
    for name, kind, value, revision, _ in rows:
        values.setdefault((name, kind, revision), set()).add(value)
    for name, kind, value, revision, _ in rows:
        key = (name, kind, revision)
        if len(values[key]) > 1 or (key not in seen and name not in decided):
            expected.append(REJECT)
        elif key in seen:
            expected.append(SKIP)
        elif key in recorded:
            expected.append(SKIP if recorded[key] == value else REJECT)
        else:
            expected.append(SEND)
        seen.setdefault(key, value)
    assert plan.action.tolist() == expected


def test_a_journal_adds_up_and_belongs_to_one_import_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with ImportJournal(path, {"file": "sha256:1"}) as journal:
        journal.commit(10, {"recorded": 9, "rejected by a server": 1}, [(4, "why")])
        with pytest.raises(DataError, match="another import uses it"):
            ImportJournal(path, {"file": "sha256:1"})
    with ImportJournal(path, {"file": "sha256:1"}) as journal:
        assert journal.rows == 10
        journal.commit(20, {"recorded": 10}, [])
        assert journal.counts == {"recorded": 19, "rejected by a server": 1}
        assert journal.rejected() == [(4, "why")]
    with pytest.raises(DataError, match="file was sha256:1 and is sha256:2"):
        ImportJournal(path, {"file": "sha256:2"})


def test_the_command_reports_nothing_in_a_dry_run_or_while_rows_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", [("a", "fraud", 1, "", ""), ("b", "fraud", "x", "", "")])
    common = ["outcomes", "import", str(path), "--checkpoint", POINT]
    dry = CliRunner().invoke(app, [*common, "--dry-run", "--json"])
    found = json.loads(dry.stdout)
    assert dry.exit_code == 0 and (found["reported"], found["rejected"]) == (1, 1)
    assert [one["name"] for one in found["findings"]] == ["not a number", "without a token"]
    wrong = CliRunner().invoke(app, [*common, "--server", "127.0.0.1:1"])
    assert isinstance(wrong.exception, DataError) and "nothing was reported" in str(wrong.exception)
    assert list(tmp_path.iterdir()) == [path]
    for arguments, message in (
        ((), "--server is required"),
        (("--dry-run", "--column", "when=x"), "write FIELD=NAME"),
    ):
        usage = CliRunner().invoke(app, [*common, *arguments])
        assert usage.exit_code == 2 and message in usage.output
