"""Whether what was logged kept its promises: masks as the rules say, floors, sums, propensities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle import Bundle, Inspection, inspect
from scorer.bundle.eligibility import Eligibility
from scorer.bundle.models import PolicySpec
from scorer.bundle.rules import BundleRules, CompiledRules
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.guardrails.caps import policy_of
from scorer.stats.arrays import Bools, Floats, Ints

# pmfs are logged as float32; a sum over a few hundred of them is exact to about this.
SUM_TOLERANCE = 1e-5
_FLOAT32 = 1e-6
# Decisions whose eligibility is in memory at a time.
_BLOCK = 65_536


@dataclass(frozen=True)
class GuardrailFinding:
    """One kind of violation.

    Attributes:
        what: in words.
        rows: how many decisions are concerned.
        example: the first one's id.
        detail: how many by action or the like.
        rule: id of the rule that was violated; empty for the others.
        source: the regulation or agreement that this rule follows.
    """

    what: str
    rows: int
    example: str
    detail: Mapping[str, int] = field(default_factory=dict)
    rule: str = ""
    source: str = ""

    def __str__(self) -> str:
        of = f'rule "{self.rule}": ' if self.rule else ""
        source = f", {self.source}" if self.source else ""
        return f"{of}{self.what} ({self.rows} decisions, first {self.example}{source})"


def audit_masks(
    experience: Experience, rules: CompiledRules, *, complete: bool = False
) -> tuple[GuardrailFinding, ...]:
    """Compare logged masks with what the rules allow.

    Args:
        experience: The decisions.
        rules: The rules, compiled for the experience's features and actions.
        complete: Whether an action that no rule excludes must have been eligible. Requests may allow fewer
            actions than the rules, so this is for callers that leave all eligibility to the rules.

    Returns:
        A finding for each rule with decisions in which an action was eligible that the rule excludes; its
        detail counts those whose action was *taken*. With `complete`, one more for actions that were not
        eligible without a rule, counted by action.
    """
    every = len(rules.rules)
    rows, taken = np.zeros(every, np.int64), np.zeros(every, np.int64)
    first = np.full(every, -1, np.int64)
    refused = np.zeros(len(experience.actions), np.int64)
    without = np.zeros(len(experience), dtype=bool)
    for start in range(0, len(experience), _BLOCK):
        block = experience.take(slice(start, start + _BLOCK))
        seconds = block.time_ms // 1000
        found = rules.eligibility(block.context, seconds=seconds, ids=block.decision_id.tolist())
        row, rule = _violations(block, rules, found, seconds)
        chosen = np.zeros(block.eligible.shape, dtype=bool)
        chosen[np.arange(len(block)), block.action] = True
        used = _pairs(found, found.removes_any(chosen & block.eligible))
        rows += np.bincount(rule, minlength=every)
        taken += np.bincount(rule[np.isin(row * every + rule, used)], minlength=every)
        # Entries are in the order of rows, so the first of each rule is the earliest.
        seen, where = np.unique(rule, return_index=True)
        fresh = first[seen] < 0
        first[seen[fresh]] = start + row[where[fresh]]
        if complete:
            missing = found.mask & ~block.eligible
            refused += missing.sum(axis=0)
            without[start : start + len(block)] = missing.any(axis=1)
    findings = [
        GuardrailFinding(
            "an action was eligible that the rule excludes",
            int(rows[at]),
            str(experience.decision_id[first[at]]),
            {"taken": int(taken[at])} if taken[at] else {},
            info.id,
            info.source or "",
        )
        for at, info in enumerate(rules.rules)
        if rows[at]
    ]
    if without.any():
        by_action = {name: int(n) for name, n in zip(experience.actions, refused, strict=True)}
        findings.append(
            _finding("actions were not eligible without a rule", without, experience.decision_id, by_action)
        )
    return tuple(findings)


def _violations(
    block: Experience, rules: CompiledRules, found: Eligibility, seconds: Ints
) -> tuple[Ints, Ints]:
    """Return row and rule of every violation, in the order of rows.

    A server may have evaluated the rules in the second before the decision, and a rule may begin or end
    between, so a violation is one only by the rules of both seconds.
    """
    every = len(rules.rules)
    broken = _pairs(found, found.removes_any(block.eligible))
    if len(broken):
        at = np.unique(broken // every)
        before = rules.eligibility(
            block.context[at], seconds=seconds[at] - 1, ids=block.decision_id[at].tolist()
        )
        earlier = _pairs(before, before.removes_any(block.eligible[at]))
        broken = broken[np.isin(broken, at[earlier // every] * every + earlier % every)]
    return np.divmod(broken, max(every, 1))


def _pairs(found: Eligibility, entries: Bools) -> Ints:
    """Return `row * rules + rule` of the chosen entries."""
    return np.asarray(found.row[entries] * len(found.rules) + found.rule[entries], dtype=np.int64)


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


def audit(
    experience: Experience, bundle: Path, rules: BundleRules | None = None, *, complete: bool = False
) -> tuple[GuardrailFinding, ...]:
    """Return every violation in a log.

    Args:
        experience: The decisions.
        bundle: Gives schema, catalogue, rules and, for its own decisions, floors.
        rules: Rules to use instead of the bundle's. Without any, masks are not compared.
        complete: See `audit_masks`.

    Raises:
        DataError: The log is over another catalogue or schema, lacks features that the rules read, or the
            rules do not fit the bundle.
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
    compiled = _compiled(inspection, rules)
    if compiled is None:
        return findings
    if lacking := [name for name in experience.withheld if compiled.reads(name)]:
        raise DataError(
            f"rules: they read sensitive features that the experience lacks ({', '.join(lacking)}); join "
            "with the reader key if these are encrypted, or give rules that do not read them"
        )
    return findings + audit_masks(experience, compiled, complete=complete)


def _compiled(inspection: Inspection, rules: BundleRules | None) -> CompiledRules | None:
    if rules is None:
        return Bundle.load(inspection.path).rules if inspection.rules else None
    found = Bundle.load(inspection.path).check_rules(rules)
    if isinstance(found, tuple):
        raise DataError("\n".join(f"rules: {fault}" for fault in found))
    return found
