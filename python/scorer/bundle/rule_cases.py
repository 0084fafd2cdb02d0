"""Cases of rules: requests with the result that the author expects, as a TOML file."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat

from scorer.bundle.models import Feature
from scorer.bundle.toml_models import parse_toml, read_toml
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle.loaded import Bundle
    from scorer.bundle.rules import CompiledRules

MAX_CASES = 100_000
"""Greatest number of cases of a file."""
_CLOSE = 1e-9


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExpectedResult(_Strict):
    """The expected result of a case. What is left out is not compared."""

    fired: list[str] | None = None
    """Ids of the rules that have an effect, in any order."""
    decision: str | None = None
    score: FiniteFloat | None = None
    """The score within caps and floors."""
    queue: str | None = None
    """The review queue; "" for none."""
    eligible: list[str] | None = None
    """Ids of the actions that are left, in any order; empty if the rules leave none."""


class RuleCase(_Strict):
    """One request with its expected result."""

    name: str
    features: dict[str, bool | FiniteFloat | str] = {}
    """Values by feature. A feature that is left out is missing."""
    score: FiniteFloat | None = None
    """The bundle's score; left out: the bundle computes it. Not for action bundles."""
    without_score: bool = False
    """Whether there is no score, as after a failure of the model."""
    eligible: list[str] | None = None
    """Ids of the actions that the request allows; left out: all."""
    at: AwareDatetime | None = None
    """Time of the request with time zone; left out: now."""
    id: str = "case"
    """Id of the request, on which roll-outs depend."""
    expect: ExpectedResult


class _Cases(_Strict):
    cases: list[RuleCase] = Field(max_length=MAX_CASES)


@dataclass(frozen=True)
class CaseResult:
    """The result of one case."""

    name: str
    fired: tuple[str, ...]
    differences: tuple[str, ...]
    """What differs from the expectation, one line each; empty if the case passes."""

    @property
    def passed(self) -> bool:
        """Whether the result is the expected one."""
        return not self.differences


def read_cases(file: Path) -> list[RuleCase]:
    """Read cases from a TOML file, which docs/rules.md describes.

    Raises:
        BundleError: The file cannot be read, or a case is not valid. The message has one line per error.
    """
    cases = read_toml(file, _Cases, "cases").cases
    if not cases:
        raise BundleError(f'cases "{file}" has no [[cases]]; add at least one')
    return cases


def parse_cases(text: str) -> list[RuleCase]:
    """Parse the text of a file of cases; an empty text has none.

    Raises:
        BundleError: A case is not valid. The message has one line per error.
    """
    return parse_toml(text, _Cases, "cases").cases if text.strip() else []


def run_cases(
    cases: Sequence[RuleCase], rules: CompiledRules, bundle: Bundle, features: Sequence[Feature]
) -> list[CaseResult]:
    """Evaluate rules on cases and compare the results with the expected ones.

    Args:
        cases: The cases.
        rules: The rules, compiled for the bundle.
        bundle: The bundle.
        features: The features of the bundle's requests.

    Raises:
        BundleError: A case has a feature, a value, an action or a score that the bundle does not have.
    """
    import numpy as np

    rows = np.asarray([_row(case, features) for case in cases], dtype=np.float32)
    rows = rows.reshape(len(cases), len(features))
    scores = np.full(len(cases), math.nan)
    if bundle.kind == "score":
        scores = bundle.score(rows).scores.copy()
        for at, case in enumerate(cases):
            if case.score is not None:
                scores[at] = case.score
            if case.without_score:
                scores[at] = math.nan
    elif any(case.score is not None for case in cases):
        raise BundleError("cases: rules of an action bundle read no score; remove score")
    now = time.time()
    seconds = [int(now if case.at is None else _seconds(case.at)) for case in cases]
    found = rules.evaluate(rows, scores=scores, seconds=seconds, ids=[case.id for case in cases])
    results = []
    for at, case in enumerate(cases):
        applied = [rules.rules[number] for number in found.applied[at]]
        fired = tuple(rule.id for rule in applied)
        different = []
        if case.expect.fired is not None and sorted(case.expect.fired) != sorted(fired):
            different.append(f"fired {list(fired)}, expected {case.expect.fired}")
        if bundle.kind == "score":
            unscored = math.isnan(scores[at]) and not found.written[at]
            decision = "" if unscored else bundle.labels[int(found.bands[at])]
            queue = next((rule.queue for rule in applied if rule.queue), "")
            different += _of_score(case.expect, decision, float(found.scores[at]), queue)
        else:
            different += _of_actions(case, found.allowed[at], bundle)
        results.append(CaseResult(case.name, fired, tuple(different)))
    return results


def _of_score(expect: ExpectedResult, decision: str, score: float, queue: str) -> list[str]:
    different = []
    if expect.decision is not None and expect.decision != decision:
        different.append(f'decision "{decision}", expected "{expect.decision}"')
    if expect.score is not None and not math.isclose(expect.score, score, rel_tol=0, abs_tol=_CLOSE):
        different.append(f"score {score:.9g}, expected {expect.score:.9g}")
    if expect.queue is not None and expect.queue != queue:
        different.append(f'queue "{queue}", expected "{expect.queue}"')
    if expect.eligible is not None:
        different.append("eligible is for rules of action bundles; remove it")
    return different


def _of_actions(case: RuleCase, allowed: Any, bundle: Bundle) -> list[str]:
    expect = case.expect
    different = []
    for what, value in (("decision", expect.decision), ("score", expect.score), ("queue", expect.queue)):
        if value is not None:
            different.append(f"{what} is for rules of score bundles; remove it")
    asked = set(bundle.actions if case.eligible is None else case.eligible)
    for action in sorted((asked | set(expect.eligible or ())) - set(bundle.actions)):
        raise BundleError(f'case "{case.name}": the bundle has no action "{action}"; correct the id')
    left = [name for name, yes in zip(bundle.actions, allowed, strict=True) if yes and name in asked]
    if expect.eligible is not None and sorted(left) != sorted(expect.eligible):
        different.append(f"eligible {left}, expected {expect.eligible}")
    return different


def _row(case: RuleCase, features: Sequence[Feature]) -> list[float]:
    known = {feature.name for feature in features}
    for name in case.features:
        if name not in known:
            raise BundleError(f'case "{case.name}": the bundle has no feature "{name}"; correct the name')
    return [_value(case, feature, case.features.get(feature.name)) for feature in features]


def _value(case: RuleCase, feature: Feature, value: bool | float | str | None) -> float:
    if value is None:
        return math.nan
    where = f'case "{case.name}": feature "{feature.name}"'
    if feature.type == "category":
        if isinstance(value, str) and value in feature.categories:
            return float(feature.categories.index(value))
        if isinstance(value, str) and feature.unknown_category == "missing":
            return math.nan
        raise BundleError(f"{where} has no category {value!r}; correct it")
    if isinstance(value, str) or (feature.type == "flag") is not isinstance(value, bool):
        wanted = "true or false" if feature.type == "flag" else "a number"
        raise BundleError(f"{where} is {value!r}, not {wanted}; correct it")
    return float(value)


def _seconds(at: datetime) -> float:
    return at.timestamp()
