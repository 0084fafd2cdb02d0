"""``scorer outcomes import``: report the outcomes of a file to servers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.log_options import log_source
from scorer.commands.output import print_json, print_table
from scorer.commands.progress import bytes_bar, rows_bar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scorer.learn.imports.checking import ImportPlan, OutcomeFile

_SHOWN = 10


def import_outcomes(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, Parquet or JSONL file.")],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of the decisions.")],
    server: Annotated[
        list[str] | None,
        typer.Option(
            "--server",
            metavar="TARGET",
            help="host:port or unix:///path of a server; repeatable. With one for each --log, in the same "
            "order, a report goes to the server of its decision.",
        ),
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            "-l",
            metavar="DIR",
            help="Decision log to compare the rows with, or delta:DIR; repeatable. Without it decisions and "
            "recorded values are not checked.",
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Kind of rows without one.")] = None,
    value: Annotated[float | None, typer.Option(help="Value of rows without one.")] = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kinds", metavar="KIND", help="Kind that is allowed; repeatable.")
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD=NAME", help="The file's name for a field; repeatable."),
    ] = None,
    revise: Annotated[
        bool,
        typer.Option(
            "--revise",
            help="Report a value that differs from the newest one of the log as its next revision, where the "
            "file gives no revision.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check the file and report nothing.")] = False,
    skip_rejected: Annotated[
        bool, typer.Option("--skip-rejected", help="Report the other rows although some are rejected.")
    ] = False,
    journal: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File for the progress; default: FILE with the suffix .import."),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="Number of reports at a time.")] = 16,
    patience: Annotated[
        float, typer.Option(min=0, max=86_400, help="Seconds to wait for servers that are away.")
    ] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report the outcomes of a file to servers.

    All rows are checked first, and nothing is reported while a row breaks a rule. An import that was ended
    continues with the same command. A report that is repeated has no further effect.
    """
    from scorer.learn.errors import DataError
    from scorer.learn.imports.checking import OutcomeFile, check_file
    from scorer.learn.imports.rows import ImportDefaults

    if not dry_run and not server:
        raise typer.BadParameter("--server is required, unless the file is only checked with --dry-run")
    defaults = ImportDefaults(kind, value, tuple(kinds or ()), int(time.time() * 1000))
    given = OutcomeFile(file, checkpoint, defaults, _columns(column or []))
    with bytes_bar("checking") as advance:
        plan = check_file(given, log_source(log) if log else None, revise=revise, advance=advance)
    found: dict[str, Any] = {"file": str(file), **plan.counts(), "compared_with_logs": plan.against_logs}
    found["findings"] = [
        {
            "name": one.name,
            "effect": one.effect,
            "count": one.count,
            "rule": one.rule,
            "examples": list(one.examples),
        }
        for one in plan.findings
    ]
    refused = bool(plan.rejected) and not skip_rejected
    if not json:
        _print_plan(file, plan)
    if not dry_run and not refused:
        about = {
            "revise": str(revise),
            "kind": kind or "",
            "value": "" if value is None else f"{value:g}",
            "columns": ", ".join(sorted(column or [])),
        }
        target = journal or file.with_name(f"{file.name}.import")
        found.update(_report(given, plan, target, about, len(log or []), server or [], concurrency, patience))
        if not json:
            _print_results(found)
    if json:
        print_json(found)
    if refused and not dry_run:
        raise DataError(
            f'"{file}": nothing was reported, because {plan.rejected:,} rows are rejected; correct them, or '
            "report the others with --skip-rejected"
        )
    if found.get("rejected_rows"):
        raise DataError(
            f'"{file}": servers rejected {found["results"]["rejected by a server"]:,} rows; the list above '
            "gives the reasons"
        )


def _report(
    file: OutcomeFile,
    plan: ImportPlan,
    journal: Path,
    about: Mapping[str, str],
    logs: int,
    servers: list[str],
    concurrency: int,
    patience: float,
) -> dict[str, Any]:
    from scorer.credentials import ClientTls
    from scorer.learn.imports.files import file_digest
    from scorer.learn.imports.journal import ImportJournal
    from scorer.learn.imports.sending import ImportTargets, send_rows

    tls = ClientTls.from_environment()
    targets = ImportTargets(
        servers=tuple(servers),
        logs=logs,
        credentials=None if tls is None else tls.channel_credentials(),
        concurrency=concurrency,
        patience_s=patience,
    )
    identity = {"file": file_digest(file.path), "checkpoint": file.checkpoint, **about}
    with ImportJournal(journal, identity) as progress:
        before = progress.rows
        with rows_bar("importing") as advance:
            results = send_rows(file, plan, targets, progress, advance=advance)
        return {
            "continued_after": before,
            "results": results,
            "rejected_rows": [{"row": row, "reason": why} for row, why in progress.rejected()],
            "journal": str(journal),
        }


def _columns(given: list[str]) -> dict[str, str]:
    from scorer.learn.imports.files import FIELDS

    found = {}
    for text in given:
        field, equals, name = text.partition("=")
        if not equals or field not in FIELDS or not name:
            raise typer.BadParameter(
                f'--column "{text}": write FIELD=NAME with a field of {", ".join(FIELDS)}'
            )
        found[field] = name
    return found


def _print_plan(file: Path, plan: ImportPlan) -> None:
    counts = plan.counts()
    typer.echo(
        f"{file}: {counts['rows']:,} rows, {counts['reported']:,} to report, {counts['skipped']:,} skipped, "
        f"{counts['rejected']:,} rejected"
    )
    if not plan.against_logs:
        typer.echo("decisions and recorded values were not checked; give the logs with --log")
    print_table(
        ("finding", "rows", "effect", "rule", "for example"),
        [
            (one.name, f"{one.count:,}", one.effect, one.rule, "; ".join(one.examples))
            for one in plan.findings
        ],
        empty="no findings",
    )


def _print_results(found: Mapping[str, Any]) -> None:
    if found["continued_after"]:
        typer.echo(f"continued after {found['continued_after']:,} rows that were done before")
    print_table(
        ("result", "rows"), [(name, f"{count:,}") for name, count in found["results"].items()], empty="none"
    )
    for one in found["rejected_rows"][:_SHOWN]:
        typer.echo(f"row {one['row']}: {one['reason']}")
    if len(found["rejected_rows"]) > _SHOWN:
        typer.echo(f"and {len(found['rejected_rows']) - _SHOWN:,} more; --json lists them")
