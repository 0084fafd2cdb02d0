"""What things are called on pages; see the words of docs/ARCHITECTURE.md."""

from __future__ import annotations

import math

from scorer.release.gates.names import METRICS
from scorer.release.gates.words import number
from scorer.release.model import ChangeKind, ChangeState, GateSpec

STATES = {
    ChangeState.DRAFT: "Draft",
    ChangeState.CHECKS: "Checks",
    ChangeState.BOOKED: "Booked",
    ChangeState.DEPLOYING: "Deploying",
    ChangeState.AUDITING: "Auditing",
    ChangeState.READ_OUT: "Read-out",
    ChangeState.APPROVED: "Approved",
    ChangeState.RELEASED: "Being released",
    ChangeState.DONE: "Done",
    ChangeState.REJECTED: "Rejected",
    ChangeState.EXPIRED: "Expired",
    ChangeState.ROLLED_BACK: "Rolled back",
}
KINDS = {ChangeKind.TEST: "TEST", ChangeKind.RELEASE: "RELEASE"}

EXPLANATIONS = {
    "error_rate": "Evaluations that ended without a score: panic, not finite, features, error.",
    "drop_rate": "Requests meant for the shadow that it could not take.",
    "parity_max_abs": "The served score against the same row scored offline from the bundle.",
    "feature_parity_rate": "Share of rows whose features were all there and known to the bundle.",
    "score_psi": "How far the scores are from those of training.",
    "score_psi_live": "How far the scores are from those that answer now.",
    "flip_rate": "Share of shoppers who would have been told something else.",
    "approve_rate_delta": "Change of the share that is approved.",
    "auc_matured": "How well it ranks decisions whose outcome is known by now.",
    "covered_hours_of_week": "How much of a business week the shadow has seen.",
    "policy_distance": "How differently the two policies would draw.",
    "min_propensity": "The least chance that any eligible action has.",
    "expected_reward_delta": "What its choices would have earned beyond the present ones.",
}
AGAINST = {
    "sla": "the checkpoint's promise",
    "live": "what answers now",
    "reference": "training",
    "aa_control": "the A/A control",
}
OUTCOMES = {"pass": "pass", "fail": "fail", "inconclusive": "inconclusive"}
TONES = {"approve": "good", "review": "warn", "decline": "bad"}
"""Of what shoppers are told, so that a flip is seen at a glance."""
WHO = {
    "approve": "Approvers of the project, never whoever submitted it.",
    "reject": "Approvers of the project.",
    "waive": "Approvers of the project, never whoever submitted it; the waiver is kept in the audit log.",
    "withdraw": "Whoever submitted it, and owners of the project.",
    "rollback": "Whoever released it, owners and admins; always, also in a freeze.",
    "finish": "Whoever submitted it, and owners of the project.",
    "rebook": "Whoever submitted it, before it is deployed.",
}
SAID = {
    "drafted": "The draft is kept. Submit it when it is as you want it.",
    "edited": "The draft is changed.",
    "submit": "Submitted: its shadow slot is booked and its checks have begun.",
    "rebook": "The booking is moved.",
    "finish": "Auditing ends now; the read-out is being made.",
    "approve": "Approved: it is released stage by stage, watched by its gates.",
    "reject": "Rejected.",
    "waive": "The gate is waived; the audit log says by whom and why.",
    "withdraw": "Withdrawn: its lanes are taken away and its slot is free again.",
    "rollback": "Rolled back: what answered before answers again.",
    "sampling": "The sampling is changed; running shadows follow at once.",
    "uploaded": "The bundle is verified and in the registry.",
    "adopted": "The bundle now belongs to the project.",
    "channel": "The channel is added.",
    "channel-removed": "The channel is removed.",
    "freeze": "The freeze is in force.",
    "freeze-removed": "The freeze is removed.",
    "member": "The members are changed.",
    "project": "The project is kept.",
    "revoked": "The token is revoked, and whoever used it is signed out.",
    "out": "You are signed out.",
}


def metric(name: str) -> str:
    """A metric's title."""
    known = METRICS.get(name)
    return known.title if known else name.replace("_", " ").capitalize()


def explain(name: str) -> str:
    """What a metric is, in a sentence."""
    if name.startswith(("exec_", "data_load_")):
        return "The model's own time." if name.startswith("exec_") else "Time to have the features at hand."
    return EXPLANATIONS.get(name, "")


def amount(name: str, value: float | None) -> str:
    """A metric's value, in its unit."""
    if value is None or not math.isfinite(value):
        return "\N{EN DASH}"
    unit = METRICS[name].unit if name in METRICS else "number"
    return number(value, unit)


def gate(spec: GateSpec) -> str:
    """One line of the gates, so that a person understands it."""
    said = spec.success
    for written, spoken in _SPOKEN:
        said = said.replace(written, spoken)
    parts = [" ".join(said.split())]
    if spec.against and spec.against != "sla":
        parts.append(f"against {AGAINST.get(spec.against, spec.against)}")
    if spec.minus:
        parts.append(f"beyond {AGAINST.get(spec.minus, spec.minus)}")
    if spec.min_rows:
        parts.append(f"judged from {spec.min_rows:,} rows on")
    if spec.when:
        parts.append(f"once {spec.when}")
    if spec.interval_seconds:
        parts.append(
            f"judged every {spec.interval_seconds} s, {spec.count or 'any number of'} times, "
            f"{spec.failure_limit} failures allowed"
        )
    return ", ".join(parts) + (" (shown only, never decides)" if spec.dry_run else "")


_SPOKEN = (
    ("abs <=", "within ±"),
    ("<=", "at most"),
    (">=", "at least"),
    ("==", "exactly"),
    ("<", "below"),
    (">", "above"),
    ("upper95", "with 95 % certainty"),
    ("lower95", "with 95 % certainty"),
    ("threshold(floor=", "a threshold by sample size (at least "),
    ("sla", "the promise"),
)
