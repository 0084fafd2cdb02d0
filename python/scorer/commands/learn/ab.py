"""``scorer learn ab``: bundles compared on live traffic, by lanes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.control import Address, control_address
from scorer.commands.output import print_json, print_table, short, when

if TYPE_CHECKING:
    from collections.abc import Callable

    from scorer.bundle import Bundle
    from scorer.learn.ab.plan import AbPlan
    from scorer.learn.ab.readout import AbReport
    from scorer.learn.experience import Experience

app = typer.Typer(help="Compare bundles on live traffic.", no_args_is_help=True, **TYPER_OPTIONS)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Of the comparison: plan, readings, end.")]
Config = Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="learn.toml.")]
Joined = Annotated[
    Path | None,
    typer.Option(
        "--experience", "-e", metavar="FILE", help="What `scorer learn join` wrote; or name the log."
    ),
]
Log = Annotated[
    Path | None, typer.Option("--log", "-l", metavar="DIR", help="The decision log, joined as of now.")
]
Bundles = Annotated[
    list[Path] | None,
    typer.Option(
        "--bundles", "--registry", "-b", metavar="DIR", help="Where the bundles are; default: the registry."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Why; kept in the server's log and the plan.")]


@app.command()
def start(
    directory: Directory,
    checkpoint: Annotated[str, typer.Option("--checkpoint", help="Where.")],
    control: Annotated[str, typer.Option("--control", metavar="BUNDLE", help="What is served without it.")],
    variant: Annotated[
        list[str],
        typer.Option("--variant", metavar="LANE=BUNDLE:SHARE", help="What is compared; repeat for more."),
    ],
    config: Config = None,
    address: Address = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """Set the lanes and keep the plan: from now on every shopper stays in one of them."""
    from scorer.commands.control import parse_lane
    from scorer.learn import settings
    from scorer.learn.ab import running

    lanes = [parse_lane(text) for text in variant]
    plan = running.start(
        directory,
        control_address(address),
        checkpoint,
        control,
        [(lane.name, lane.bundle, lane.share) for lane in lanes],
        settings.load(config).ab,
        reason=reason,
    )
    if json:
        print_json(plan.model_dump(mode="json"))
        return
    for arm in plan.arms:
        typer.echo(f"{arm.lane}: {short(arm.bundle)}, share {arm.share:g}")


@app.command()
def read(
    directory: Directory,
    experience: Joined = None,
    log: Log = None,
    bundles: Bundles = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """Read the comparison. As often as you like: the intervals hold at all readings together."""
    from scorer.learn.ab.plan import AbPlan

    plan = AbPlan.read(directory)
    found = _read(plan, experience, log, bundles, config)
    if json:
        print_json(found.as_dict())
    else:
        _print(plan, found)


@app.command()
def watch(
    directory: Directory,
    experience: Joined = None,
    log: Log = None,
    bundles: Bundles = None,
    config: Config = None,
    address: Address = None,
    every: Annotated[float, typer.Option("--every", min=1, help="Seconds between readings.")] = 300.0,
    once: Annotated[bool, typer.Option("--once", help="One reading.")] = False,
    json: Json = False,
) -> None:
    """Read again and again; on harm set the lanes back to the control and write down why."""
    from scorer.errors import ScorerError
    from scorer.learn.ab import running
    from scorer.learn.ab.plan import AbPlan

    plan = AbPlan.read(directory)
    target = control_address(address)
    while True:
        try:
            ended = running.read_end(directory) or running.watch(
                directory, target, _read(plan, experience, log, bundles, config)
            )
        except ScorerError as error:
            if once:
                raise
            # A log that is not there yet, a server that restarts: the next reading may fare better.
            typer.echo(f"not read: {error}", err=True)
            ended = None
        if ended is not None or once:
            break
        time.sleep(every)
    if json:
        print_json(ended)
    else:
        typer.echo("goes on" if ended is None else f"{when(ended['at_ms'])} {ended['how']}: {ended['why']}")


@app.command()
def stop(
    directory: Directory,
    keep: Annotated[
        str, typer.Option("--keep", metavar="LANE", help="Whose bundle gets all traffic.")
    ] = "control",
    address: Address = None,
    reason: Reason = "",
    json: Json = False,
) -> None:
    """End the comparison: all traffic to one lane's bundle."""
    from scorer.learn.ab import running

    ended = running.end(
        directory, control_address(address), how="stopped", why=reason or "by hand", lane=keep
    )
    if json:
        print_json(ended)
    else:
        typer.echo(f"{ended['how']}: {ended['lane']} ({short(ended['bundle'])}) has all traffic")


def _read(
    plan: AbPlan, experience: Path | None, log: Path | None, bundles: list[Path] | None, config: Path | None
) -> AbReport:
    from scorer.learn.ab.readout import read as do

    found, shelf = _experience(plan, experience, log, bundles, config)
    return do(plan, found, shelf)


def _experience(
    plan: AbPlan, experience: Path | None, log: Path | None, bundles: list[Path] | None, config: Path | None
) -> tuple[Experience, Callable[[str], Bundle | None]]:
    from scorer.commands.log_options import bundle_shelf, log_directory
    from scorer.learn import experience_files, settings

    shelf = bundle_shelf(bundles)
    if experience is not None:
        return experience_files.read(experience), shelf.get
    from scorer.learn.join.joining import join

    joined = join(
        log_directory(log),
        shelf,
        settings.load(config).join,
        as_of_ms=time.time_ns() // 1_000_000,
        checkpoint=plan.checkpoint,
    )
    return joined.experience, shelf.get


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
        ("lane", "bundle", "share", "shoppers", "decisions", "missing", "reward"), rows, empty="nothing"
    )
    for one in found.differences:
        typer.echo(
            f"{one.lane} - {plan.control.lane}: {one.value * 100:+.2f} points, from {one.low * 100:+.2f} to "
            f"{one.high * 100:+.2f} at all readings together: {one.verdict}"
        )
        if one.missing.low > 0 or one.missing.high < 0:
            typer.echo(
                "  outcomes go missing unlike in the two lanes: the rewards are not comparable", err=True
            )
    _print_checks(found.ratio.mismatch, found.ratio.evidence, found.left_out)


def _print_checks(mismatch: bool, evidence: float, left_out: Any) -> None:
    sample = "MISMATCH: assignment is broken, trust nothing above" if mismatch else "as planned"
    typer.echo(f"sample ratio: {sample} (evidence {evidence:.3g})")
    for reason, count in left_out.items():
        typer.echo(f"left out: {count:,} {reason}")
