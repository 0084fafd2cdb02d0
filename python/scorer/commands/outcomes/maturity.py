"""``scorer outcomes maturity``: estimate how late the outcomes of each kind come."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.learn.experience_options import BundlePlaces
from scorer.commands.log_options import (
    LogOption,
    ReaderKeyFile,
    bundle_shelf,
    log_source,
    moment,
    reader_key,
)
from scorer.commands.output import print_json, print_table
from scorer.commands.progress import bytes_bar

if TYPE_CHECKING:
    from scorer.learn.labels.curves import MaturityCurve, MaturityCurves


def maturity(
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of the decisions.")],
    log: LogOption = None,
    bundles: BundlePlaces = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Kind of outcome; repeatable. Default: all kinds that were reported."),
    ] = None,
    segment: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Feature that is a category or a flag, or lane, bundle, action or decision; repeatable.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="JSON file for the curves.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML file for a page with plots.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Time of the first decision, such as 2026-11-01; default: all.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Time before which decisions are used.")] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Time as of which the logs are read; default: now.")
    ] = None,
    horizon_days: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            help="Longest delay to show, in days. Default: the age that a tenth of the decisions reached.",
        ),
    ] = None,
    threshold: Annotated[float, typer.Option(help="Value from which on a report is positive.")] = 0.5,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DECISION",
            help="Decision that ends the payment, such as decline, so that no outcome can come; repeatable.",
        ),
    ] = None,
    least: Annotated[
        int, typer.Option(min=1, help="Fewest reports with which a segment has a curve of its own.")
    ] = 50,
    clock: Annotated[
        str, typer.Option(help="Whether a delay ends when the report was received or when it occurred.")
    ] = "received",
    unproven: Annotated[
        str, typer.Option(help="Whether unproven reports are excluded or included.")
    ] = "exclude",
    private_key: ReaderKeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate how late the outcomes of each kind come.

    Decisions without an outcome count as not known at their age, so that young decisions do not make delays
    look shorter. Segments with few outcomes use the curve of all decisions.
    """
    from scorer.durable import write_atomically
    from scorer.learn.labels.curves import DAY_MS, estimate_curves, first_reports
    from scorer.learn.labels.histories import HistoryQuery, read_histories
    from scorer.learn.labels.page import maturity_page

    if clock not in {"received", "occurred"}:
        raise typer.BadParameter(f'--clock: "{clock}" is neither received nor occurred')
    if unproven not in {"exclude", "include"}:
        raise typer.BadParameter(f'--unproven: "{unproven}" is neither exclude nor include')
    as_of_ms, until_ms = _milliseconds("--as-of", as_of), _milliseconds("--until", until)
    query = HistoryQuery(
        checkpoint=checkpoint,
        as_of_ms=int(time.time() * 1000) if as_of_ms is None else as_of_ms,
        since_ms=_milliseconds("--since", since) or 0,
        until_ms=until_ms,
        segments=tuple(dict.fromkeys([*(segment or ()), *(["decision"] if without else [])])),
        clock="occurred" if clock == "occurred" else "received",
        unproven="include" if unproven == "include" else "exclude",
    )
    with bytes_bar("reading") as advance:
        histories = read_histories(
            log_source(log), bundle_shelf(bundles), query, advance=advance, reader_key=reader_key(private_key)
        )
    if without:
        import numpy as np

        histories = histories.take(~np.isin(histories.values_of("decision").astype(str), without))
        if "decision" not in (segment or ()):
            kept = tuple(one for one in histories.segments if one.name != "decision")
            histories = replace(histories, segments=kept)
    events = {one: first_reports(histories, one, threshold) for one in kind or histories.kinds}
    found = estimate_curves(
        histories,
        events,
        threshold=threshold,
        horizon_ms=None if horizon_days is None else round(horizon_days * DAY_MS),
        least=least,
    )
    if output is not None:
        found.write(output)
    if page is not None:
        page.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page, maturity_page(found).encode())
    if json:
        print_json(found.model_dump(mode="json"))
    else:
        _print(found)


def _milliseconds(option: str, text: str | None) -> int | None:
    given = moment(option, text)
    return None if given is None else round(given.timestamp() * 1000)


def _print(found: MaturityCurves) -> None:
    from scorer.learn.labels.page import LATE_LIMIT

    window = found.window
    typer.echo(f"{window.decisions:,} decisions of {window.checkpoint}, data {window.data_digest[:19]}\n")
    print_table(
        ("kind", "segment", "decisions", "reports", "positive", "get a report", "50 %", "95 %", "curve"),
        [_row(one) for one in found.curves],
        empty="no outcomes were reported",
    )
    for one in found.curves:
        if one.segment is None and one.late_share > LATE_LIMIT:
            typer.echo(
                f"{one.kind}: {one.late_share:.1%} of the reports come in the last fifth of the horizon, so "
                "later ones are likely; read a longer log"
            )
    if window.findings:
        print_table(("finding", "count"), [(k, f"{v:,}") for k, v in window.findings.items()], empty="")


def _row(one: MaturityCurve) -> tuple[str, ...]:
    from scorer.learn.labels.page import age_text

    ages = [age_text(one.quantiles_ms[at]) if at in one.quantiles_ms else "-" for at in ("0.5", "0.95")]
    return (
        one.kind,
        "all" if one.segment is None else f"{one.segment.name}={one.segment.value}",
        f"{one.decisions:,}",
        f"{one.reports:,}",
        f"{one.positive:,}",
        f"{one.arrives.value:.3%} [{one.arrives.low:.3%}, {one.arrives.high:.3%}]",
        *ages,
        "pooled" if one.pooled else "own",
    )
