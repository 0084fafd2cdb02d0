"""``scorer learn evaluate``: what a bundle would have earned on logged decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scorer.commands.output import print_json, print_table, short

if TYPE_CHECKING:
    from scorer.learn.ope import Estimate
    from scorer.learn.ope.evaluate import EvaluatedPolicy, Evaluation

_COLUMNS = ("estimator", "value", "95 % interval", "how", "effective rows", "mean weight", "largest", "")


def evaluate(
    experience: Annotated[
        Path, typer.Argument(metavar="EXPERIENCE", help="File that `scorer learn join` wrote.")
    ],
    bundle: Annotated[
        Path, typer.Option("--bundle", "-b", metavar="DIR", help="Directory of the candidate bundle.")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(
            "--baseline",
            metavar="DIR",
            help="Directory of a bundle to compare with; default: the logged policy.",
        ),
    ] = None,
    logger: Annotated[
        list[Path] | None,
        typer.Option(
            "--logger",
            metavar="DIR",
            help="Bundle whose decisions are in the log; repeat for all of them to use balanced weights.",
        ),
    ] = None,
    factor: Annotated[
        list[str] | None,
        typer.Option(
            "--factor", metavar="NAME", help="Action factor that the weights of MIPS use; repeatable."
        ),
    ] = None,
    folds: Annotated[int, typer.Option(min=2, help="Number of folds of the cross-fitted reward model.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="Number of threads of the reward model.")] = 2,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="File for the result as JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Estimate what a bundle would have earned on logged decisions, by every estimator."""
    from scorer.learn.experience_files import read
    from scorer.learn.ope.evaluate import evaluate as judge

    found = judge(
        read(experience),
        bundle,
        baseline=baseline,
        loggers=logger or (),
        factors=factor or (),
        folds=folds,
        threads=threads,
    )
    if output is not None:
        output.write_text(json.dumps(found.as_dict(), indent=2) + "\n")
    if as_json:
        print_json(found.as_dict())
        return
    _print(found)


def _print(found: Evaluation) -> None:
    logged = found.logged
    left_out = ", ".join(f"{count:,} with {reason}" for reason, count in found.excluded.items())
    typer.echo(f"{logged.rows:,} decisions" + (f"; left out: {left_out}" if left_out else ""))
    typer.echo(f"logged policy: {_percent(logged.value)} ({_interval(logged)}), measured")
    _print_policy("candidate", found.candidate)
    if found.baseline is not None:
        _print_policy("baseline", found.baseline)
    against = "the logged policy" if found.baseline is None else "the baseline"
    difference, (low, high) = found.difference, found.asymptotic
    typer.echo(
        f"\ncandidate minus {against}, paired over DR: {100 * difference.value:+.2f} points "
        f"({100 * difference.low:+.2f} to {100 * difference.high:+.2f}); "
        f"readable at any time: {100 * low:+.2f} to {100 * high:+.2f}"
    )


def _print_policy(role: str, judged: EvaluatedPolicy) -> None:
    typer.echo(f"\n{role} {short(judged.digest)}")
    print_table(_COLUMNS, [_row(one, judged.chosen) for one in judged.estimates], empty="no estimates")
    (low, high), (first, last) = judged.anytime, judged.asymptotic
    typer.echo(
        f"anytime-valid: {_percent(low)} to {_percent(high)} by betting, "
        f"{_percent(first)} to {_percent(last)} asymptotic over DR"
    )
    seen = judged.diagnostics
    typer.echo(
        f"mean weight {seen.mean_weight:.3f} (standard error {seen.mean_weight_error:.3f}), "
        f"{seen.effective_rows:,.0f} effective rows of {seen.rows:,}, "
        f"largest weight {seen.largest_weight:.1f}, {seen.clipped:.2%} of rows above {seen.limit:g}, "
        f"{seen.outside:.3%} of the policy outside the log's support ({seen.outside_rows:,} rows)"
    )
    for estimator, reason in judged.unavailable.items():
        typer.echo(f"{estimator}: {reason}")
    for warning in seen.warnings():
        typer.echo(f"warning: {warning}")


def _row(found: Estimate, chosen: str) -> tuple[str, ...]:
    return (
        found.estimator,
        _percent(found.value),
        _interval(found),
        found.interval,
        f"{found.effective_rows:,.0f}",
        f"{found.mean_weight:.3f}",
        f"{found.largest_weight:.1f}",
        "SLOPE's choice" if found.estimator == chosen else "",
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _interval(found: Estimate) -> str:
    return f"{100 * found.low:.2f} to {100 * found.high:.2f}"
