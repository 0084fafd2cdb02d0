"""Whether what was logged kept its promises: masks as the rules say, floors, sums, propensities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle import inspect
from scorer.bundle.models import PolicySpec
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.guardrails.caps import policy_of
from scorer.learn.guardrails.rules import Eligibility, named_columns, read_rules
from scorer.stats.arrays import Floats

# pmfs are logged as float32; a sum over a few hundred of them is exact to about this.
SUM_TOLERANCE = 1e-5
_FLOAT32 = 1e-6


@dataclass(frozen=True)
class GuardrailFinding:
    """One kind of violation.

    Attributes:
        what: in words.
        rows: how many decisions are concerned.
        example: the first one's id.
        detail: how many by rule, action or the like.
    """

    what: str
    rows: int
    example: str
    detail: Mapping[str, int] = field(default_factory=dict)


def audit_masks(experience: Experience, said: Eligibility) -> tuple[GuardrailFinding, ...]:
    """Compares logged masks with what the rules say.

    Returns:
        At most two findings: allowed against a rule (counted by rule), and refused without a reason
        (counted by action). An action allowed against a rule and *taken* is counted as well.
    """
    ids, findings = experience.decision_id, []
    against = experience.eligible & ~said.mask
    if against.any():
        by_rule = {
            rule.name: int((against & said.rules.concerned[at] & ~said.met[:, at : at + 1]).any(axis=1).sum())
            for at, rule in enumerate(said.rules.rules)
        }
        taken = int(against[np.arange(len(experience)), experience.action].sum())
        findings.append(
            _finding(
                "actions were eligible against a rule", against.any(axis=1), ids, by_rule | {"taken": taken}
            )
        )
    without = said.mask & ~experience.eligible
    if without.any():
        counts = without.sum(axis=0)
        by_action = {name: int(n) for name, n in zip(experience.actions, counts, strict=True)}
        findings.append(_finding("actions were refused without a rule", without.any(axis=1), ids, by_action))
    return tuple(findings)


def audit_pmf(
    experience: Experience, floors: Mapping[str, PolicySpec] | None = None
) -> tuple[GuardrailFinding, ...]:
    """Checks every logged pmf.

    Args:
        experience: the decisions.
        floors: by bundle, the policy whose floors its pmfs must hold.
    """
    pmf, eligible, ids = experience.pmf.astype(np.float64), experience.eligible, experience.decision_id
    rows = np.arange(len(pmf))
    checks = {
        "the pmf holds what is no probability": (~np.isfinite(pmf) | (pmf < 0) | (pmf > 1 + _FLOAT32)).any(
            axis=1
        ),
        "the pmf does not sum to 1": np.abs(pmf.sum(axis=1) - 1) > SUM_TOLERANCE,
        "an action that is not eligible has a probability": ((pmf > 0) & ~eligible).any(axis=1),
        "the action taken was not eligible": ~eligible[rows, experience.action],
        "the propensity is not the action's probability": np.abs(
            pmf[rows, experience.action] - experience.propensity
        )
        > _FLOAT32,
    }
    for name, spec in (floors or {}).items():
        if name in experience.bundles:
            own = experience.bundle == experience.bundles.index(name)
            least = floor_of(spec, experience.actions, eligible)
            short = (eligible & (pmf < least - _FLOAT32)).any(axis=1)
            checks[f"an eligible action is below the floor of {name[:19]}"] = own & short
    return tuple(_finding(what, bad, ids) for what, bad in checks.items() if bad.any())


def floor_of(spec: PolicySpec, actions: Sequence[str], eligible: npt.NDArray[np.bool_]) -> Floats:
    """`[n, actions]` the least probability that a policy gives each eligible action; 0 elsewhere."""
    own = np.array([spec.action_floors.get(name, 0.0) for name in actions])
    spread = spec.floor / np.maximum(eligible.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.where(eligible, np.maximum(spread, own), 0.0))


def _finding(
    what: str, bad: Any, ids: npt.NDArray[np.str_], detail: Mapping[str, int] | None = None
) -> GuardrailFinding:
    counted = {name: count for name, count in (detail or {}).items() if count}
    return GuardrailFinding(what, int(bad.sum()), str(ids[int(bad.argmax())]), counted)


def audit(experience: Experience, bundle: Path, rules: Path | None) -> tuple[GuardrailFinding, ...]:
    """Every violation in a log.

    Args:
        experience: the decisions.
        bundle: gives schema, catalogue and, for its own decisions, floors.
        rules: the rule file; None: masks are not checked.

    Raises:
        DataError: the log is over another catalogue or schema.
    """
    inspection = inspect(bundle)
    spec = policy_of(inspection)
    if tuple(action.id for action in inspection.actions) != experience.actions:
        raise DataError(f'"{bundle}" has another catalogue than the log; give one that made it')
    columns = inspection.data.features
    if len(columns) != experience.context.shape[1]:
        raise DataError(
            f'"{bundle}" takes {len(columns)} features, the log has {experience.context.shape[1]}; '
            "give one that made it"
        )
    findings = audit_pmf(experience, {inspection.digest: spec})
    if rules is None:
        return findings
    said = read_rules(rules, [action.factors for action in inspection.actions])
    return findings + audit_masks(experience, said.evaluate(named_columns(columns, experience.context)))
