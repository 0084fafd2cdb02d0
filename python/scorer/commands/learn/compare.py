"""``scorer learn compare``: versions of a checkpoint, week by week."""

from __future__ import annotations

import time
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
from scorer.commands.output import print_json, print_table, short
from scorer.commands.progress import work_bar

if TYPE_CHECKING:
    from scorer.learn.comparison.results import MetricValue, VersionComparison

_PER_CENT = 100
_SHOWN = 6


def compare(
    version: Annotated[
        list[str],
        typer.Argument(
            metavar="VERSION...",
            help="Digests of bundles, at least four digits each, from the oldest to the newest.",
        ),
    ],
    checkpoint: Annotated[str, typer.Option(help="Checkpoint of the decisions.")],
    log: LogOption = None,
    bundles: BundlePlaces = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE",
            help="Settings file (learn.toml) with [comparison], [labels] and [join]; default: all defaults.",
        ),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="Time as of which versions are compared; default: now.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Metric of the printed weeks; default: the first one.")
    ] = None,
    curves: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Maturity curves of labels; default: they are estimated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="JSON file for the result. If it has the result of the same versions, settings and "
            "--as-of, it is used without reading the logs.",
        ),
    ] = None,
    page: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML file for a page with charts.")
    ] = None,
    private_key: ReaderKeyFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare versions of a checkpoint over time: metrics of each week with matured labels.

    Every version is measured on what it served, and on all decisions of the log (backtest), with paired
    intervals between versions. Weeks whose labels have not matured are listed as not settled.
    """
    from scorer.durable import write_atomically
    from scorer.learn import settings
    from scorer.learn.comparison.page import comparison_page
    from scorer.learn.comparison.running import ComparisonJob, compare_versions
    from scorer.learn.comparison.versions import full_digests
    from scorer.learn.labels.curves import read_curves

    given = moment("--as-of", as_of)
    chosen = settings.load(config)
    shelf = bundle_shelf(bundles)
    job = ComparisonJob(
        checkpoint,
        full_digests(version, shelf.digests),
        int(time.time() * 1000) if given is None else round(given.timestamp() * 1000),
        chosen.comparison,
        chosen.labels,
        chosen.join,
    )
    with work_bar("comparing") as bar:
        found = compare_versions(
            log_source(log, chosen.source),
            shelf,
            job,
            curves=None if curves is None else read_curves(curves),
            cached=output,
            advance=(lambda step, share: bar(step, round(share * _PER_CENT), _PER_CENT))
            if bar is not None
            else (lambda _step, _share: None),
            reader_key=reader_key(private_key),
        )
    if output is not None:
        found.write(output)
    if page is not None:
        write_atomically(page, comparison_page(found, metric or "").encode())
    if json:
        print_json(found.document())
        return
    _print(found, metric)


def _print(found: VersionComparison, metric: str | None) -> None:
    main = metric or next(iter(found.metrics), "")
    if metric is not None and metric not in found.metrics:
        known = ", ".join(found.metrics) or "none, because no week is settled"
        raise typer.BadParameter(f'--metric: there is no metric "{metric}"; there are {known}')
    versions = [
        (str(at), one.name, short(one.digest), one.algorithm, short(one.data), one.refused or "compared")
        for at, one in enumerate(found.versions)
    ]
    print_table(("no.", "version", "digest", "algorithm", "data", "state"), versions, empty="", width=160)
    names = [f"{at} {one.name[:16]}" for at, one in enumerate(found.versions)]
    best = {one.week: one for one in found.best if one.metric == main}
    rows = []
    for at, week in enumerate(found.weeks):
        cells = []
        for place in range(len(found.versions)):
            one = found.of(place, at, "backtest")
            cells.append(_value(one.metrics.get(main)) if one is not None else "-")
        first = best.get(at)
        lead = "-" if first is None else f"{first.version}{'' if first.clear else ' (not clear)'}"
        state = f"{week.maturity:.0%}" if week.settled else week.reason
        rows.append((week.begin, f"{week.decisions:,}", f"{week.positive:,}", *cells, lead, state))
    typer.echo(f"\n{main or 'no metric'} of the backtest, by week")
    print_table(
        ("week", "decisions", "positive", *names, "best", "maturity"), rows, empty="no weeks", width=200
    )
    totals = []
    for place, name in enumerate(names):
        for basis in ("served", "backtest"):
            one = found.of(place, None, basis)
            if one is not None:
                cells = [_value(one.metrics.get(own)) for own in found.metrics[:_SHOWN]]
                totals.append((name, basis, f"{one.rows:,}", *cells, one.reason))
    typer.echo("\nall settled weeks")
    print_table(
        ("version", "basis", "decisions", *found.metrics[:_SHOWN], "missing because"),
        totals,
        empty="none",
        width=200,
    )
    pairs = [
        (f"{one.left} - {one.right}", one.metric, str(one.weeks), _interval(one.difference))
        for one in found.pairs
    ]
    typer.echo("\npaired differences on the same decisions, 95 % each")
    print_table(("versions", "metric", "weeks", "difference"), pairs, empty="none", width=160)
    for reason, count in found.left_out.items():
        typer.echo(f"{count:,} left out: {reason}")
    for note in found.notes:
        typer.echo(note)


def _value(one: MetricValue | None) -> str:
    return "-" if one is None else f"{one.value:,.4g}"


def _interval(one: MetricValue) -> str:
    bounds = "" if one.low is None or one.high is None else f" ({one.low:+,.3g} to {one.high:+,.3g})"
    return f"{one.value:+,.4g}{bounds}"
