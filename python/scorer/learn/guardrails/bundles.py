"""The audit of a log against a bundle and a rule file."""

from __future__ import annotations

from pathlib import Path

from scorer.bundle import inspect
from scorer.learn.errors import DataError
from scorer.learn.experience import Experience
from scorer.learn.guardrails.audit import GuardrailFinding, audit_masks, audit_pmf
from scorer.learn.guardrails.caps import policy_of
from scorer.learn.guardrails.rules import named_columns, read_rules


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
