"""The standard gates, for checkpoints whose settings have no gates. docs/gates.md gives the reasons."""

from __future__ import annotations

from typing import Final

from scorer.release.model import GateSpec

_TIMES: Final = (
    GateSpec("exec_p99_us", "<= sla", against="sla", min_rows=300),
    GateSpec("data_load_p99_us", "<= sla", against="sla", min_rows=300),
)
_SOUND: Final = (
    GateSpec("error_rate", "== 0", min_rows=300),
    GateSpec("parity_max_abs", "<= 1e-6", min_rows=100),
    GateSpec("feature_parity_rate", ">= 0.999", min_rows=300),
)
_SEEN: Final = (
    GateSpec("drop_rate", "<= 5%", dry_run=True),
    GateSpec("covered_hours_of_week", ">= 168", dry_run=True),
)

SCORE: Final = (
    *_TIMES,
    *_SOUND,
    GateSpec("score_psi", "< threshold(floor=0.1)", against="reference", min_rows=300),
    GateSpec("flip_rate", "<= 0.05 upper95", against="live", minus="aa_control", min_rows=300),
    GateSpec("approve_rate_delta", "abs <= 0.02 upper95", against="live", min_rows=300),
    # Disagreement and approve rates cannot detect that a model no longer finds rare frauds: if 1 % is
    # flagged, a model that flags another 1 % at random changes 2 % of the decisions and no approve rate. The
    # limits are chosen so that good models of other algorithms pass and models that miss a fifth of the
    # frauds fail (`make bench-gates`, docs/gates.md).
    GateSpec("flagged_agreement", ">= 0.35 lower95", against="live", when="flagged_rows >= 15"),
    GateSpec("declined_kept", ">= 0.85 lower95", against="live", when="declined_rows >= 20"),
    GateSpec("tail_correlation", ">= 0.65 lower95", against="live", when="flagged_rows >= 100"),
    GateSpec("flagged_share_change", "abs <= 25% upper95", against="live", when="flagged_rows >= 100"),
    GateSpec("auc_matured", ">= -0.002 lower95", against="live", when="labels_matured >= 0.8"),
    *_SEEN,
)

ACTION: Final = (
    *_TIMES,
    *_SOUND,
    GateSpec("min_propensity", ">= 0.0001"),
    GateSpec("policy_distance", "<= 0.3 upper95", against="live", minus="aa_control", min_rows=300),
    GateSpec("flip_rate", "<= 0.3 upper95", against="live", minus="aa_control", min_rows=300, dry_run=True),
    GateSpec(
        "expected_reward_delta",
        ">= -0.01 lower95",
        against="live",
        when="labels_matured >= 0.8",
    ),
    *_SEEN,
)


BACKTEST: Final = (
    GateSpec("backtest_recall_review", ">= -10% lower95"),
    GateSpec("backtest_recall_decline", ">= -20% lower95"),
    GateSpec("backtest_value_saved", ">= -15% lower95"),
    GateSpec("backtest_average_precision", ">= -15% lower95"),
    GateSpec("backtest_auc", ">= -0.02 lower95"),
    GateSpec("backtest_calibration", "<= 2 upper95", dry_run=True),
    GateSpec("backtest_reward", ">= -0.01 lower95"),
    GateSpec("backtest_effective_share", ">= 5%", dry_run=True),
    GateSpec("backtest_reward_ips", ">= -0.02 lower95", dry_run=True),
    GateSpec("backtest_agreement", ">= 70% lower95", dry_run=True),
    # How many decisions should change depends on the change. A checkpoint's own gates can decide by it.
    GateSpec("backtest_decisions_changed", "<= 5% upper95", dry_run=True),
    GateSpec("backtest_approvals_lost", "<= 2% upper95", dry_run=True),
    GateSpec("backtest_nothing_left", "<= 0.1% upper95", dry_run=True),
)
"""The standard gates of a backtest, for both kinds of checkpoints."""


def default_gates(kind: str) -> tuple[GateSpec, ...]:
    """Return the standard gates of a checkpoint of kind "score" or "action"."""
    return ACTION if kind == "action" else SCORE
