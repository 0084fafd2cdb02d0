"""``scorer learn schedule``: the loop at its times."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from scorer.commands.output import print_json, print_table


def schedule(
    workspace: Annotated[
        Path, typer.Argument(metavar="WORKSPACE", help="Directory to work in; made if needed.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", metavar="FILE", help="learn.toml; default: every default."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Do what is due, each job once, and end: for a cron of your own.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show every job's last and next run, and end.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run each job of `[schedule]` at its time, as a process of its own, until SIGTERM or SIGINT.

    A job never runs twice at once; runs that were missed are made up for once. What was done is known
    from the workspace, so the schedule may be stopped and started at any time.
    """
    from scorer.learn import settings
    from scorer.learn.schedule import scheduler

    chosen = settings.load(config).schedule
    run = scheduler.Processes(workspace, None if config is None else config.resolve())
    if status:
        _show(scheduler.read_state(workspace), scheduler.next_times(chosen, datetime.now(UTC)), json=json)
        return
    if once:
        done = scheduler.run_due(chosen, workspace, run, datetime.now(UTC))
        if json:
            print_json({job: {"code": ran.code, "says": ran.says} for job, ran in done.items()})
        else:
            typer.echo(
                "\n".join(f"{job}: exit code {r.code}: {r.says}" for job, r in done.items())
                or "nothing is due"
            )
        raise typer.Exit(max((ran.code for ran in done.values()), default=0))
    plan = scheduler.Schedule(chosen, workspace, run)

    def stop(*_: object) -> None:
        plan.stop()
        run.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for job, when in scheduler.next_times(chosen, datetime.now(UTC)).items():
        typer.echo(f"{job}: {chosen.jobs[job]}, next {when}")
    plan.start()


def _show(state: Any, upcoming: Any, *, json: bool) -> None:
    if json:
        print_json({job: {**state.get(job, {}), "next": str(when)} for job, when in upcoming.items()})
        return
    rows = [
        (
            job,
            state.get(job, {}).get("state", "never ran"),
            state.get(job, {}).get("ended", "-"),
            str(when),
            state.get(job, {}).get("says", ""),
        )
        for job, when in upcoming.items()
    ]
    print_table(("job", "state", "ended", "next", "says"), rows, empty="no jobs")
