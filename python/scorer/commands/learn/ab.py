"""``scorer learn ab``: lanes compared by the outcomes of their decisions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.learn.experience_options import BundlePlaces, read_experience
from scorer.commands.log_options import LogOption
from scorer.commands.output import print_json, print_table, short

if TYPE_CHECKING:
    from scorer.learn.ab.readout import AbPlan, AbReport

HARM = 3
"""Exit code if a variant is worse than the control."""


def ab(
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="Checkpoint of the lanes.")],
    control: Annotated[
        str,
        typer.Option("--control", metavar="LANE=BUNDLE:SHARE", help="Lane, digest and share of the control."),
    ],
    variant: Annotated[
        list[str],
        typer.Option(
            "--variant", metavar="LANE=BUNDLE:SHARE", help="Lane, digest and share of a variant; repeatable."
        ),
    ],
    since: Annotated[
        str,
        typer.Option(
            "--since", help="Time since which these lanes have been active, ISO 8601, UTC without an offset."
        ),
    ],
    experience: Annotated[
        Path | None,
        typer.Option("--experience", "-e", metavar="FILE", help="File that `scorer learn join` wrote."),
    ] = None,
    log: LogOption = None,
    bundles: BundlePlaces = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file (learn.toml).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare lanes by the outcomes of their decisions; exit code 3 if a variant does harm.

    Answer lanes are set by a RELEASE with a holdout, or by `scorer lanes`. The intervals hold at all interim
    analyses together, so the command can run as often as needed.
    """
    from scorer.commands.control import parse_lane
    from scorer.commands.log_options import bundle_shelf, moment
    from scorer.learn import settings
    from scorer.learn.ab.readout import AbPlan, Arm, read

    chosen, start, shelf = settings.load(config), moment("--since", since), bundle_shelf(bundles)
    assert start is not None  # noqa: S101 - the option is required
    arms = tuple(Arm(lane.name, lane.bundle, lane.share) for lane in map(parse_lane, [control, *variant]))
    plan = AbPlan(checkpoint, arms, round(start.timestamp() * 1000), chosen.ab)
    decisions = read_experience(experience, log, shelf, chosen, checkpoint=checkpoint)
    found = read(plan, decisions, shelf.get)
    if json:
        print_json(found.as_dict())
    else:
        _print(plan, found)
    if found.harm:
        raise typer.Exit(HARM)


def _print(plan: AbPlan, found: AbReport) -> None:
    rows = [
        (
            lane.lane,
            short(lane.bundle),
            f"{lane.share:g}",
            f"{lane.shoppers:,}",
            f"{lane.decisions:,}",
            f"{lane.missing:,}",
            f"{lane.rate:.2%}",
        )
        for lane in found.lanes
    ]
    print_table(
        ("lane", "bundle", "share", "shoppers", "decisions", "missing", "reward"), rows, empty="no lanes"
    )
    for one in found.differences:
        typer.echo(
            f"{one.lane} - {plan.arms[0].lane}: {one.value * 100:+.2f} points, from {one.low * 100:+.2f} to "
            f"{one.high * 100:+.2f} at all interim analyses together: {one.verdict}"
        )
        if one.missing.low > 0 or one.missing.high < 0:
            typer.echo(
                "  the two lanes miss different shares of outcomes: rewards are not comparable", err=True
            )
    sample = (
        "MISMATCH: the assignment is broken, so the results above are not valid"
        if found.ratio.mismatch
        else "as planned"
    )
    typer.echo(f"sample ratio: {sample} (evidence {found.ratio.evidence:.3g})")
    for reason, count in found.left_out.items():
        typer.echo(f"left out: {count:,} {reason}")
