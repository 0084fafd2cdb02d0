"""Options and output shared by the commands that call a platform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.output import print_table

if TYPE_CHECKING:
    from scorer.release.answers import Outlook, SegmentReport, SegmentValue
    from scorer.release.model import ChangeRequest, GateResult
    from scorer.sdk import PlatformClient

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the platform; default: $SCORER_PLATFORM_URL, or the one stored by `scorer login`.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Reason, recorded in the audit log.")]
Project = Annotated[
    str | None,
    typer.Option("--project", "-p", help="Name of the project; optional for members of a single project."),
]

_SEGMENTS_WIDTH = 480
"""Width of the table of segments in characters: it has a column for each measure with its bounds."""


@contextmanager
def connected(url: str | None) -> Iterator[PlatformClient]:
    """Open a client of the platform."""
    from scorer.sdk import PlatformClient

    with PlatformClient(url) as platform:
        yield platform


def plain(value: Any) -> Any:
    """Convert a result to JSON values."""
    from pydantic import TypeAdapter

    return TypeAdapter(Any).dump_python(value, mode="json")


def moment(text: str | None) -> datetime | None:
    """Parse a time, which is local time without a time zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is not a time; write 2026-11-21T09:30, or with a zone 2026-11-21T09:30Z'
        ) from None
    return found.astimezone(UTC)


def at(value: datetime | None) -> str:
    """Format a time as local time, to the minute."""
    return "-" if value is None else value.astimezone().strftime("%Y-%m-%d %H:%M")


def change_row(change: ChangeRequest) -> tuple[str, ...]:
    """Return the row of a change request in a list."""
    return (
        change.id,
        str(change.kind),
        f"{change.state}" + (f" ({change.verdict})" if change.verdict else ""),
        change.checkpoint,
        change.bundle.removeprefix("sha256:")[:12],
        change.project,
        change.created_by,
        change.title,
    )


CHANGE_COLUMNS = ("change", "kind", "state", "checkpoint", "bundle", "project", "by", "title")


def gate_row(gate: GateResult) -> tuple[str, ...]:
    """Return the row of a gate."""
    outcome = str(gate.outcome)
    if gate.waived_by:
        outcome += f", waived by {gate.waived_by}"
    elif gate.dry_run:
        outcome += " (informational)"
    return (gate.metric, outcome, gate.words)


def print_backtest(found: Mapping[str, Any]) -> None:
    """Print a backtest: its verdict, both bundles' metrics, and decisions that the candidate would miss."""
    typer.echo(f"backtest: {found['words']}")
    rows = [
        (name, *(_figure(one.get(side)) for side in ("live", "candidate", "difference", "low", "high")))
        for name, one in found["metrics"].items()
    ]
    if rows:
        columns = ("metric", "live", "this bundle", "change", "at least", "at most (95 %)")
        print_table(columns, rows, empty="no metrics", width=120)
    if found["missed"]:
        ids = ", ".join(str(one["decision_id"]) for one in found["missed"][:5])
        typer.echo(f"  live flags and this bundle would miss: {ids}")
    if ruled := found.get("rules"):
        typer.echo(f"  {ruled['changed']:,} of {ruled['decisions']:,} decisions change (with rules)")
        changes = [
            (f"{one['before']} > {one['after']}", f"{one['count']:,}", ", ".join(one["examples"]))
            for one in ruled["changes"]
            if one["changed"]
        ]
        print_table(("change", "decisions", "examples"), changes, empty="no decision changes", width=120)
        counted = ("hits_before", "hits", "changed_by")
        effects = [
            (rule, *(f"{ruled[name].get(rule, 0):,}" for name in counted))
            for rule in dict.fromkeys([*ruled["rules"], *ruled["hits_before"]])
        ]
        print_table(("rule", "live", "this bundle", "changed"), effects, empty="no rules", width=120)
    for note in found["notes"]:
        typer.echo(f"  {note}")
    typer.echo("")


def print_segments(report: SegmentReport) -> None:
    """Print the segments of a report: rows, decisions and measures with their bounds."""
    measures = list(dict.fromkeys(name for one in report.segments for name in one.measures))
    sides = [(label, side) for label in report.labels for side in ("live", "candidate")]
    rows = []
    for one in report.segments:
        shares = [f"{100 * getattr(one, side).get(label, 0.0):.2f} %" for label, side in sides]
        cells = [*shares, _count(one.swapped_in), _count(one.swapped_out)]
        cells += [_bounded(one.measures.get(name)) for name in measures]
        if not one.judged:
            cells = ["too few rows", *[""] * (len(cells) - 1)]
        mark = "worse" if one.worse else ""
        rows.append((f"{one.feature} {one.level}", mark, f"{one.rows:,}", *cells))
    columns = [f"{label}, {'live' if side == 'live' else 'this bundle'}" for label, side in sides]
    typer.echo(f"segments of the {report.stage}: {report.words}")
    print_table(
        ("segment", "", "rows", *columns, "swapped in", "swapped out", *measures),
        rows,
        empty="no segments",
        width=_SEGMENTS_WIDTH,
    )


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _bounded(value: SegmentValue | None) -> str:
    if value is None:
        return "-"
    if value.low is None and value.high is None:
        return _figure(value.value)
    return f"{_figure(value.value)} ({_figure(value.low)} to {_figure(value.high)})"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def print_outlook(outlook: Outlook) -> None:
    """Print the stage of a release, its expected end and what it waits for."""
    if outlook.stage > outlook.stages:
        typer.echo("all stages have passed")
    else:
        ends = at(outlook.stage_ends) if outlook.stage_ends else "not known"
        whole = at(outlook.ends) if outlook.ends else "not known"
        typer.echo(
            f"stage {outlook.stage} of {outlook.stages}, {outlook.share:.0%} of the answers; "
            f"expected end: {ends}, of the last stage: {whole}"
        )
    for one in outlook.waits:
        typer.echo(f"  waiting for: {one}")


def print_gates(gates: Sequence[GateResult], *, empty: str = "no gates have been evaluated yet") -> None:
    """Print gates as a table of at most 120 columns."""
    rows = [gate_row(gate) for gate in gates]
    print_table(("gate", "outcome", "details"), rows, empty=empty, width=120)
