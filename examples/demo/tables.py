"""Findings as rows of text, the same for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence

from examples.demo import figures
from examples.demo.judge import Findings
from examples.demo.learning import Learned
from examples.demo.results import latencies
from scorer.learn.ope import Estimate


def rate(found: Estimate) -> str:
    """A rate with its interval."""
    return f"{found.value:.1%} [{found.low:.1%}, {found.high:.1%}]"


def points(found: Estimate) -> str:
    """A difference of rates with its interval, in percentage points."""
    return f"{100 * found.value:+.1f} points [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def fraud_rows(findings: Findings) -> list[list[str]]:
    """Measures of the served scores, a row per version."""
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


FRAUD_HEAD = ("scores as served", "AUC", "AUCPR", "card prec.@100", "transactions", "frauds")
LATENCY_HEAD = ("call, ms in the client", "p50", "p99", "p99.9", "eval. us p50", "p99", "calls")
RATE_HEAD = ("authorised", "rate [95 %]", "payments")
ACTION_HEAD = (
    " · ".join(("three_ds", "exemption", "route", "retry", "message")),
    "share",
    "authorised",
    "baseline",
)
SWAP_HEAD = ("checkpoint", "bundle", "answers")


def latency_rows(findings: Findings) -> list[list[str]]:
    """Latencies, a row per method."""
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


def rate_rows(findings: Findings) -> list[list[str]]:
    """Authorisation rates: the baseline's, the served ones, the ceiling."""
    found = findings.authorisation
    every = [
        ("baseline, its own log (earlier payments)", found.logged),
        ("baseline, same payments, same luck", found.baseline),
        ("baseline without its exploration", found.rule),
        *(
            (f"served by {findings.names.get(digest, digest)}", own)
            for digest, own in found.by_bundle.items()
        ),
        ("served, both", found.served),
    ]
    lines = [[name, rate(own), f"{own.rows:,}"] for name, own in every]
    return [*lines, ["best possible (known to the judge alone)", f"{found.ceiling:.1%}", ""]]


def action_rows(findings: Findings) -> list[list[str]]:
    """The actions chosen most."""
    return [
        [
            figures.short_action(use.action),
            f"{use.share:.1%}",
            f"{use.authorised:.1%}",
            f"{use.baseline_share:.1%}",
        ]
        for use in findings.used
    ]


def swap_rows(findings: Findings) -> list[list[str]]:
    """Answers per checkpoint and bundle."""
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


def takeover(findings: Findings) -> str:
    """When each new bundle first answered, after the aliases moved."""
    return ", ".join(
        f"{checkpoint} after {(at - findings.swap.ordered_at) * 1e3:.0f} ms"
        for checkpoint, at in findings.swap.first_answer.items()
    )


LEARNING_HEAD = (
    "generation",
    "learned from",
    "candidate",
    "live",
    "difference, points",
    "verdict",
    "live now",
)


def learning_rows(learned: Sequence[Learned]) -> list[list[str]]:
    """What the gate made of each: off-policy estimates on payments that taught nobody."""
    rows = []
    for one in learned:
        evidence = one.verdict.evidence
        gap = evidence.difference
        low, high = ("?" if end is None else f"{100 * end:+.1f}" for end in (gap.low, gap.high))
        share = f" {evidence.share:.0%}" if evidence.decision == "mix" else ""
        rows.append(
            [
                f"{one.number}",
                f"{int(one.trained.metrics['rows']):,}",
                f"{evidence.value.value:.1%}",
                f"{evidence.live_value.value:.1%}",
                f"{100 * gap.value:+.1f} [{low}, {high}]",
                f"{evidence.decision}{share}",
                one.digest.removeprefix("sha256:")[:12],
            ]
        )
    return rows
