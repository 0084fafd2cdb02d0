"""``scorer learn guardrails``: check logged decisions against the guardrails, and price the caps."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.cli import TYPER_OPTIONS
from scorer.commands.output import print_json, print_table
from scorer.commands.rule_options import LIST_OPTION, given_lists

if TYPE_CHECKING:
    from scorer.learn.guardrails.settings import GuardrailSettings

app = typer.Typer(
    help="Check logged decisions against the guardrails; solve and control the prices of caps.",
    no_args_is_help=True,
    **TYPER_OPTIONS,
)

Logged = Annotated[Path, typer.Argument(metavar="EXPERIENCE", help="File that `scorer learn join` wrote.")]
OfBundle = Annotated[Path, typer.Option("--bundle", "-b", metavar="DIR", help="Directory of the bundle.")]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="Settings file (learn.toml).")
]
Caps = Annotated[
    list[str] | None,
    typer.Option(
        "--cap", metavar="NAME=LIMIT", help="Limit of a cap; repeatable. Default: the caps of learn.toml."
    ),
]
State = Annotated[
    Path, typer.Option("--state", metavar="FILE", help="File with the state of the controller.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def check(
    experience: Logged,
    bundle: OfBundle,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            metavar="FILE",
            help="Rule set to audit with; default: that of learn.toml, else the bundle's.",
        ),
    ] = None,
    rule_list: Annotated[list[str] | None, LIST_OPTION] = None,
    complete: Annotated[
        bool,
        typer.Option(
            "--complete", help="Also report actions that were not eligible although no rule excludes them."
        ),
    ] = False,
    config: Config = None,
    json: Json = False,
) -> None:
    """Check eligible sets against rules, and pmfs, propensities and floors. Exit code 1 with findings."""
    from dataclasses import asdict

    from scorer.bundle.rules import read_rules
    from scorer.learn import settings
    from scorer.learn.errors import DataError
    from scorer.learn.experience_files import read
    from scorer.learn.guardrails.audit import audit

    if rule_list and rules is None:
        raise DataError("--list is for the rules of --rules; give that file, or remove the list")
    chosen = settings.load(config).guardrails
    logged = read(experience)
    given = chosen.read_rules() if rules is None else read_rules(rules, given_lists(rule_list))
    findings = audit(logged, bundle, given, complete=complete or chosen.complete)
    if json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(
            ("rule", "finding", "decisions", "first", "detail", "source"),
            [
                (
                    one.rule or "-",
                    one.what,
                    str(one.rows),
                    one.example,
                    ", ".join(f"{name}: {count}" for name, count in one.detail.items()),
                    one.source,
                )
                for one in findings
            ],
            empty=f"{len(logged)} decisions, no findings",
        )
    if findings:
        raise typer.Exit(1)


@app.command()
def solve(
    experience: Logged,
    bundle: OfBundle,
    cap: Caps = None,
    config: Config = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="FILE", help="File for the initial state of the controller."),
    ] = None,
    json: Json = False,
) -> None:
    """Solve for the prices at which the bundle's policy meets its caps on these decisions."""
    from dataclasses import asdict

    from scorer.learn import settings
    from scorer.learn.experience_files import read
    from scorer.learn.guardrails.caps import solve_bundle
    from scorer.learn.guardrails.controller import ControllerState

    limits = _limits(cap, settings.load(config).guardrails)
    logged = read(experience)
    duals = solve_bundle(bundle, logged.context, logged.eligible, limits)
    if state is not None:
        ControllerState.start(duals, int(logged.time_ms[-1]) + 1).write(state)
    if json:
        print_json(asdict(duals))
        return
    rows = zip(duals.attributes, duals.limits, duals.unpriced, duals.use, duals.prices, strict=True)
    print_table(
        ("cap", "limit", "use without", "use", "price"),
        [(name, *(f"{value:.6g}" for value in values)) for name, *values in rows],
        empty="",
    )
    typer.echo(f"expected reward {duals.value:.4f}; without caps {duals.unpriced_value:.4f}")
    typer.echo(_revise(bundle, dict(zip(duals.attributes, duals.prices, strict=True))))


@app.command()
def control(
    experience: Logged,
    state: State,
    bundle: OfBundle,
    config: Config = None,
    json: Json = False,
) -> None:
    """Update the prices by the use since the last step. Exit code 1 while a cap is outside its band."""
    from dataclasses import asdict

    from scorer.learn import settings
    from scorer.learn.experience_files import read
    from scorer.learn.guardrails.controller import ControllerState

    chosen = settings.load(config).guardrails.controller
    before = ControllerState.read(state)
    after = before.follow(read(experience), bundle, chosen)
    after.write(state)
    if json:
        print_json([asdict(cap) for cap in after.caps])
    else:
        print_table(
            ("cap", "limit", "use of the period", "price was", "price", ""),
            [
                (
                    new.attribute,
                    f"{new.limit:g}",
                    f"{new.mean():.6g}",
                    f"{old.price:.6g}",
                    f"{new.price:.6g}",
                    "saturated" if new.saturated else "violated" if new.violated(chosen) else "",
                )
                for old, new in zip(before.caps, after.caps, strict=True)
            ],
            empty="no cap is controlled",
        )
        typer.echo(_revise(bundle, {cap.attribute: cap.price for cap in after.caps}))
    if any(one.saturated or one.violated(chosen) for one in after.caps):
        raise typer.Exit(1)


def _limits(given: list[str] | None, chosen: GuardrailSettings) -> dict[str, float]:
    from scorer.learn.errors import DataError

    limits = {cap.attribute: cap.limit for cap in chosen.caps}
    if given:
        limits = {}
    for one in given or []:
        name, _, value = one.partition("=")
        try:
            limits[name] = float(value)
        except ValueError:
            raise DataError(f'--cap "{one}" is not NAME=LIMIT, such as challenge=0.3') from None
    return limits


def _revise(bundle: Path, prices: dict[str, float]) -> str:
    options = " ".join(f"--cap {name}={price:.6g}" for name, price in prices.items())
    return f"next: scorer bundle revise {bundle} {options} --output NEW"
