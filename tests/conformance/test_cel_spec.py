"""The language of rules against the conformance cases of CEL, which `make cel-spec` installs.

Every case is in the subset of docs/rules.md, or has a named reason why it is not. The reason follows from
what the expression contains (`cel_subset`), so neither a refusal nor an acceptance by the language decides
what is compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import components
import pytest
from cel_cases import CelCase, CelValue, conformance_cases
from cel_evaluator import RuleExpression, RuleOutcome, evaluate_expressions
from cel_subset import REASONS, SCALARS, CelSubset, classify_cel
from cel_syntax import CelNode, parse_cel, render_cel

INSIDE = 511
"""Cases of the pinned version that are in the subset. The number may rise, and then docs/rules.md says so."""
ERRORS = {
    "division by zero": ("divide by zero", "division by zero", "modulus by zero"),
    "integer overflow": ("return error for overflow",),
    "a double outside the range of int": ("range",),
}
"""The messages that cases in the subset expect, by the kind of error of the language of rules."""
VAGUE = ("foo", "no matching overload")
"""Messages of cases whose error is the division by zero that they contain."""
DOCUMENT = components.ROOT / "docs" / "rules.md"


@dataclass(frozen=True)
class Compared:
    """A case with its class and with what the language of rules makes of it.

    Attributes:
        case: The case.
        subset: Whether it is in the subset.
        outcome: The outcome of the expression as it is written, or without `dyn`.
        with_names: The outcome with names in place of its literals; None for a case outside the subset.
    """

    case: CelCase
    subset: CelSubset
    outcome: RuleOutcome
    with_names: RuleOutcome | None


@cache
def compared() -> tuple[Compared, ...]:
    """Return all cases with their outcomes."""
    components.require("conformance cases of CEL")
    cases = conformance_cases()
    trees = [parse_cel(case.text) for case in cases]
    subsets = [classify_cel(case, tree) for case, tree in zip(cases, trees, strict=True)]
    written = [
        RuleExpression(
            case.text if subset.reason or subset.tree == tree else render_cel(subset.tree), _names(case)
        )
        for case, tree, subset in zip(cases, trees, subsets, strict=True)
    ]
    inside = [at for at, subset in enumerate(subsets) if not subset.reason]
    named = [_with_names(subsets[at].tree, written[at].names) for at in inside]
    outcomes = evaluate_expressions([*written, *named])
    by_name = dict(zip(inside, outcomes[len(cases) :], strict=True))
    return tuple(
        Compared(case, subset, outcomes[at], by_name.get(at))
        for at, (case, subset) in enumerate(zip(cases, subsets, strict=True))
    )


def _names(case: CelCase) -> dict[str, CelValue]:
    """Return the names that rules can have. A name that is declared and has no value is missing."""
    return {
        name: case.bound.get(name, CelValue(kind))
        for name, kind in case.declared.items()
        if kind in SCALARS
        and re.fullmatch(r"[A-Za-z_][\w.]*", name)
        and name not in ("true", "false", "null")
    }


def _with_names(tree: CelNode, names: dict[str, CelValue]) -> RuleExpression:
    """Return an expression with a name for every literal that need not be constant.

    The constants of an expression are computed when it is compiled, so that only names test the instructions.
    """
    values = dict(names)

    def replaced(node: CelNode) -> CelNode:
        if node.kind in SCALARS:
            name = f"literal_{len(values)}"
            values[name] = CelValue(node.kind, node.value)
            return CelNode("name", name)
        if node.kind == "list" or _joins(node):
            return node
        if node.kind in ("call", "method") and node.value in (
            "startsWith",
            "endsWith",
            "contains",
            "matches",
        ):
            return replace(node, children=(replaced(node.children[0]), node.children[1]))
        return replace(node, children=tuple(map(replaced, node.children)))

    return RuleExpression(render_cel(replaced(tree)), values)


def _joins(node: CelNode) -> bool:
    """Whether an expression joins strings, which are constant."""
    return node.kind == "+" and any(child.kind == "string" or _joins(child) for child in node.children)


def _differences(one: Compared, outcome: RuleOutcome) -> Iterator[str]:
    """Yield what is wrong with the outcome of a case."""
    case, expected = one.case, one.case.result
    if _has_nan(case) and not one.subset.reason:
        if outcome.state != "unknown":
            yield f"{outcome}, and not unknown"
        return
    if outcome.state == "refused":
        yield f"refused: {outcome.message}"
        return
    if one.subset.kind and outcome.kind != one.subset.kind:
        yield f"type {outcome.kind}, and not {one.subset.kind}"
    if case.result_kind and outcome.kind != case.result_kind:
        yield f"type {outcome.kind}, and not {case.result_kind}"
    if case.errors:
        known = ERRORS.get(outcome.message, ())
        is_vague = "division" in outcome.message and set(case.errors) <= set(VAGUE)
        if outcome.state != "error" or not (set(case.errors) <= set(known) or is_vague):
            yield f"{outcome}, and not the error {case.errors}"
    elif expected is not None and not (
        outcome.state == "value" and outcome.kind == expected.kind and _equal(outcome.value, expected.value)
    ):
        yield f"{outcome}, and not {expected}"


def _has_nan(case: CelCase) -> bool:
    """Whether a name is NaN, which rules take for a missing value."""
    return any(isinstance(one.value, float) and math.isnan(one.value) for one in case.bound.values())


def _equal(found: object, expected: object) -> bool:
    if isinstance(found, float) and isinstance(expected, float):
        both = math.isnan(found) and math.isnan(expected)
        return both or (found == expected and math.copysign(1, found) == math.copysign(1, expected))
    return type(found) is type(expected) and found == expected


def test_every_case_inside_the_subset_has_the_result_of_cel() -> None:
    differences = [
        f"{one.case.name}: {one.case.text}: {difference}"
        for one in compared()
        if not one.subset.reason
        for difference in _differences(one, one.outcome)
    ]
    assert not differences, "\n".join(differences)


def test_instructions_have_the_results_of_constants() -> None:
    found = [one for one in compared() if one.with_names is not None]
    differences = [
        f"{one.case.name}: {one.case.text}: {difference}"
        for one in found
        if one.with_names is not None
        for difference in _differences(one, one.with_names)
    ]
    assert not differences, "\n".join(differences)
    assert len(found) >= INSIDE


def test_what_is_accepted_outside_the_subset_has_the_result_of_cel() -> None:
    # The environment of rules has no containers, so that a case with one cannot be stated.
    accepted = [
        one
        for one in compared()
        if one.subset.reason and one.outcome.state != "refused" and not one.case.container
    ]
    differences = [
        f"{one.case.name}: {one.case.text}: {difference}"
        for one in accepted
        for difference in _differences(one, one.outcome)
    ]
    assert not differences, "\n".join(differences)


def test_the_document_has_the_numbers_of_cases() -> None:
    counts = Counter(one.subset.reason for one in compared())
    assert counts[""] >= INSIDE, "cases have left the subset"
    assert set(counts) <= {"", *REASONS}
    text = DOCUMENT.read_text(encoding="utf-8")
    section = text.partition("### Conformance with CEL")[2].partition("\n## ")[0]
    rows = {
        reason: int(count) for reason, count in re.findall(r"^\| (.+?) \| (\d+) \|$", section, re.MULTILINE)
    }
    plain = sum(not one.subset.reason and "dyn(" in one.case.text for one in compared())
    nan = sum(not one.subset.reason and _has_nan(one.case) for one in compared())
    expected = {
        "in the subset, with the result of CEL": counts[""],
        "of these with `dyn`, which is left out": plain,
        "of these with a name that is NaN, which is a missing value on purpose": nan,
        **{reason: counts[reason] for reason in REASONS if counts[reason]},
    }
    assert rows == expected, "correct the table in docs/rules.md"


def test_differences_on_purpose_are_those_of_the_document() -> None:
    components.require("conformance cases of CEL")
    gone, number = CelValue("double"), CelValue("double", 2.0)
    nan = CelValue("double", math.nan)
    cases = [
        (RuleExpression("gone > 1.0", {"gone": gone}), RuleOutcome("unknown", "bool")),
        (RuleExpression("number > 1.0", {"number": nan}), RuleOutcome("unknown", "bool")),
        (RuleExpression("number == null", {"number": number}), RuleOutcome("value", "bool", value=False)),
        (RuleExpression("number == null", {"number": nan}), RuleOutcome("value", "bool", value=True)),
        (RuleExpression("has(number)", {"number": number}), RuleOutcome("value", "bool", value=True)),
        (RuleExpression("1 == 1.0", {}), RuleOutcome("value", "bool", value=True)),
    ]
    assert evaluate_expressions([expression for expression, _ in cases]) == [outcome for _, outcome in cases]
    table = (
        DOCUMENT.read_text(encoding="utf-8").partition("| expression | CEL | here |")[2].partition("\n\n")[0]
    )
    assert {expression.text for expression, _ in cases} == set(
        re.findall(r"^\| `(.+?)`", table, re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1 + 2 < 4 && 'a' in ['a', 'b']", ""),
        ("[1, 2].exists(e, e / 0 == 1) || size([1, 2]) == 2", ""),
        ("dyn(1) == 1.0", ""),
        ("name == 'a' ? double(7) : 1.5", ""),
        ("b'a' == b'a'", "bytes"),
        ("1u == 1u", "unsigned integers"),
        ("{'a': 1}.a == 1", "maps"),
        ("Point{x: 1}.x == 1", "messages and enums"),
        ("[1, 2][0] == 1", "lists as values, indexes, `map` and `filter`"),
        ("[1, 2].map(e, e) == [1]", "lists as values, indexes, `map` and `filter`"),
        ("timestamp('2026-01-01T00:00:00Z').getHours() == 1", "timestamps and durations"),
        ("name.?a == 1", "optional values"),
        ("type(1) == int", "types as values"),
        ("name.all(e, e == 1)", "macros of two variables, and macros over other than list literals"),
        ("math.greatest(1, 2) == 2", "functions of extension libraries, and unknown functions"),
        ("string(1) == '1'", "`string`, `bool`, and numbers from strings"),
        ("int('1') == 1", "`string`, `bool`, and numbers from strings"),
        ("name == null", "null as a value"),
        (".name == 'a'", "containers, leading dots and escaped names"),
        ("name.contains(name)", "strings that are not constant where a constant is needed"),
        ("1 in [1, 'a']", "lists of values of different types, or of values that are not constant"),
        ("1 + 1.0 == 2.0", "operands that CEL's own checker refuses, without its checks"),
        ("dyn(1) + 1.0 == 2.0", "`dyn`"),
        ("other == 1", "names that are not declared"),
    ],
)
def test_the_class_follows_from_the_content(text: str, reason: str) -> None:
    case = CelCase(
        name="case",
        text=text,
        declared={"name": "string"},
        bound={},
        container="",
        result=None,
        result_kind="",
        errors=(),
        has_macros=True,
    )
    assert classify_cel(case, parse_cel(text)).reason == reason
