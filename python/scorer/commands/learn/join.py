"""``scorer learn join``: join decisions with their outcomes, from the logs to a Parquet file."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.learn.experience_options import BundlePlaces, Checkpoint
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
    from scorer.learn.join.corrections import Correction
    from scorer.learn.join.findings import JoinFinding
    from scorer.learn.join.joining import Joined
    from scorer.learn.join.rates import Rate

_SHOWN = 10


def join(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Parquet file to write.")],
    log: LogOption = None,
    bundles: BundlePlaces = None,
    checkpoint: Checkpoint = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Settings file (learn.toml); default: all defaults."
        ),
    ] = None,
    as_of: Annotated[
        str | None,
        typer.Option(
            help="Time as of which the log is joined, such as 2026-11-01T09:30+01:00; UTC without an offset. "
            "Default: now."
        ),
    ] = None,
    since: Annotated[
        Path | None,
        typer.Option(
            "--since", metavar="FILE", help="File of an earlier join. The command reports the differences."
        ),
    ] = None,
    corrections: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Parquet file for the corrections. Requires --since."),
    ] = None,
    private_key: ReaderKeyFile = None,
    strict: Annotated[bool, typer.Option("--strict", help="Write nothing if there are problems.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Join decisions with their outcomes, as known at a moment.

    A decision whose outcome is still expected is in flight. A decision whose outcome did not arrive within
    the maturity window is missing. Neither counts as a decline. All problems of the logs are reported.
    """
    from scorer.learn import experience_files, settings
    from scorer.learn.errors import DataError
    from scorer.learn.join.corrections import corrections as compare
    from scorer.learn.join.corrections import write as write_corrections
    from scorer.learn.join.joining import join as join_log

    if corrections is not None and since is None:
        raise typer.BadParameter("--corrections requires --since with the file of an earlier join")
    given = moment("--as-of", as_of)
    as_of_ms = int(time.time() * 1000) if given is None else round(given.timestamp() * 1000)
    chosen = settings.load(config)
    section = chosen.join
    earlier = None if since is None else experience_files.read(since)
    with bytes_bar("joining") as advance:
        joined = join_log(
            log_source(log, chosen.source),
            bundle_shelf(bundles),
            section,
            as_of_ms=as_of_ms,
            checkpoint=checkpoint,
            advance=advance,
            reader_key=reader_key(private_key),
        )
    changed = None if earlier is None else compare(earlier, joined.experience)
    faults = [one for one in joined.findings if one.effect != "told"]
    refused = strict and bool(faults)
    if not refused:
        experience_files.write(joined.experience, output, joined.notes(section))
        if corrections is not None and changed is not None:
            write_corrections(changed, corrections)
    if json:
        print_json({"output": None if refused else str(output), **_summary(joined, changed)})
    else:
        _print(joined, changed, output)
    if refused:
        names = ", ".join(f"{one.count} {one.name}" for one in faults)
        raise DataError(f"--strict: nothing was written: {names}; repair the logs, or join without --strict")


def _summary(joined: Joined, changed: Sequence[Correction] | None) -> dict[str, Any]:
    from dataclasses import asdict

    from scorer.learn.join.corrections import counts

    said: dict[str, Any] = {
        "checkpoint": joined.checkpoint,
        "as_of_ms": joined.as_of_ms,
        "catalogue": joined.catalogue,
        "decisions": len(joined.experience),
        "bundles": joined.experience.bundles,
        "families": [rate.as_dict() for rate in joined.families],
        "actions": [rate.as_dict() for rate in joined.actions],
        "dependence": None if joined.dependence is None else asdict(joined.dependence),
        "sources": joined.sources,
        "findings": [asdict(one) for one in joined.findings],
    }
    if changed is not None:
        said["corrections"] = {"counts": counts(changed), "rows": [asdict(one) for one in changed]}
    return said


def _print(joined: Joined, changed: Sequence[Correction] | None, output: Path) -> None:
    from scorer.learn.join.corrections import MEANINGS, counts

    moment_text = datetime.fromtimestamp(joined.as_of_ms / 1000, UTC).isoformat(timespec="seconds")
    typer.echo(
        f"{output}: {len(joined.experience):,} decisions of {joined.checkpoint} as of {moment_text}, "
        f"{len(joined.experience.bundles)} bundles, {len(joined.experience.actions)} actions"
    )
    columns = ("", "decisions", "settled", "in flight", "missing", "join rate", "reward")
    typer.echo("\nper family")
    print_table(columns, [_row(rate) for rate in joined.families], empty="none")
    typer.echo("per action, the most frequent first")
    most = sorted(joined.actions, key=lambda rate: (-rate.decisions, rate.name))
    print_table(columns, [_row(rate) for rate in most[:_SHOWN]], empty="none")
    if len(most) > _SHOWN:
        typer.echo(f"and {len(most) - _SHOWN} more; --json lists them\n")
    if joined.dependence is not None:
        found = joined.dependence
        typer.echo(
            f"missing outcomes by action: chi-squared {found.statistic:.1f} on {found.freedom} degrees of "
            f"freedom, p {found.p:.2g}, Cramer's V {found.cramers_v:.3f}\n"
        )
    sources = ", ".join(f"{name} {count:,}" for name, count in joined.sources.items())
    typer.echo(f"outcomes by source: {sources or 'none'}\n")
    print_table(
        ("finding", "count", "effect", "rule", "for example"),
        [_finding(one) for one in joined.findings],
        empty="no findings",
    )
    if changed is not None:
        typer.echo("compared with the earlier join")
        rows = [(kind, str(count), MEANINGS[kind]) for kind, count in counts(changed).items()]
        print_table(("correction", "count", "meaning"), rows, empty="no corrections")


def _row(rate: Rate) -> tuple[str, ...]:
    return (
        rate.name,
        f"{rate.decisions:,}",
        f"{rate.settled:,}",
        f"{rate.in_flight:,}",
        f"{rate.missing:,}",
        f"{rate.rate:.2%}" if rate.matured else "-",
        f"{rate.mean_reward:.2%}" if rate.settled else "-",
    )


def _finding(one: JoinFinding) -> tuple[str, ...]:
    return one.name, f"{one.count:,}", one.effect, one.rule, "; ".join(one.examples[:2])
