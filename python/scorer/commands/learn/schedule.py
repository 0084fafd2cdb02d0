"""``scorer learn schedule``: run the jobs of `[schedule]` at their times."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.commands.output import print_json, print_table

if TYPE_CHECKING:
    from scorer.learn.schedule_settings import Job


def schedule(
    workspace: Annotated[
        Path, typer.Argument(metavar="WORKSPACE", help="Directory of the loop; created if needed.")
    ],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Settings file (learn.toml); default: all defaults."
        ),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Run the jobs that are due, each once, and exit.")
    ] = False,
    status: Annotated[
        bool, typer.Option("--status", help="Show the last and the next run of each job, and exit.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run each job of `[schedule]` at its time, in a separate process, until SIGTERM or SIGINT.

    This command is for machines without a scheduler. cron, a systemd timer or a Kubernetes CronJob can call
    `scorer learn run` instead. One job runs at a time. After missed runs, a job runs once. The command may be
    stopped and started at any time.
    """
    from scorer.learn import settings
    from scorer.learn.schedule.jobs import JobProcesses, Schedule, next_times, read_state

    chosen = settings.load(config).schedule
    if status:
        _show(read_state(workspace), next_times(chosen, datetime.now(UTC)), json=json)
        return
    processes = JobProcesses(workspace, None if config is None else config.resolve())
    plan = Schedule(chosen, workspace, processes)

    def stop(*_: object) -> None:
        plan.stop()
        processes.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if once:
        results = plan.run_due()
        if json:
            print_json({job: {"code": one.code, "says": one.message} for job, one in results.items()})
        else:
            lines = [f"{job}: exit code {one.code}: {one.message}" for job, one in results.items()]
            typer.echo("\n".join(lines) or "nothing is due")
        raise typer.Exit(max((one.code for one in results.values()), default=0))
    for job, at in next_times(chosen, datetime.now(UTC)).items():
        typer.echo(f"{job}: {chosen.jobs[job]}, next {at}")
    plan.run()


def _show(state: Mapping[str, Mapping[str, Any]], upcoming: Mapping[Job, datetime], *, json: bool) -> None:
    jobs = {job: {**state.get(job, {}), "next": str(at)} for job, at in upcoming.items()}
    if json:
        print_json(jobs)
        return
    rows = [
        (job, one.get("state", "never ran"), one.get("ended", "-"), one["next"], one.get("says", ""))
        for job, one in jobs.items()
    ]
    print_table(("job", "state", "ended", "next", "last message"), rows, empty="no jobs")
