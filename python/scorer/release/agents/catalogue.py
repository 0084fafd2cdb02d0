"""Every tool that agents may use. Transports, permissions, schemas and documents read this list."""

from __future__ import annotations

from collections.abc import Mapping

from scorer.release.agents import arguments as a
from scorer.release.agents import drafting, reading, watching
from scorer.release.agents.tools import Tool
from scorer.release.model import Role

PRODUCTS: Mapping[str, str] = {
    "checkpoints": "Checkpoints and their lanes",
    "models": "Bundles and their versions",
    "decisions": "Recorded decisions of payments",
    "monitoring": "Metrics, outcomes and drift",
    "changes": "Change requests and reports",
    "rules": "Rules on recorded decisions",
    "value": "Value where nothing was randomised",
    "calendar": "Calendar and freezes",
    "drafts": "Drafts of change requests",
}
"""Groups of tools, each with its title."""


def _tools() -> tuple[Tool, ...]:
    return (
        Tool(
            "list_checkpoints",
            "List checkpoints",
            "checkpoints",
            "List the checkpoints of your projects with their kind, SLA, lanes, bundles and servers. Call it "
            "first.",
            a.NoArguments,
            reading.list_checkpoints,
        ),
        Tool(
            "list_bundles",
            "List bundles",
            "models",
            "List bundles, newest first, with their digests and projects.",
            a.ListBundles,
            reading.list_bundles,
        ),
        Tool(
            "describe_bundle",
            "Describe a bundle",
            "models",
            "Return a bundle's features, rules, lineage and lanes.",
            a.OfBundle,
            reading.describe_bundle,
        ),
        Tool(
            "list_versions",
            "List versions",
            "models",
            "List the bundles that were submitted, tested, released or live at a checkpoint, with verdicts.",
            a.ListVersions,
            reading.list_versions,
        ),
        Tool(
            "compare_versions",
            "Compare two versions",
            "models",
            "Compare two bundles or change requests: properties, gates, figures and swap sets.",
            a.CompareVersions,
            reading.compare_versions,
        ),
        Tool(
            "compare_over_time",
            "Compare versions over time",
            "models",
            "Compare versions week by week on recorded decisions. The first call starts the comparison; "
            "repeat the call until `state` is done.",
            a.CompareOverTime,
            reading.compare_over_time,
        ),
        Tool(
            "score_what_if",
            "Score a what-if payment",
            "models",
            "Score a payment that does not exist with a bundle, in the platform's own process, with the "
            "exact contributions of its features. It is not logged, calls no server and explores nothing: "
            "for an action bundle it returns all probabilities and draws none.",
            a.ScoreWhatIf,
            reading.score_what_if,
        ),
        Tool(
            "find_decisions",
            "Find decisions",
            "decisions",
            "List recorded decisions of a checkpoint with their outcomes, newest first.",
            a.FindDecisions,
            reading.find_decisions,
        ),
        Tool(
            "explain_decision",
            "Explain a decision",
            "decisions",
            "Return a recorded decision: features, reasons, rules with an effect, probabilities of the "
            "actions, outcomes, and exact contributions. Sensitive features are withheld.",
            a.ExplainDecision,
            reading.explain_decision,
        ),
        Tool(
            "outcomes_by_feature",
            "Outcomes by feature",
            "monitoring",
            "Return the rate of positive outcomes (authorised, fraud) by level of a feature, before and "
            "after a time, with intervals and the part of the whole change that each level explains. It "
            "finds the issuer, country or amount band whose rate has changed.",
            a.OutcomesByFeature,
            watching.outcomes_by_feature,
        ),
        Tool(
            "live_metrics",
            "Live metrics",
            "monitoring",
            "Return the newest points of the traffic, latency, score and outcome metrics of a checkpoint.",
            a.LiveMetrics,
            watching.live_metrics,
        ),
        Tool(
            "drift_status",
            "Drift status",
            "monitoring",
            "Return the latest look for drift of features, scores and outcomes, with segments and alerts.",
            a.OfCheckpoint,
            watching.drift_status,
        ),
        Tool(
            "list_changes",
            "List change requests",
            "changes",
            "List change requests, newest first, with their states and verdicts.",
            a.ListChanges,
            watching.list_changes,
        ),
        Tool(
            "read_report",
            "Read a report",
            "changes",
            "Return a change request with its gates, backtest, verdict and report (read-out of a TEST).",
            a.ReadReport,
            watching.read_report,
        ),
        Tool(
            "backtest_rules",
            "Backtest rules",
            "rules",
            "Decide recorded decisions again with edited rules, and return the blast radius: which "
            "decisions change, their amounts and outcomes, and the effect of each rule. Faults of the rules "
            "are returned with lines.",
            a.BacktestRules,
            watching.backtest_rules,
        ),
        Tool(
            "value_of_adoption",
            "Value of adoption (Delta CV)",
            "value",
            "Estimate what adopting a product is worth where nothing was randomised (Delta CV), with checks "
            "and a verdict on its reliability. Without a task it lists the tasks. The first call with a task "
            "starts the analysis; repeat the call until `state` is done.",
            a.ValueOfAdoption,
            watching.value_of_adoption,
        ),
        Tool(
            "calendar",
            "Calendar",
            "calendar",
            "Return bookings of observation slots and freezes of the next days.",
            a.ReadCalendar,
            reading.read_calendar,
        ),
        Tool(
            "draft_change",
            "Draft a change request",
            "drafts",
            "Create a draft of a TEST or RELEASE with evidence. A person reviews and submits it. Nothing is "
            "deployed.",
            a.DraftChange,
            drafting.draft_change,
            role=Role.AGENT,
            drafts=True,
        ),
        Tool(
            "edit_draft",
            "Edit a draft",
            "drafts",
            "Replace a draft that you created, while nobody has submitted it.",
            a.EditDraft,
            drafting.edit_draft,
            role=Role.AGENT,
            drafts=True,
        ),
    )


TOOLS: Mapping[str, Tool] = {tool.name: tool for tool in _tools()}
"""The tools by name, in the order in which they are listed."""
