"""``scorer datasets``: check data sets, record them, and find the one that a bundle was made of."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table

if TYPE_CHECKING:
    from scorer.learn.datasets.records import DatasetRecord, DatasetStore, Purpose

app = typer.Typer(help="Check data sets and keep them on record.", no_args_is_help=True, **TYPER_OPTIONS)

File = Annotated[Path, typer.Argument(metavar="FILE", help="Parquet file.")]
Name = Annotated[str, typer.Option("--name", help="Name of the series that the data set belongs to.")]
Use = Annotated[
    Literal["training", "evaluation", "explainer", "drift", "batch"],
    typer.Option("--purpose", help="What the data set is used for."),
]
Task = Annotated[
    Path, typer.Option("--task", metavar="DIR", help="Score bundle, or directory with its schema.json.")
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        help="Settings (learn.toml) with [fraud.columns] and [fraud.checks].",
    ),
]
Store = Annotated[Path, typer.Option("--store", metavar="DIR", help="Directory of the records.")]
Changes = Annotated[
    Literal["report", "reject"],
    typer.Option("--changes", help="Report drift and overlapping windows, or reject the file for them."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_STORE = Path("datasets")


@app.command()
def add(
    file: File,
    name: Name,
    purpose: Use,
    task: Task,
    config: Config = None,
    store: Store = _STORE,
    changes: Changes = "report",
    json: Json = False,
) -> None:
    """Check a file and record it. A file that a rule rejects is not recorded."""
    records = _store(store)
    _print(records.add(_checked(records, file, name, purpose, task, config, changes)), json)


@app.command()
def check(
    file: File,
    name: Name,
    purpose: Use,
    task: Task,
    config: Config = None,
    store: Store = _STORE,
    changes: Changes = "report",
    json: Json = False,
) -> None:
    """Check a file as `add` does, and record nothing."""
    _print(_checked(_store(store), file, name, purpose, task, config, changes), json)


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Option("--name", help="Only this series.")] = None,
    store: Store = _STORE,
    json: Json = False,
) -> None:
    """List the records, the oldest first."""
    found = _store(store).records(name)
    if json:
        print_json([one.model_dump(mode="json", exclude={"columns", "features"}) for one in found])
        return
    rows = [
        (
            one.digest[7:19],
            one.name,
            one.purpose,
            f"{one.rows:,}",
            _window(one),
            _rate(one),
            str(len(one.findings)),
        )
        for one in found
    ]
    columns = ("digest", "name", "purpose", "rows", "window", "label rate", "findings")
    print_table(columns, rows, empty="no data set is on record")


@app.command()
def show(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="REFERENCE", help="Digest, at least 8 digits of one, or directory of a bundle."
        ),
    ],
    store: Store = _STORE,
    json: Json = False,
) -> None:
    """Show the records of a file, such as the one that a bundle was trained on."""
    found = _store(store).find(reference)
    if json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        _print(one, json=False)


def _store(directory: Path) -> DatasetStore:
    from scorer.learn.datasets.records import DatasetStore

    return DatasetStore(directory)


def _checked(
    store: DatasetStore,
    file: Path,
    name: str,
    purpose: Purpose,
    task: Path,
    config: Path | None,
    changes: Literal["report", "reject"],
) -> DatasetRecord:
    from scorer.learn import settings
    from scorer.learn.datasets.adding import check_dataset
    from scorer.learn.fraud.task import read_score_task
    from scorer.registry.pushing import user
    from scorer.registry.reference import check_name

    check_name(name, "data set name")
    features = read_score_task(task).features
    plan = settings.load(config).fraud
    return check_dataset(store, file, name, purpose, features, plan, by=user(), changes=changes)


def _print(record: DatasetRecord, json: bool) -> None:
    if json:
        print_json(record.model_dump(mode="json"))
        return
    excluded = f", {record.excluded:,} excluded" if record.excluded else ""
    typer.echo(f"{record.name} for {record.purpose}: {record.digest}")
    typer.echo(f"{record.rows:,} rows{excluded}, {len(record.features)} features, {record.path}")
    if record.label_rate is not None:
        typer.echo(f"{_window(record)}, {_rate(record)} of the labels are positive")
    for finding in record.findings:
        typer.echo(f"{finding.effect}: {finding.text}")


def _window(record: DatasetRecord) -> str:
    if record.begins_ms is None or record.ends_ms is None:
        return "-"
    return " to ".join(
        f"{datetime.fromtimestamp(moment / 1000, UTC):%Y-%m-%d}"
        for moment in (record.begins_ms, record.ends_ms)
    )


def _rate(record: DatasetRecord) -> str:
    return "-" if record.label_rate is None else f"{record.label_rate:.2%}"
