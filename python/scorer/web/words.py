"""Labels, explanations and messages of the pages, in one place. Terms are those of docs/glossary.md."""

from __future__ import annotations

import math

from scorer.release.answers import SegmentReport, Step
from scorer.release.gates.names import METRICS
from scorer.release.gates.words import number
from scorer.release.model import ChangeKind, ChangeRequest, ChangeState, GateSpec, Outcome
from scorer.release.review_answers import CaseEvent

STATES = {
    ChangeState.DRAFT: "Draft",
    ChangeState.CHECKS: "Checks",
    ChangeState.BOOKED: "Booked",
    ChangeState.DEPLOYING: "Deploying",
    ChangeState.OBSERVING: "Observing",
    ChangeState.REPORT: "Report",
    ChangeState.APPROVED: "Approved",
    ChangeState.RELEASED: "Rolling out",
    ChangeState.DONE: "Done",
    ChangeState.REJECTED: "Rejected",
    ChangeState.EXPIRED: "Expired",
    ChangeState.ROLLED_BACK: "Rolled back",
}
KINDS = {ChangeKind.TEST: "TEST", ChangeKind.RELEASE: "RELEASE", ChangeKind.OVERLAY: "OVERLAY"}
STEPS = {"to come": "pending"}
"""Status of a step, where its label differs."""
STEP_NAMES = {
    "package": "Store the bundle",
    "verify": "Verify the files",
    "golden": "Score the golden cases",
    "fit": "Compare with the checkpoint",
    "warm-up": "Warm up and measure",
    "backtest": "Backtest on logged decisions",
    "slot": "Wait for the slot",
    "deploy": "Deploy to the shadow",
    "sample": "Observe requests",
    "measure": "Evaluate the gates",
    "report": "Write the report",
    "approval": "Wait for approval",
    "release": "Wait for the rollout",
    "full": "Answer all requests",
    "alias": "Move the alias",
}
"""Titles of steps; others are written as the pipeline names them."""
VERDICTS = {
    Outcome.PASS: "Passed: eligible for release",
    Outcome.FAIL: "Failed: not eligible for release",
    Outcome.INCONCLUSIVE: "Inconclusive: not enough data for a release",
}
CAUSES = {
    "found": "detected outside the platform",
    "break glass": "changed with break-glass",
    "shadow": "observe lanes of a change",
    "stage": "canary stage",
    "release": "release",
    "overlay": "overlay revision",
    "rollback": "rollback",
    "sampling": "sampling changed",
}
COUNTERS = (
    ("seen", "Requests", "Requests of the checkpoint since the lane was added."),
    ("left_out", "Not sampled", "Requests that the sampling or the filter excluded."),
    ("evaluated", "Evaluated", "Requests that the lane evaluated."),
    ("failed", "Failed", "Evaluations that ended without a score, by reason."),
    ("dropped", "Dropped", "Sampled requests that the lane's queue had no room for."),
    ("shed", "Shed", "Sampled requests that were not evaluated because the server was under load."),
    ("waiting", "Waiting", "Requests in the lane's queue now."),
)
"""Key, heading and explanation of an observe lane's counters."""

EXPLANATIONS = {
    "error_rate": "Share of evaluations that ended without a score (panic, not finite, features, error).",
    "drop_rate": "Share of sampled requests that the observe lane did not evaluate.",
    "parity_max_abs": "Largest difference between the served score and the score recomputed offline.",
    "feature_parity_rate": "Share of rows whose features are all present and known to the bundle.",
    "score_psi": "Population stability index of the scores against the reference of training.",
    "score_psi_live": "Population stability index of the scores against those of the live model.",
    "flip_rate": "Share of decisions that differ from the live model.",
    "approve_rate_delta": "Approve rate minus that of the live model.",
    "flagged_agreement": "Agreement on the requests with the highest scores, from 0 (by chance) to 1.",
    "declined_kept": "Share of the requests declined by live that this model flags, corrected for chance.",
    "tail_correlation": "Rank correlation of both models' scores over the requests that are flagged.",
    "flagged_share_change": "Relative change of the share of requests that are flagged.",
    "segments_worse": "Number of segments in which a bound breaks a limit of the standard gates.",
    "group_selection_difference": "Largest minus smallest share of a group's requests that are not approved.",
    "group_selection_ratio": "Smallest over largest share of a group's requests that are not approved.",
    "group_tpr_difference": "Largest minus smallest share of a group's positives that are not approved.",
    "group_tpr_ratio": "Smallest over largest share of a group's positives that are not approved.",
    "group_fpr_difference": "Largest minus smallest share of a group's negatives that are not approved.",
    "group_fpr_ratio": "Smallest over largest share of a group's negatives that are not approved.",
    "group_odds_difference": "The larger of the differences of true and of false positive rates.",
    "group_odds_ratio": "The smaller of the ratios of true and of false positive rates.",
    "backtest_auc": "Change of the area under the ROC curve over logged decisions with a known outcome.",
    "backtest_average_precision": "Relative change of the average precision over these decisions.",
    "backtest_recall_review": "Relative change of the recall where both flag the live model's share.",
    "backtest_recall_decline": "Relative change of the recall where both decline the live model's share.",
    "backtest_value_saved": "Relative change of the amount of detected fraud at the live model's share.",
    "backtest_calibration": "Sum of the scores over the number of positive outcomes.",
    "backtest_reward": "Change of the expected reward, doubly robust, over logged decisions.",
    "backtest_reward_ips": "Change of the expected reward by inverse propensities.",
    "backtest_agreement": "Share of decisions for which both policies have the same most probable action.",
    "backtest_effective_share": "Effective sample size over the number of decisions.",
    "backtest_decisions_changed": "Share of logged decisions that this bundle, with rules, changes.",
    "backtest_approvals_lost": "Share of live's approvals that this bundle, with rules, does not approve.",
    "backtest_nothing_left": "Share of logged decisions for which the rules of this bundle leave no action.",
    "auc_matured": "Area under the ROC curve over decisions whose outcome is known.",
    "covered_hours_of_week": "Number of the 168 hours of a week with observations.",
    "policy_distance": "Total variation distance between the two policies.",
    "min_propensity": "Smallest probability of an eligible action.",
    "expected_reward_delta": "Estimated reward of the policy's choices minus that of the live policy.",
}
BACKTEST = {
    "auc": "AUC",
    "average_precision": "Average precision",
    "recall_review": "Recall at live's review rate",
    "recall_decline": "Recall at live's decline rate",
    "value_saved": "Value saved at live's review rate",
    "calibration": "Expected over observed positives",
    "reward": "Reward, doubly robust",
    "reward_ips": "Reward, inverse propensities",
    "agreement": "Agreement of the most probable actions",
    "effective_rows": "Effective rows",
    "decisions_changed": "Decisions that change",
    "approvals_lost": "Approvals lost",
    "nothing_left": "Decisions without an action",
}
AGAINST = {
    "sla": "the checkpoint's SLA",
    "live": "the live model",
    "reference": "training",
    "aa_control": "the A/A control",
}
ORDERS = {"by": "uploaded by", "live_time": "time as the live bundle"}
"""Orders of versions, where the header of their column is shorter."""
OUTCOMES = {"pass": "pass", "fail": "fail", "inconclusive": "inconclusive"}
TONES = {"approve": "good", "review": "warn", "decline": "bad"}
"""Colour of a decision, so that a change is visible at a glance."""
WHO = {
    "approve": "Requires an approver of the project other than the submitter.",
    "reject": "Requires an approver of the project.",
    "waive": "Requires an approver of the project other than the submitter. The audit log records it.",
    "withdraw": "Requires the submitter or an owner of the project.",
    "rollback": "Requires the submitter of the release, an owner or an admin. Possible also during a freeze.",
    "request_review": "Requires the submitter or an owner of the project.",
    "pause": "Requires the submitter, the approver of the change or an owner. Gates are still evaluated.",
    "resume": "Requires the submitter, the approver of the change or an owner.",
    "promote": "Requires an approver of the project other than the submitter. The remaining time of the "
    "stage and gates without a result are ignored.",
    "skip": "Requires an approver of the project other than the submitter.",
    "finish": "Requires the submitter or an owner of the project.",
    "rebook": "Requires the submitter. Possible until the change is deployed.",
}
BUILD_STATES = {
    "waiting": "Waiting",
    "running": "Running",
    "done": "Done",
    "failed": "Failed",
    "cancelled": "Cancelled",
}
BUILD_FILES = {
    "model": "model",
    "table": "reference data",
    "validation": "validation data",
    "example": "example request",
}
SAID = {
    "drafted": "The draft is saved. Submit it to book its shadow slot.",
    "edited": "The draft is saved.",
    "rules-saved": "The rules are saved as the next revision of the bundle, and its TEST is submitted.",
    "rules-drafted": "The rules are saved as the next revision of the bundle. Its TEST is a draft.",
    "described": "The text of the model card is saved.",
    "delete": "The draft is deleted.",
    "submit": "Submitted: the shadow slot is booked and the checks have started.",
    "rebook": "The booking is moved.",
    "finish": "The observation ends now. The platform writes the report.",
    "approve": "Approved: the release proceeds stage by stage and is rolled back if a gate fails.",
    "reject": "The change request is rejected.",
    "waive": "The gate is waived. The audit log records the user and the reason.",
    "withdraw": "The change request is withdrawn.",
    "pause": "Paused: the release keeps its current shares.",
    "resume": "Resumed: the stage ends when its time is over and its gates pass.",
    "promote": "Promoted: the servers receive the next lanes.",
    "skip": "The stage will be skipped.",
    "comment": "The comment is saved and sent to the project's channels.",
    "request_review": "The reviewers are saved; the project's channels are notified.",
    "archive": "Archived: lists omit the change request.",
    "unarchive": "The change request is listed again.",
    "rollback": "Rolled back: the previous lanes are active again.",
    "served": "The servers have the checkpoint now. It answers once its alias names a bundle.",
    "sampling": "The sampling is changed, also for running observe lanes.",
    "uploaded": "The bundle is verified and in the registry.",
    "build-cancelled": "The build is cancelled, and its files are removed.",
    "adopted": "The bundle now belongs to the project.",
    "channel": "The channel is added.",
    "channel-removed": "The channel is removed.",
    "freeze": "The freeze is active.",
    "freeze-removed": "The freeze is removed.",
    "member": "The members are changed.",
    "agent-tools": "The tools that agents may use are changed.",
    "project": "The project is saved.",
    "server": "The server responds, and the platform manages it now.",
    "server-removed": "The platform no longer manages the server.",
    "checkpoint": "The checkpoint is added. Its servers must have it, too.",
    "user": "The user is changed.",
    "user-removed": "The user is disabled: tokens, sessions and roles have ended.",
    "permission": "The standing permission is granted; the audit log records it.",
    "permission-revoked": "The standing permission is revoked.",
    "review-claimed": "The case is assigned to you.",
    "review-released": "The case is released.",
    "review-assigned": "The case is assigned.",
    "review-decided": "The decision is saved. The outcome is reported to a server.",
    "review-reasons": "The reasons of reviews are saved.",
    "revoked": "The token is revoked; its sessions have ended.",
    "out": "You are signed out.",
}


def case_event(event: CaseEvent) -> str:
    """Return an entry in the history of a review case as a sentence."""
    found = event.details
    if event.action == "assigned":
        words = f"{event.actor} assigned it to {found['to']}"
    elif event.action == "decided":
        verb = "approved" if found["decision"] == "approve" else "declined"
        again = f" (correction {found['revision']})" if found["revision"] else ""
        words = f"{event.actor} {verb} it: {found['reason']}{again}"
    elif event.action == "delivered":
        proof = "proven" if found["proven"] else "unproven"
        more = "; a higher revision is in force" if found["superseded"] else ""
        words = f"{found['server']} recorded the outcome, revision {found['revision']}, {proof}{more}"
    elif event.action == "revised":
        words = f"a server has another outcome, so revision {found['revision']} is reported"
    elif event.action == "overdue":
        words = "it became overdue"
    elif event.action == "closed":
        words = f"it was closed: {found['why']}"
    else:
        words = f"{event.actor} {event.action} it"
    return words


_CHARTS = {
    "exec_": "latency",
    "data_load_": "data-load",
    "score_": "scores",
    "parity_": "score-score",
    "flip_": "flips",
    "approve_": "flips",
    "flagged_": "flips",
    "declined_": "flips",
    "tail_": "score-score",
    "drop_": "drops",
    "error_": "drops",
    "covered_": "coverage",
    "policy_": "actions",
    "min_propensity": "actions",
}
"""Name of the report's figure that shows a metric, by the prefix of the metric's name."""
OF_DECISIONS = frozenset({"flip_rate", "approve_rate_delta", "flagged_share_change", "declined_kept"})
"""Metrics of the decisions that differ from live."""


def chart(metric: str) -> str:
    """Return the name of the figure that shows a metric; empty: none does."""
    return next((name for start, name in _CHARTS.items() if metric.startswith(start)), "")


def state(change: ChangeRequest) -> str:
    """Label of a change request's state."""
    if change.state is ChangeState.REPORT and change.kind is ChangeKind.RELEASE:
        return "Awaiting approval" if change.step == "approval" else "Report"
    if change.state is ChangeState.REJECTED and change.note.startswith("withdrawn"):
        return "Withdrawn"
    return STATES[change.state]


def step(one: Step) -> str:
    """Title of a step of the pipeline."""
    name = one.name or str(one.state)
    return STEP_NAMES.get(name) or name[:1].upper() + name[1:]


def cause(name: str) -> str:
    """Describe why a lane table was recorded."""
    return CAUSES.get(name, name)


def metric(name: str) -> str:
    """Return the title of a metric."""
    known = METRICS.get(name)
    return known.title if known else name.replace("_", " ").capitalize()


SEGMENT_MEASURES = {
    "approve_rate_delta": "Change of the approve rate",
    "flagged_share_change": "Change of the flagged share",
    "flagged_agreement": "Rank overlap of what live flags",
    "auc_matured": "Change of the AUC",
    "calibration": "Calibration",
    "calibration_live": "Calibration, live",
    "policy_distance": "Distance of the policies",
    "expected_reward_delta": "Change of the reward",
    "same_action": "Same likeliest action",
    "expected_reward": "Change of the expected reward",
    "reward_live": "Expected reward, live",
    "reward_candidate": "Expected reward",
}
"""Titles of the measures of segments, in the order of the table's columns."""
_SEGMENT_SHARES = frozenset({"same_action"})


def segment_measures(report: SegmentReport) -> list[str]:
    """Return the measures that any segment of a report has, in the order of the table's columns."""
    known = {name for one in report.segments for name in one.measures}
    return [name for name in SEGMENT_MEASURES if name in known]


def segment_amount(name: str, value: float | None) -> str:
    """Value or bound of a measure of a segment in its unit."""
    if name in _SEGMENT_SHARES and value is not None:
        return number(value, "share")
    return amount(name, value)


def explain(name: str) -> str:
    """Explain a metric in a sentence."""
    if name.startswith(("exec_", "data_load_")):
        return "Time to evaluate the model." if name.startswith("exec_") else "Time to obtain the features."
    return EXPLANATIONS.get(name, "")


def amount(name: str, value: float | None) -> str:
    """Format the value of a metric in its unit."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    unit = METRICS[name].unit if name in METRICS else "number"
    return number(value, unit)


def figure(value: float | None) -> str:
    """Format a number with four significant digits."""
    return "\N{EN DASH}" if value is None else f"{value:,.4g}"


def gate(spec: GateSpec) -> str:
    """Describe a gate in words."""
    said = spec.success
    for written, spoken in _SPOKEN:
        said = said.replace(written, spoken)
    parts = [" ".join(said.split())]
    if spec.against and spec.against != "sla":
        parts.append(f"compared with {AGAINST.get(spec.against, spec.against)}")
    if spec.minus:
        parts.append(f"in excess of {AGAINST.get(spec.minus, spec.minus)}")
    if spec.min_rows:
        parts.append(f"evaluated with at least {spec.min_rows:,} rows")
    if spec.when:
        parts.append(f"once {spec.when}")
    if spec.interval_seconds:
        parts.append(
            f"evaluated every {spec.interval_seconds} s, {spec.count or 'any number of'} times, "
            f"{spec.failure_limit} failures allowed"
        )
    return ", ".join(parts) + (" (informational)" if spec.dry_run else "")


_SPOKEN = (
    ("abs <=", "within ±"),
    ("<=", "at most"),
    (">=", "at least"),
    ("==", "exactly"),
    ("<", "below"),
    (">", "above"),
    ("upper95", "at 95 % confidence"),
    ("lower95", "at 95 % confidence"),
    ("threshold(floor=", "a threshold by sample size (at least "),
    ("sla", "the SLA"),
)
