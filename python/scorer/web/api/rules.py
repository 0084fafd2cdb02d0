"""REST operations on the rules of bundles: check, test, evaluate and save edited ones."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from scorer.bundle.rule_costs import RuleCosts
from scorer.release.requests import BenchRules, CheckRules, CostRules, SaveRules, SwitchRule, TestRules
from scorer.release.rule_answers import CaseRun, RuleBench, RuleCheck, RuleDocument, RulesOverTime, SavedRules
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import BundlePath, CheckpointPath, ProjectPath

router = APIRouter(tags=["rules"])

RulePath = Annotated[
    str,
    Path(alias="rule", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", description="Id of a rule."),
]


@router.get("/bundles/{bundle}/rules")
def get_rules(by: By, bundle: BundlePath) -> RuleDocument:
    """Return the rules of a bundle as text, with the names that they can use."""
    return by.service.authoring.document(by.actor, bundle)


@router.post("/bundles/{bundle}/rules/check")
def check_rules(by: By, bundle: BundlePath, body: CheckRules) -> RuleCheck:
    """Run all static checks on rules for a bundle. Nothing is stored."""
    return by.service.authoring.check(by.actor, bundle, body.text)


@router.post("/bundles/{bundle}/rules/test")
def test_rules(by: By, bundle: BundlePath, body: TestRules) -> CaseRun:
    """Evaluate rules on the author's cases. Nothing is stored."""
    return by.service.authoring.test(by.actor, bundle, body.text, body.cases)


@router.post("/bundles/{bundle}/rules/bench")
def bench_rules(by: By, bundle: BundlePath, body: BenchRules) -> RuleBench:
    """Evaluate the present and edited rules of a bundle on recorded decisions, or on one request."""
    return by.service.authoring.bench(by.actor, bundle, body)


@router.post("/bundles/{bundle}/rules/cost")
def cost_rules(by: By, bundle: BundlePath, body: CostRules) -> RuleCosts:
    """Measure the time that each rule needs, on golden cases or recorded decisions. Nothing is stored."""
    return by.service.authoring.cost(by.actor, bundle, body)


@router.post("/projects/{project}/bundles/{bundle}/rules", status_code=201, responses=refusals(409, 423, 429))
def save_rules(by: By, project: ProjectPath, bundle: BundlePath, body: SaveRules) -> SavedRules:
    """Save rules as the next revision of a bundle, and open a TEST for it. For modelers."""
    return by.service.authoring.save(by.actor, project, bundle, body)


@router.post(
    "/projects/{project}/bundles/{bundle}/rules/{rule}", status_code=201, responses=refusals(409, 423, 429)
)
def switch_rule(
    by: By, project: ProjectPath, bundle: BundlePath, rule: RulePath, body: SwitchRule
) -> SavedRules:
    """Snooze, retire or enable one rule of a bundle, and open a TEST for it. For modelers."""
    return by.service.authoring.switch(by.actor, project, bundle, rule, body)


@router.get("/checkpoints/{checkpoint}/rules")
def rules_over_time(
    by: By,
    checkpoint: CheckpointPath,
    days: Annotated[int, Query(ge=1, le=90, description="Number of days up to now, 1 to 90.")] = 30,
) -> RulesOverTime:
    """Return hits by day and precision of the rules of a checkpoint, from the decision logs."""
    return by.service.rule_histories.over_time(by.actor, checkpoint, days=days)
