"""``scorer learn overlay``: fit the overlay on decisions after the live oracle's training."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.learn.experience_options import (
    BundlePlaces,
    Checkpoint,
    ExperienceFile,
    read_experience,
)
from scorer.commands.log_options import LogOption
from scorer.commands.output import print_json, print_table

if TYPE_CHECKING:
    from scorer.learn.overlay.stream import Fitted

_SHOWN = 8


def overlay(
    bundle: Annotated[
        Path, typer.Option("--bundle", metavar="DIR", help="Directory of the live action bundle.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="overlay.json to write, for `scorer bundle revise`."
        ),
    ],
    experience: ExperienceFile = None,
    log: LogOption = None,
    bundles: BundlePlaces = None,
    checkpoint: Checkpoint = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory for what is read of the logs: the next run reads only what is new."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", metavar="FILE", help="Settings file (learn.toml); default: all defaults."
        ),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(help="Time (UTC) after the oracle's training decisions; default: from its lineage."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fit the overlay on decisions that the live oracle has not learned from.

    The overlay has logit offsets per segment and action factor, fitted by discounted Bayesian updates that
    account for late outcomes. A guard switches off segments that make predictions worse. Each run fits all
    decisions again, and with --cache reads only new records of the logs; run it every few minutes. Exit code
    3: there is no overlay, and no file was written.
    """
    from datetime import UTC

    from scorer.bundle.models import to_json
    from scorer.commands.log_options import bundle_shelf
    from scorer.learn import settings
    from scorer.learn.errors import DataError
    from scorer.learn.overlay.live import oracle_scores, untaught_since
    from scorer.learn.overlay.stream import fit
    from scorer.learn.training.tasks import read_task

    chosen, task = settings.load(config), read_task(bundle)
    logged = read_experience(
        experience, log, bundle_shelf(bundles), chosen, checkpoint=checkpoint, cache=cache
    )
    if logged.actions != tuple(action.id for action in task.actions):
        raise DataError(f"{experience or 'the logs'}: the actions are not those of {bundle}")
    now = max(int(logged.time_ms.max()), int(logged.settled_ms.max())) + 1 if len(logged) else 0
    start = (
        untaught_since(bundle, logged) if since is None else int(since.replace(tzinfo=UTC).timestamp() * 1e3)
    )
    scores = oracle_scores(bundle, logged)
    scores[logged.time_ms < start] = float("nan")
    found = fit(logged, scores, task, chosen.overlay, now)
    learner = found.learner
    if found.spec is not None:
        output.write_bytes(to_json(found.spec))
    if json:
        print_json(
            {
                "overlay": None if found.spec is None else str(output),
                "outcomes": learner.outcomes,
                "gain_nats": learner.gain,
                "switched_off": learner.guard.switched,
                "segments_off": list(learner.off),
                "since_ms": start,
            }
        )
    else:
        _print(found, output)
    if found.spec is None:
        raise typer.Exit(3)


def _print(found: Fitted, output: Path) -> None:
    learner, delays = found.learner, found.delays
    typer.echo(
        f"{learner.outcomes:,} outcomes after the oracle's training; the overlay improves their "
        f"log-likelihood by {learner.gain:,.1f} nats"
    )
    print_table(
        ["family", "counted after", "failures known", "successes known"],
        [
            [name, f"{delays.age_ms[i] / 60_000:,.0f} min", f"{bad:.0%}", f"{good:.0%}"]
            for i, (name, (bad, good)) in enumerate(zip(delays.families, delays.known, strict=True))
        ],
        empty="no families",
    )
    if learner.off:
        typer.echo(f"switched off, because their predictions were worse: {', '.join(learner.off)}")
    if found.spec is None:
        typer.echo("no overlay: there is no outcome yet, or the guard has switched it off")
        return
    flat = [
        (abs(value), where, factor, level, value)
        for where, offsets in [("everywhere", found.spec.everywhere), *found.spec.segments.items()]
        for factor, levels in offsets.items()
        for level, value in levels.items()
    ]
    print_table(
        [found.spec.segment, "action", "offset, log-odds"],
        [
            [where, f"{f}={level}", f"{value:+.2f}"]
            for _, where, f, level, value in sorted(flat)[::-1][:_SHOWN]
        ],
        empty="no offsets",
    )
    typer.echo(f"{output}: {len(flat)} offsets; the table shows the largest")
