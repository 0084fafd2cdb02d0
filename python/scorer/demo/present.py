"""Findings for people: lines and tables on the terminal, a page with plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scorer.demo import figures
from scorer.demo.judge import Findings
from scorer.demo.narrate import Narrator
from scorer.demo.plan import Places
from scorer.demo.report import Page
from scorer.demo.results import latencies
from scorer.learn.ope import Estimate
from scorer.simulate.actions import catalogue


def _rate(found: Estimate) -> str:
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"


def _points(found: Estimate) -> str:
    return f"{100 * found.value:+.1f} points [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _fraud_rows(findings: Findings) -> list[list[str]]:
    return [
        [
            name,
            f"{found.auc:.3f}",
            f"{found.average_precision:.3f}",
            f"{found.card_precision_100:.3f}",
            f"{found.rows:,}",
            f"{found.frauds:,}",
        ]
        for name, found in findings.ranking.items()
    ]


_FRAUD_HEAD = ("scores as served", "AUC", "AUCPR", "card prec.@100", "transactions", "frauds")
_LATENCY_HEAD = ("call, ms in the client", "p50", "p99", "p99.9", "eval. us p50", "p99", "calls")
_RATE_HEAD = ("authorised", "rate [95 %]", "payments")
_ACTION_HEAD = (
    " · ".join(("three_ds", "exemption", "route", "retry", "message")),
    "share",
    "authorised",
    "baseline",
)
_SWAP_HEAD = ("checkpoint", "bundle", "answers")


def _latency_rows(findings: Findings) -> list[list[str]]:
    rows = []
    for method, found in latencies(findings.measured).items():
        seen, evaluated = found["client_ms"], found.get("evaluation_us")
        rows.append(
            [
                method,
                *(f"{seen[p]:.2f}" for p in ("p50", "p99", "p99.9")),
                *((f"{evaluated[p]:.0f}" for p in ("p50", "p99")) if evaluated else ("", "")),
                f"{seen['calls']:,}",
            ]
        )
    return rows


def _rate_rows(findings: Findings) -> list[list[str]]:
    found = findings.authorisation
    rows = [
        ["baseline, its own log (earlier payments)", found.logged],
        ["baseline, same payments, same luck", found.baseline],
    ]
    rows += [["baseline without its exploration", found.rule]]
    rows += [[f"served by {findings.names.get(d, d)}", rate] for d, rate in found.by_bundle.items()]
    rows += [["served, both", found.served]]
    lines = [[str(name), _rate(rate), f"{rate.rows:,}"] for name, rate in rows if isinstance(rate, Estimate)]
    return [*lines, ["best possible (known to the judge alone)", f"{found.ceiling:.1%}", ""]]


def _action_rows(findings: Findings) -> list[list[str]]:
    return [
        [
            figures.short_action(use.action),
            f"{use.share:.1%}",
            f"{use.authorised:.1%}",
            f"{use.baseline_share:.1%}",
        ]
        for use in findings.used
    ]


def _swap_rows(findings: Findings) -> list[list[str]]:
    counts = findings.measured.answers
    return [
        [
            checkpoint,
            f"{findings.names.get(digest, '?')} ({digest.removeprefix('sha256:')[:12]})",
            f"{count:,}",
        ]
        for (checkpoint, digest), count in sorted(
            counts.items(), key=lambda entry: (entry[0][0], findings.names.get(entry[0][1], ""))
        )
    ]


def _takeover(findings: Findings) -> str:
    return ", ".join(
        f"{checkpoint} after {(at - findings.swap.ordered_at) * 1e3:.0f} ms"
        for checkpoint, at in findings.swap.first_answer.items()
    )


def show(narrator: Narrator, findings: Findings) -> None:
    """The findings on the terminal."""
    narrator.say("[bold]Fraud scores[/], measured on what the server answered")
    narrator.table(_FRAUD_HEAD, _fraud_rows(findings))
    narrator.say(
        "decisions on v2: "
        + " · ".join(f"{label} {part:.2%}" for label, part in findings.decisions.items())
        + f"; {findings.unary_compared:,} single answers equal the batch bit for bit"
    )
    narrator.say("")
    narrator.say(
        "[bold]Latency[/], in the client (Python threads on this machine), and the server's evaluation"
    )
    narrator.table(_LATENCY_HEAD, _latency_rows(findings))
    narrator.say(
        f"[bold]Payment actions[/]: {findings.distinct} of {len(catalogue())} actions chosen; most often"
    )
    narrator.table(_ACTION_HEAD, _action_rows(findings))
    narrator.say("[bold]Authorisation rate[/] in the simulated environment")
    narrator.table(_RATE_HEAD, _rate_rows(findings))
    found = findings.authorisation
    narrator.say(
        f"uplift over the baseline, payment by payment: [bold green]{_points(found.uplift)}[/];"
        f" the oracle expected {found.expected:.1%}"
    )
    if findings.routing is not None:
        _show_routing(narrator, findings)
    narrator.say("")
    narrator.say("[bold]Hot swap[/]")
    narrator.table(_SWAP_HEAD, _swap_rows(findings))
    narrator.say(
        f"{findings.errors} errors, {findings.measured.fallbacks} fallbacks in {findings.calls:,} calls;"
        f" first answer of v2 on {_takeover(findings)}"
    )
    narrator.say(f"server: {findings.resident_mb:.0f} MB resident after the traffic")


def _show_routing(narrator: Narrator, findings: Findings) -> None:
    value = findings.routing
    if value is None:
        return
    narrator.say("")
    narrator.say("[bold]Real routing log[/]: off-policy [bold]estimate[/], not a measured rate")
    narrator.table(
        ("success per attempt", "rate [95 %]", "attempts", "effective"),
        [
            ["logged (measured)", _rate(value.logged), f"{value.logged.rows:,}", ""],
            [
                "served policy, SNIPW",
                _rate(value.snipw),
                f"{value.snipw.rows:,}",
                f"{value.snipw.effective_rows:,.0f}",
            ],
            [
                "served policy, IPW",
                _rate(value.ipw),
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


def where_next(narrator: Narrator, places: Places, summary: Mapping[str, Any]) -> None:
    """What to look at, and what to try."""
    narrator.say("")
    narrator.say(f"[bold green]Done in {summary['total_s']:.0f} s.[/] Where to go next:")
    for what, how in (
        ("the report", str(places.output / "report.html")),
        ("the figures", str(places.output / "summary.json")),
        ("the decisions", f"scorer log stat --log {places.decisions}"),
        ("the bundles", f"scorer registry list --registry {places.registry}"),
        ("serve them again", f"scorer serve --config {places.settings}"),
        ("your own data", "make demo ARGS='--transactions FILE.parquet --routing FILE.csv'"),
    ):
        narrator.say(f"  {what:<17} {how}")


def write_report(path: Path, findings: Findings, summary: Mapping[str, Any]) -> None:
    """The page with everything, plots included."""
    data, server, found = summary["data"], summary["server"], findings.authorisation
    page = Page(
        "scorer: demo report",
        f"{data['transactions']:,} transactions ({data['source']}), {data['first_day']} to"
        f" {data['last_day']}, {data['fraud_rate']:.2%} fraud."
        f" Payment actions: simulated environment, {len(catalogue())} actions.",
    )
    best = findings.ranking["v2"]
    score_latency = latencies(findings.measured)["Score"]["client_ms"]
    page.tiles(
        [
            (f"{best.auc:.3f}", "AUC of served scores"),
            (f"{best.average_precision:.3f}", "AUCPR of served scores"),
            (f"{found.served.value:.1%}", "authorised, served"),
            (_points(found.uplift).split(" [")[0], "over the baseline"),
            (f"{score_latency['p99']:.2f} ms", "p99 of Score, client"),
            (f"{server['ready_after_ms']:.0f} ms", "start to ready"),
            (f"{server['resident_mb_at_start']:.0f} MB", "resident at start"),
            (str(findings.errors), "errors during the swap"),
        ]
    )
    page.section("Fraud scores, as served")
    page.table(_FRAUD_HEAD, _fraud_rows(findings))
    page.figure(
        figures.score_histogram(findings.scores["v2"], findings.fraud, findings.bands),
        "Calibrated scores of the test days from version 2; dashed: where review and decline begin.",
    )
    page.figure(
        figures.roc_and_precision(
            {name: (scores, findings.fraud) for name, scores in findings.scores.items()}
        ),
        "Both versions on the same test transactions.",
    )
    page.section("Latency")
    page.table(_LATENCY_HEAD, _latency_rows(findings))
    page.figure(
        figures.latencies(findings.measured.latency_ms),
        "Closed loop: several Python threads on the server's own machine, so queueing in the client is part"
        " of it. `scorer loadtest` measures from the intended send time.",
    )
    page.section("Payment actions")
    page.table(_ACTION_HEAD, _action_rows(findings))
    theirs = np.bincount(findings.logged.action, minlength=len(catalogue())) / len(findings.logged)
    page.figure(
        figures.action_shares(
            {use.action: use.share for use in findings.used},
            {action.id: float(part) for action, part in zip(catalogue(), theirs, strict=True)},
        ),
        "The ten actions chosen most, and how often the baseline's log has them.",
    )
    page.table(_RATE_HEAD, _rate_rows(findings))
    entries = [
        ("baseline, own log", found.logged),
        ("baseline, same payments", found.baseline),
        *((f"served, {findings.names.get(d, d)}", rate) for d, rate in found.by_bundle.items()),
    ]
    page.figure(
        figures.rates(
            [
                *((name, rate.value, rate.low, rate.high) for name, rate in entries),
                ("best possible", found.ceiling, found.ceiling, found.ceiling),
            ]
        ),
        "Authorisation rates in the simulated environment, intervals at 95 %."
        f" Paired uplift: {_points(found.uplift)}.",
    )
    if findings.routing is not None:
        _report_routing(page, findings)
    page.section("Hot swap")
    page.table(_SWAP_HEAD, _swap_rows(findings))
    page.figure(
        figures.swap_timeline(findings.measured.timeline, findings.names, findings.swap.ordered_at),
        f"{findings.errors} errors in {findings.calls:,} calls."
        f" First answer of version 2: {_takeover(findings)}.",
    )
    page.section("Decision log")
    log = summary["log"]
    page.note(
        f"{log['verified']:,} decisions repeated on their bundles bit for bit, {log['mismatched']} differ;"
        f" {log['exported']:,} decisions exported, {log['with_outcome']:,} with an outcome."
    )
    page.write(path)


def _report_routing(page: Page, findings: Findings) -> None:
    value = findings.routing
    if value is None:
        return
    page.section("Real routing log: off-policy estimate")
    page.table(
        (
            "success per attempt",
            "rate [95 %]",
            "attempts",
            "effective attempts",
            "mean weight",
            "largest weight",
        ),
        [
            ["logged (measured)", _rate(value.logged), f"{value.logged.rows:,}", "", "", ""],
            *(
                [
                    f"served policy, {name}",
                    _rate(found),
                    f"{found.rows:,}",
                    f"{found.effective_rows:,.0f}",
                    f"{found.mean_weight:.3f}",
                    f"{found.largest_weight:.1f}",
                ]
                for name, found in (("SNIPW", value.snipw), ("IPW", value.ipw))
            ),
        ],
    )
    page.table(
        ("provider", "drawn by the served policy", "logged", "logged success"),
        [
            [name, f"{part:.1%}", f"{value.logged_shares[name]:.1%}", f"{value.success[name]:.1%}"]
            for name, part in value.chosen.items()
        ],
    )
    page.note(
        "Not a measured rate: the log holds no propensities, they are estimated as the providers' shares"
        " given whether the attempt is a retry. That nothing unobserved steered the choice cannot be checked,"
        " and fees, commitments and capacity of the providers are not in the log."
    )
