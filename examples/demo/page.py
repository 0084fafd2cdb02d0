"""Findings as a page with plots."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from examples.demo import figures, tables
from examples.demo.judge import Findings
from examples.demo.results import latencies
from examples.simulators.actions import catalogue
from scorer.durable import write_atomically
from scorer.report import ReportPage


def write_report(path: Path, findings: Findings, summary: Mapping[str, Any]) -> None:
    """The page with everything, plots included."""
    data, server, found = summary["data"], summary["server"], findings.authorisation
    page = ReportPage(
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
            (tables.points(found.uplift).split(" [")[0], "over the baseline"),
            (f"{score_latency['p99']:.2f} ms", "p99 of Score, client"),
            (f"{server['ready_after_ms']:.0f} ms", "start to ready"),
            (f"{server['resident_mb_at_start']:.0f} MB", "resident at start"),
            (str(findings.errors), "errors during the swap"),
        ]
    )
    page.section("Fraud scores, as served")
    page.table(tables.FRAUD_HEAD, tables.fraud_rows(findings))
    page.plots(
        [
            (
                figures.score_histogram(findings.scores["v2"], findings.fraud, findings.bands),
                "Calibrated scores of the test days from version 2; dashed: where review and decline begin.",
            )
        ]
    )
    page.plots(
        [
            (
                figures.roc_and_precision(
                    {name: (scores, findings.fraud) for name, scores in findings.scores.items()}
                ),
                "Both versions on the same test transactions.",
            )
        ]
    )
    page.section("Latency")
    page.table(tables.LATENCY_HEAD, tables.latency_rows(findings))
    page.plots(
        [
            (
                figures.latencies(findings.measured.latency_ms),
                "Closed loop: several Python threads on the server's own machine, so queueing in the client"
                " is part of it. `scorer loadtest` measures from the intended send time.",
            )
        ]
    )
    page.section("Payment actions")
    page.table(tables.ACTION_HEAD, tables.action_rows(findings))
    theirs = np.bincount(findings.logged.action, minlength=len(catalogue())) / len(findings.logged)
    page.plots(
        [
            (
                figures.action_shares(
                    {use.action: use.share for use in findings.used},
                    {action.id: float(part) for action, part in zip(catalogue(), theirs, strict=True)},
                ),
                "The ten actions chosen most, and how often the baseline's log has them.",
            )
        ]
    )
    page.table(tables.RATE_HEAD, tables.rate_rows(findings))
    entries = [
        ("baseline, own log", found.logged),
        ("baseline, same payments", found.baseline),
        *((f"served, {findings.names.get(d, d)}", rate) for d, rate in found.by_bundle.items()),
    ]
    page.plots(
        [
            (
                figures.rates(
                    [
                        *((name, rate.value, rate.low, rate.high) for name, rate in entries),
                        ("best possible", found.ceiling, found.ceiling, found.ceiling),
                    ]
                ),
                "Authorisation rates in the simulated environment, intervals at 95 %."
                f" Paired uplift: {tables.points(found.uplift)}.",
            )
        ]
    )
    if findings.routing is not None:
        _report_routing(page, findings)
    page.section("Hot swap")
    page.table(tables.SWAP_HEAD, tables.swap_rows(findings))
    page.plots(
        [
            (
                figures.swap_timeline(findings.measured.timeline, findings.names, findings.swap.ordered_at),
                f"{findings.errors} errors in {findings.calls:,} calls."
                f" First answer of version 2: {tables.takeover(findings)}.",
            )
        ]
    )
    page.section("Decision log")
    log = summary["log"]
    page.note(
        f"{log['verified']:,} decisions repeated on their bundles bit for bit, {log['mismatched']} differ;"
        f" {log['exported']:,} decisions exported, {log['with_outcome']:,} with an outcome."
    )
    write_atomically(path, page.text().encode())


def _report_routing(page: ReportPage, findings: Findings) -> None:
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
            ["logged (measured)", tables.rate(value.logged), f"{value.logged.rows:,}", "", "", ""],
            *(
                [
                    f"served policy, {name}",
                    tables.rate(found),
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
