"""Findings on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from examples.demo import tables
from examples.demo.judge import Findings
from examples.demo.learning import Learned
from examples.demo.narrate import Narrator
from examples.demo.plan import Places
from examples.simulators.actions import catalogue


def show(narrator: Narrator, findings: Findings) -> None:
    """The findings on the terminal."""
    narrator.say("[bold]Fraud scores[/], measured on what the server answered")
    narrator.table(tables.FRAUD_HEAD, tables.fraud_rows(findings))
    narrator.say(
        "decisions on v2: "
        + " · ".join(f"{label} {part:.2%}" for label, part in findings.decisions.items())
        + f"; {findings.unary_compared:,} single answers equal the batch bit for bit"
    )
    narrator.say("")
    narrator.say(
        "[bold]Latency[/], in the client (Python threads on this machine), and the server's evaluation"
    )
    narrator.table(tables.LATENCY_HEAD, tables.latency_rows(findings))
    narrator.say(
        f"[bold]Payment actions[/]: {findings.distinct} of {len(catalogue())} actions chosen; most often"
    )
    narrator.table(tables.ACTION_HEAD, tables.action_rows(findings))
    narrator.say("[bold]Authorisation rate[/] in the simulated environment")
    narrator.table(tables.RATE_HEAD, tables.rate_rows(findings))
    found = findings.authorisation
    narrator.say(
        f"uplift over the baseline, payment by payment: [bold green]{tables.points(found.uplift)}[/];"
        f" the oracle expected {found.expected:.1%}"
    )
    if findings.routing is not None:
        _show_routing(narrator, findings)
    narrator.say("")
    narrator.say("[bold]Hot swap[/]")
    narrator.table(tables.SWAP_HEAD, tables.swap_rows(findings))
    narrator.say(
        f"{findings.errors} errors, {findings.measured.fallbacks} fallbacks in {findings.calls:,} calls;"
        f" first answer of v2 on {tables.takeover(findings)}"
    )
    narrator.say(f"server: {findings.resident_mb:.0f} MB resident after the traffic")


def show_learning(narrator: Narrator, learned: Sequence[Learned]) -> None:
    """A line per generation."""
    narrator.table(tables.LEARNING_HEAD, tables.learning_rows(learned))


def _show_routing(narrator: Narrator, findings: Findings) -> None:
    value = findings.routing
    if value is None:
        return
    narrator.say("")
    narrator.say("[bold]Real routing log[/]: off-policy [bold]estimate[/], not a measured rate")
    narrator.table(
        ("success per attempt", "rate [95 %]", "attempts", "effective"),
        [
            ["logged (measured)", tables.rate(value.logged), f"{value.logged.rows:,}", ""],
            [
                "served policy, SNIPW",
                tables.rate(value.snipw),
                f"{value.snipw.rows:,}",
                f"{value.snipw.effective_rows:,.0f}",
            ],
            [
                "served policy, IPW",
                tables.rate(value.ipw),
                f"{value.ipw.rows:,}",
                f"{value.ipw.effective_rows:,.0f}",
            ],
        ],
    )
    narrator.say(
        "chosen: "
        + " · ".join(
            f"{name} {part:.0%} (logged {value.logged_shares[name]:.0%})"
            for name, part in value.chosen.items()
        )
    )
    narrator.say(
        "[dim]propensities are estimated given retry; fees and capacity of providers are not in the log[/]"
    )


def where_next(narrator: Narrator, places: Places, summary: Mapping[str, Any], token: str) -> None:
    """What to look at, and what to try; `token` opens the pages of this demo alone."""
    narrator.say("")
    narrator.say(f"[bold green]Done in {summary['total_s']:.0f} s.[/] Where to go next:")
    # `make demo` runs in an environment that the reader's shell has not activated.
    scorer = _from_here(Path(sys.executable).with_name("scorer"))
    for what, how in (
        ("the report", _from_here(places.output / "report.html")),
        ("what was learned", _from_here(places.output / "learning.html")),
        ("the read-out", _from_here(places.output / "readout.html")),
        ("the figures", _from_here(places.output / "summary.json")),
        ("the decisions", f"{scorer} log stat --log {_from_here(places.decisions)}"),
        ("the bundles", f"{scorer} registry list --registry {_from_here(places.registry)}"),
        ("serve them again", f"{scorer} serve --config {_from_here(places.settings)}"),
        ("open the pages", f"{scorer} platform serve --config {_from_here(places.platform_settings)}"),
        ("", f"then {summary['pages']}/changes/{summary['shipping']['change']}/readout"),
        ("", f"signed in with {token}"),
        ("your own data", "make demo ARGS='--transactions FILE.parquet --routing FILE.csv'"),
    ):
        narrator.say(f"  {what:<17} {how}")


def _from_here(path: Path) -> str:
    """The path as one would type it here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
