"""``scorer drift``: count logs, look for drift, and show what was found."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table

if TYPE_CHECKING:
    from scorer.drift.monitor import DriftAlert

app = typer.Typer(help="Find drift in decision logs.", no_args_is_help=True, **TYPER_OPTIONS)

State = Annotated[Path, typer.Argument(metavar="STATE", help="File of the state; created by `run`.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def run(
    state: State,
    log: Annotated[
        list[Path],
        typer.Option("--log", "-l", metavar="DIR", help="Decision log of a server; repeatable."),
    ],
    bundles: Annotated[
        list[Path],
        typer.Option("--bundles", "-b", metavar="DIR", help="Bundles, or a registry; repeatable."),
    ],
    checkpoint: Annotated[
        list[str], typer.Option("--checkpoint", metavar="NAME", help="Checkpoint to monitor; repeatable.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="TOML file with the keys of [drift]."),
    ] = None,
    outcome: Annotated[
        str | None,
        typer.Option(help="Kind of outcome that counts. Default: fraud for scores, authorised for actions."),
    ] = None,
    matured_hours: Annotated[
        float | None, typer.Option(min=0.1, max=2160, help="Hours after which an outcome is final.")
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(help="Time of the last look, such as 2026-11-02T03:00; UTC. Default: now."),
    ] = None,
    every: Annotated[
        float | None,
        typer.Option(min=1, max=86_400, metavar="SECONDS", help="Repeat at this interval; default: once."),
    ] = None,
    json: Json = False,
) -> None:
    """Count the new records of the logs, judge each hour that is over, and print new alerts.

    A run continues where the last one ended, at whatever moment it was killed. Exit codes: 0 done, 1 a log
    or the state could not be read.
    """
    from scorer.commands.log_options import moment
    from scorer.drift.counting import BundleFacts, CheckpointPlan
    from scorer.drift.monitor import Monitor
    from scorer.drift.settings import load_settings
    from scorer.drift.state import DriftState
    from scorer.errors import LogError
    from scorer.log.bundles import bundle_directories
    from scorer.log.source.directories import log_directories

    at = moment("--until", until)
    settings = load_settings(config)
    kinds = ("score", "action")
    plan = CheckpointPlan(
        outcomes={"score": outcome or "fraud", "action": outcome or "authorised"},
        segments=settings.segments,
        matured_hours=None if matured_hours is None else dict.fromkeys(kinds, matured_hours),
    )
    source = log_directories(log)
    directories = bundle_directories(bundles)
    monitor = Monitor(
        DriftState(state),
        lambda: source.logs,
        lambda: dict.fromkeys(checkpoint, plan),
        BundleFacts(lambda digest: directories[digest]),
        settings,
        now=lambda: time.time_ns() // 1_000 if at is None else round(at.timestamp() * 1e6),
    )
    while True:
        result = monitor.read()
        found = monitor.look()
        if json:
            print_json({"records": result.records, "alerts": [_document(one) for one in found]})
        else:
            typer.echo(f"{result.records:,} records read, {len(found)} new alerts")
            for one in found:
                typer.echo(f"alert {one.id} {one.checkpoint} {one.lane}: {one.summary}")
        if result.problems:
            raise LogError("; ".join(result.problems))
        if every is None:
            break
        time.sleep(every)


@app.command()
def status(
    state: State,
    checkpoint: Annotated[str, typer.Option(metavar="NAME", help="Show this checkpoint; default: all.")] = "",
    every: Annotated[
        bool, typer.Option("--all", help="Show all quantities, not only the 20 nearest to their thresholds.")
    ] = False,
    json: Json = False,
) -> None:
    """Show the latest look of each lane, and the latest alerts."""
    from scorer.drift.monitor import alerts, latest
    from scorer.drift.monitor import moment as time_of
    from scorer.drift.state import DriftState

    file = DriftState(state)
    looks, found = latest(file, checkpoint), alerts(file, checkpoint, limit=20)
    if json:
        print_json(
            {
                "lanes": [{**lane._asdict(), **content} for lane, content in looks],
                "alerts": [_document(one) for one in found],
            }
        )
        return
    for lane, content in looks:
        typer.echo(f"{lane.checkpoint}, lane {lane.lane}, {time_of(content['hour']):%Y-%m-%d %H:%M} UTC")
        rows = sorted(content["findings"], key=_nearness)
        print_table(
            ("quantity", "window", "rows", "PSI", "threshold", "state"),
            [_row(one) for one in (rows if every else rows[:20])],
            empty="no quantity was counted yet",
        )
    rows = [
        (str(one.id), f"{one.opened:%Y-%m-%d %H:%M}", one.checkpoint, one.lane, one.summary) for one in found
    ]
    print_table(("alert", "opened", "checkpoint", "lane", "cause"), rows, empty="no alerts")


def _nearness(one: Mapping[str, Any]) -> float:
    return -(one["psi"] or 0.0) / max(one["threshold"] or 1.0, 1e-12)


def _row(one: Mapping[str, Any]) -> Sequence[str]:
    state = "shifted" if one["shifted"] else "stable" if one["judged"] else "not judged"
    window = "week, reference" if one["hours"] == 0 else f"{one['hours']} h"
    shown = [f"{value:.4f}" if value is not None else "-" for value in (one["psi"], one["threshold"])]
    return (one["quantity"], window, f"{one['rows']:,}", *shown, state)


def _document(alert: DriftAlert) -> dict[str, Any]:
    return {
        "id": alert.id,
        "checkpoint": alert.checkpoint,
        "lane": alert.lane,
        "opened": alert.opened.astimezone(UTC).isoformat(),
        "last": alert.last.astimezone(UTC).isoformat(),
        "quantities": {name: _text(at) for name, at in alert.quantities.items()},
        "summary": alert.summary,
        "evidence": dict(alert.evidence),
    }


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat()
