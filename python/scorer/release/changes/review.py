"""The summary for an approver: gates that are close to their limit, and the largest differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scorer.release.answers import Remark, Review
from scorer.release.gates.names import METRICS, SEGMENTS
from scorer.release.gates.words import number
from scorer.release.model import GateResult, Outcome

_NEAR = 0.2
"""Distance to the limit, as a share of it, below which a passed gate is listed as close to its limit."""
_SHOWN = ("flip_rate", "approve_rate_delta", "flagged_share_change", "score_psi_live", "policy_distance")
_NAMES = 5


def review(gates: Sequence[GateResult], diff: Mapping[str, Any]) -> Review:
    """Summarise the gates and differences of a change request for its approver.

    Args:
        gates: Results of the latest evaluation.
        diff: Differences to the live bundle, as `ChangeDetail.diff`.
    """
    remarks = [Remark(gate.metric, reason) for gate in gates if (reason := _reason(gate))]
    return Review(tuple(remarks), tuple(_differences(gates, diff)))


def _reason(gate: GateResult) -> str:
    """Return the reason to list a gate in the summary; empty if it is not listed."""
    if gate.waived_by:
        return f"waived by {gate.waived_by}: {gate.waived_why}"
    if gate.outcome is Outcome.FAIL:
        said = "fails, for information" if gate.dry_run else "fails"
        # The segments are what an approver has to know; other gates say in one word what their row explains.
        return f"{said}: {gate.words}" if gate.metric == SEGMENTS else said
    if gate.outcome is Outcome.INCONCLUSIVE:
        # A gate whose condition does not hold yet does not contribute to the verdict.
        return "no result yet" if gate.dry_run else "inconclusive"
    return "close to its limit" if _is_close(gate) else ""


def _is_close(gate: GateResult) -> bool:
    limit = gate.threshold
    if limit is None or gate.value is None:
        return False
    grows = gate.success.lstrip().startswith((">", "=>"))
    bounds = [abs(one) for one in (gate.low, gate.high) if one is not None]
    if "abs" in gate.success:
        decides: float | None = max(bounds, default=abs(gate.value))
    else:
        decides = gate.low if grows else gate.high
    decides = gate.value if decides is None else decides
    scale = abs(limit)
    if grows and 0 < limit <= 1:
        # A share with a lower limit is at most 1, so the distance is also relative to 1 minus the limit.
        scale = min(limit, 1 - limit)
    return limit != 0 and abs(decides - limit) <= _NEAR * scale


def _differences(gates: Sequence[GateResult], diff: Mapping[str, Any]) -> list[str]:
    found = [
        f"{METRICS[gate.metric].title} {number(gate.value, METRICS[gate.metric].unit)}"
        for gate in gates
        if gate.metric in _SHOWN and gate.value is not None
    ]
    features = diff.get("features") or {}
    for word in ("added", "removed", "changed"):
        names = [str(name) for name in features.get(word) or ()]
        if names:
            more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
            found.append(f"features {word}: {', '.join(names[:_NAMES])}{more}")
    thresholds = diff.get("thresholds") or {}
    before, after = thresholds.get("before") or {}, thresholds.get("after") or {}
    found += [
        f"{label} from score {before.get(label, 'none')} to {score}"
        for label, score in after.items()
        if before.get(label) != score
    ]
    for name, one in (diff.get("metrics") or {}).items():
        values = (one.get("before"), one.get("after"))
        if all(isinstance(value, int | float) for value in values) and values[0] != values[1]:
            found.append(f"training metric {name} from {values[0]:.4g} to {values[1]:.4g}")
    return found
