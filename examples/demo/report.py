"""Print the figures of the demo as lines and tables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.demo.learning import Learned
from examples.demo.output import Output
from examples.demo.plan import Paths, project_root
from examples.demo.results import GREEDY, LINEAR, RANKING, UNIFORM, Authorisation, Results, latencies
from examples.simulators.actions import catalogue
from scorer.learn.ope import Estimate


def rate(estimate: Estimate) -> str:
    """Format a rate with its 95 % interval, in per cent."""
    return f"{estimate.value:.1%} [{estimate.low:.1%}, {estimate.high:.1%}]"


def points(estimate: Estimate) -> str:
    """Format a difference of rates with its 95 % interval, in percentage points."""
    return f"{100 * estimate.value:+.1f} [{100 * estimate.low:+.1f}, {100 * estimate.high:+.1f}]"


def show(output: Output, results: Results) -> None:
    """Print the figures of the traffic."""
    output.table(
        ("served fraud scores", "AUC", "AUCPR", "card precision@100", "transactions", "frauds"),
        [
            [
                name,
                f"{one.auc:.3f}",
                f"{one.average_precision:.3f}",
                f"{one.card_precision_100:.3f}",
                f"{one.rows:,}",
                f"{one.frauds:,}",
            ]
            for name, one in results.ranking.items()
        ],
    )
    output.line(
        "decisions of v2: "
        + " · ".join(f"{label} {part:.2%}" for label, part in results.decisions.items())
        + f"; {results.compared:,} single scores equal the batch bit for bit"
    )
    output.table(
        ("latency in the client, ms", "p50", "p99", "p99.9", "evaluation p50, µs", "p99, µs", "calls"),
        _latency_rows(results),
    )
    _show_authorisation(output, results.authorisation, results.distinct)
    if results.routing is not None:
        routing = results.routing
        output.line(
            "real routing log, off-policy estimate (not a measured rate): served policy"
            f" {rate(routing.snipw)} SNIPW, {rate(routing.ipw)} IPW;"
            f" logged {rate(routing.logged)} of {routing.logged.rows:,} attempts"
        )


def _latency_rows(results: Results) -> list[list[str]]:
    rows = []
    for method, measured in latencies(results.measured).items():
        client, evaluated = measured["client_ms"], measured.get("evaluation_us")
        rows.append(
            [
                method,
                *(f"{client[p]:.2f}" for p in ("p50", "p99", "p99.9")),
                *((f"{evaluated[p]:.0f}" for p in ("p50", "p99")) if evaluated else ("", "")),
                f"{client['calls']:,}",
            ]
        )
    return rows


def _show_authorisation(output: Output, measured: Authorisation, distinct: int) -> None:
    outcomes = f"simulated outcomes: v2 {rate(measured.outcomes)} of {measured.outcomes.rows:,} payments"
    if measured.first is not None:
        outcomes += f", v1 {rate(measured.first)} of {measured.first.rows:,}"
    output.line(f"authorised, {outcomes}; {distinct} of {len(catalogue())} actions chosen")
    output.table(
        (
            f"policy, each from the same log of {measured.logged:,} payments",
            "authorised, by the hidden truth [95 %]",
            "bandit minus policy, points [95 %]",
        ),
        [
            ["bandit: action v2, as served", rate(measured.served), ""],
            *([name, rate(one.rate), points(one.difference)] for name, one in measured.references.items()),
            ["best possible, which only the simulator knows", f"{measured.best:.1%}", ""],
        ],
    )
    gained = {name: 100 * one.difference.value for name, one in measured.references.items()}
    own = points(measured.own_part).replace("[", "\\[")
    output.line(
        f"of the bandit's {gained[UNIFORM]:+.1f} points over uniform choice, one fixed ranking has"
        f" {gained[UNIFORM] - gained[RANKING]:+.1f} and a linear model per issuer"
        f" {gained[UNIFORM] - gained[LINEAR]:+.1f}; [bold]the bandit's own part: {own} points[/]"
        f" ({gained[GREEDY]:+.1f} of them its exploration)"
    )


def show_swap(output: Output, results: Results) -> None:
    """Print the figures of the swap: replies by bundle, errors and times."""
    for entry in results.summary()["swap"]["answers"]:
        output.line(
            f"  {entry['checkpoint']}: {entry['answers']:,} replies from {entry['bundle']}"
            f" ({entry['digest'].removeprefix('sha256:')[:12]})"
        )
    first = ", ".join(f"{checkpoint} {ms:.0f} ms" for checkpoint, ms in results.takeover_ms().items())
    output.line(
        f"0 errors, {results.measured.fallbacks} fallbacks in {results.calls:,} calls;"
        f" first reply of v2 after the move: {first}; server {results.resident_mb:.0f} MB resident"
    )


def show_learning(output: Output, learned: Sequence[Learned]) -> None:
    """Print a line per generation with the gate's verdict on the evaluation traffic."""
    rows = []
    for one in learned:
        low, high = ("?" if end is None else f"{100 * end:+.1f}" for end in (one.low, one.high))
        rows.append(
            [
                f"{one.number}",
                f"{one.trained_on:,}",
                f"{one.value:.1%}",
                f"{one.live_value:.1%}",
                f"{100 * one.difference:+.1f} [{low}, {high}]",
                one.decision + (f" {one.share:.0%}" if one.decision == "mix" else ""),
                one.live.removeprefix("sha256:")[:12],
            ]
        )
    output.table(
        ("generation", "trained on", "candidate", "live", "difference, points", "verdict", "live afterwards"),
        rows,
    )


def where_next(
    output: Output, paths: Paths, summary: Mapping[str, Any], pages: str, token: str, *, full: bool
) -> None:
    """Print the files of the run, and commands to continue with.

    Args:
        output: destination of the printed lines.
        paths: files of the run.
        summary: figures of the run.
        pages: URL of the platform when it runs.
        token: token to sign in to the pages.
        full: whether the run included learning and a TEST.
    """
    output.line()
    output.line(f"[bold green]Done in {summary['total_s']:.0f} s.[/] Next:")
    # The shell of the user has not activated the environment of `make demo`.
    scorer = _from_here(Path(sys.executable).with_name("scorer"))
    elsewhere = "" if paths.output == project_root() / "demo-output" else f" ARGS='--output {paths.output}'"
    up = f"make up{elsewhere}   # server, pages and payments, until Ctrl-C"
    entries = [
        ("the decisions", _from_here(paths.exported)),
        ("the figures", _from_here(paths.summary)),
        ("run it live", up),
        ("serve again", f"{scorer} serve --config {_from_here(paths.settings)}"),
        ("open the pages", f"{scorer} platform serve --config {_from_here(paths.platform_settings)}"),
        ("", f"then {pages}, and sign in with {token}"),
    ]
    if full:
        change = summary["shipping"]["change"]
        entries += [
            ("the report", _from_here(paths.output / "readout.html")),
            ("", f"or {pages}/changes/{change}/readout"),
            ("the generations", _from_here(paths.output / "learning.html")),
        ]
    else:
        entries.append(("learn and ship", "make demo ARGS=--full"))
    entries.append(("your own data", "make demo ARGS='--transactions FILE.parquet --routing FILE.csv'"))
    for what, how in entries:
        output.line(f"  {what:<16} {how}".replace("[", "\\["))


def _from_here(path: Path) -> str:
    """Return a path relative to the current directory, if it is below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
