"""Export of a rule set as a JDM graph."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scorer.rule_exchange.draft import place
from scorer.rule_exchange.expressions import (
    Constant,
    ExchangeError,
    Expression,
    Junction,
    RuleInterval,
    RuleMember,
)
from scorer.rule_exchange.formulas import (
    Compare,
    Fixed,
    Formula,
    IsTrue,
    JoinedFormula,
    OneOf,
    Present,
    Read,
    Symbol,
    joined,
    negated,
    value_text,
    zen,
)
from scorer.rule_exchange.languages import CEL, ZEN, number_text, zen_text
from scorer.rule_exchange.mapping import WRITTEN, RuleTarget
from scorer.rule_exchange.parser import parse_expression
from scorer.rule_exchange.translate import Translator

MAX_EXCLUSIVE = 100
"""Greatest number of rules of a group with the hit policy "unique" or "any"."""
_TIMED = ("from", "until", "snoozed_until", "rollout", "daily", "daily_amount")
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">", "in ", "in[")

_NEVER = Fixed(False)


@dataclass
class _Rule:
    id: str
    condition: Expression
    writes: dict[str, str | float]
    priority: int = 0
    formula: Formula = _NEVER


@dataclass
class _Group:
    id: str
    hit: str
    rules: list[_Rule]

    @property
    def collects(self) -> bool:
        """Whether the table of the graph collects its rows."""
        return self.hit == "collect"

    def applied(self, ids: Sequence[str]) -> str:
        """Return the expression of whether one of some rules had an effect."""
        listed = f"[{', '.join(zen_text(one) for one in ids)}]"
        return f"some({self.id}, #.rule in {listed})" if self.collects else f"{self.id}.rule in {listed}"


def export_jdm(text: str, target: RuleTarget, *, doubles: bool) -> str:
    """Return a rule set as a JDM graph.

    Args:
        text: The rule set, which compiles for the bundle.
        target: The bundle.
        doubles: Whether arithmetic may be computed with decimals.

    Raises:
        ExchangeError: A rule has no form in JDM. The message names it.
    """
    if not target.decisions:
        raise ExchangeError("rules about actions have no form in JDM; export rules of a score bundle")
    document = tomllib.loads(text)
    groups = _groups(document)
    symbols = {name: replace(one, values=None) for name, one in target.symbols().items()}
    values = {one["name"]: _parsed(one["name"], one["is"]) for one in document.get("values", [])}
    conditions = {rule.id: rule.condition for group in groups for rule in group.rules}

    def resolve(path: str) -> Symbol | Expression:
        if path in values:
            return values[path]
        if path.startswith("rules."):
            return conditions.get(path[6:], Constant(False))
        return symbols[path]

    for group in groups:
        for rule in group.rules:
            with place(f'rule "{rule.id}"'):
                rule.formula = Translator(CEL, resolve, doubles=doubles).outcomes(rule.condition).true
    graph = _graph([_exclusive(group) for group in groups], list(document.get("decisions", [])))
    return json.dumps(graph, indent=2, ensure_ascii=False) + "\n"


def _groups(document: Mapping[str, Any]) -> list[_Group]:
    groups = []
    rules = [_rule(one) for one in document.get("rules", []) if one.get("enabled") is not False]
    taken = {one["id"] for one in document.get("tables", [])}
    if rules:
        name = "rules" if "rules" not in taken else "rules_of_the_file"
        groups.append(_Group(name, document.get("hit", "collect"), rules))
    tables = document.get("tables", [])
    return groups + [_Group(table["id"], table.get("hit", "first"), _rows(table)) for table in tables]


def _rule(one: Mapping[str, Any]) -> _Rule:
    with place(f'rule "{one["id"]}"'):
        if timed := [name for name in _TIMED if name in one]:
            raise ExchangeError(f'"{timed[0]}" has no form in JDM; remove it')
        if "remove" in one or "keep" in one:
            raise ExchangeError("eligibility has no form in JDM; remove the rule")
    writes = {name: one[name] for name in WRITTEN if name in one}
    return _Rule(one["id"], _parsed(one["id"], one["when"]), writes, one.get("priority", 0))


def _rows(table: Mapping[str, Any]) -> list[_Rule]:
    rules = []
    inputs, outputs = table["inputs"], table["outputs"]
    for number, row in enumerate(table["rows"], 1):
        name = f"{table['id']}.row{number}"
        tests = [
            test
            for subject, cell in zip(inputs, row, strict=False)
            if (test := _cell(name, subject, cell)) is not None
        ]
        written = dict(zip(outputs, row[len(inputs) :], strict=True))
        priority = written.pop("priority", 0)
        writes = {key: value for key, value in written.items() if value != "-"}
        condition = Junction(every=True, terms=(Constant(True), *tests))
        rules.append(_Rule(name, condition, writes, priority if priority != "-" else 0))
    return rules


def _parsed(name: str, text: str) -> Expression:
    with place(f'rule "{name}"'):
        return parse_expression(text, CEL)


def _cell(name: str, subject: str, cell: Any) -> Expression | None:
    """Return the condition of a cell of a table, in the notation of docs/rules.md."""
    text = str(cell).lower() if isinstance(cell, bool) else str(cell).strip()
    if text in ("", "-"):
        return None
    if (interval := _interval(text)) is not None:
        return RuleMember(_parsed(name, subject), interval)
    joiner = text if text.startswith(_COMPARISONS) else f"== ({text})"
    return _parsed(name, f"({subject}) {joiner}")


def _interval(text: str) -> RuleInterval | None:
    if len(text) < 2 or text[0] not in "[(]" or text[-1] not in "])[":
        return None
    low, dots, high = text[1:-1].partition("..")
    try:
        ends = (Constant(float(low)), Constant(float(high)))
    except ValueError:
        return None
    return RuleInterval(*ends, text[0] != "[", text[-1] != "]") if dots else None


def _exclusive(group: _Group) -> _Group:
    """Return the group as one whose hit policy is first or collect."""
    rules = [rule for rule in group.rules if rule.formula != Fixed(False)]
    if group.hit == "priority":
        rules.sort(key=lambda rule: -rule.priority)
    if group.hit not in ("unique", "any"):
        return replace(group, rules=rules)
    if len(rules) > MAX_EXCLUSIVE:
        raise ExchangeError(
            f'"{group.id}" has the hit policy {group.hit} and {len(rules)} rules, more than {MAX_EXCLUSIVE}; '
            "use first or collect"
        )
    different: Callable[[_Rule, _Rule], bool] = lambda one, other: (  # noqa: E731
        one is not other and (group.hit == "unique" or one.writes != other.writes)
    )
    exclusive = [
        replace(
            rule,
            formula=joined(
                True,
                rule.formula,
                *(negated(other.formula) for other in rules if different(rule, other)),
            ),
        )
        for rule in rules
    ]
    return replace(group, rules=exclusive)


# The graph


def _graph(groups: Sequence[_Group], decisions: Sequence[str]) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = [_node("request", "Request", "inputNode", 0, 0, {})]
    nodes += [_table(group, number) for number, group in enumerate(groups) if group.rules]
    tables = [node["id"] for node in nodes[1:]]
    nodes.append(_node("result", "Result", "expressionNode", 800, 0, _result(groups, decisions)))
    nodes.append(_node("response", "Response", "outputNode", 1200, 0, {}))
    edges = [(source, end) for table in tables for source, end in (("request", table), (table, "result"))]
    if not tables:
        edges.append(("request", "result"))
    edges.append(("result", "response"))
    return {
        "contentType": "application/vnd.gorules.decision",
        "nodes": nodes,
        "edges": [
            {"id": f"{source}_{end}", "type": "edge", "sourceId": source, "targetId": end}
            for source, end in edges
        ],
    }


def _node(key: str, name: str, kind: str, x: int, y: int, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": key, "name": name, "type": kind, "position": {"x": x, "y": y}, "content": content}


def _table(group: _Group, number: int) -> dict[str, Any]:
    rows = []
    for rule in group.rules:
        with place(f'rule "{rule.id}"'):
            rows.append((rule, _cells(rule.formula)))
    inputs = list(dict.fromkeys(name for _, cells in rows for name in cells if name))
    columns = [{"id": f"input_{at}", "name": name, "field": name} for at, name in enumerate(inputs)]
    keys = {name: f"input_{at}" for at, name in enumerate(inputs)}
    if any("" in cells for _, cells in rows):
        columns.append({"id": "condition", "name": "Condition"})
        keys[""] = "condition"
    outputs = ["rule", *(name for name in WRITTEN if any(name in rule.writes for rule, _ in rows))]
    return _node(
        f"table_{group.id}",
        group.id,
        "decisionTableNode",
        400,
        200 * number,
        {
            "hitPolicy": "collect" if group.collects else "first",
            "passThrough": False,
            "inputField": None,
            "outputPath": group.id,
            "executionMode": "single",
            "inputs": columns,
            "outputs": [{"id": f"output_{name}", "name": name, "field": name} for name in outputs],
            "rules": [
                {
                    "_id": rule.id,
                    **{key: cells.get(name, "") for name, key in keys.items()},
                    **{f"output_{name}": _written(rule, name) for name in outputs},
                }
                for rule, cells in rows
            ],
        },
    )


def _written(rule: _Rule, name: str) -> str:
    value = rule.id if name == "rule" else rule.writes.get(name)
    if value is None:
        return ""
    with place(f'rule "{rule.id}"'):
        return zen_text(value) if isinstance(value, str) else number_text(value)


def _cells(formula: Formula) -> dict[str, str]:
    """Return the cells of a row by input; the cell of "" is a condition of several values."""
    terms = formula.terms if isinstance(formula, JoinedFormula) and formula.every else (formula,)
    by_input: dict[str, list[Formula]] = {}
    for term in terms:
        if (name := _input(term)) is not None:
            by_input.setdefault(name, []).append(term)
    cells = {name: cell for name, found in by_input.items() if (cell := _cell_text(found)) is not None}
    # A comparison in a cell is false if its input is missing.
    rest = [
        term
        for term in terms
        if _input(term) not in cells
        and not (isinstance(term, Present) and not term.negated and term.symbol.name in cells)
    ]
    condition = joined(True, *rest)
    if condition != Fixed(True):
        cells[""] = zen(condition)
    return cells


def _input(term: Formula) -> str | None:
    match term:
        case Compare(operator="==" | "<" | "<=" | ">" | ">=", left=Read(symbol=symbol), right=Constant()):
            return symbol.name
        case OneOf(value=Read(symbol=symbol), negated=False):
            return symbol.name
        case IsTrue(symbol=symbol):
            return symbol.name
    return None


def _cell_text(found: Sequence[Formula]) -> str | None:
    match found:
        case [IsTrue(negated=is_negated)]:
            return "false" if is_negated else "true"
        case [OneOf(constants=constants)]:
            return ", ".join(value_text(Constant(one), ZEN) for one in constants)
        case [Compare(operator=operator, right=right)]:
            text = value_text(right, ZEN)
            return text if operator == "==" else f"{operator} {text}"
        case [
            Compare(operator=">" | ">=" as low, right=Constant() as start),
            Compare(operator="<" | "<=" as high, right=Constant() as end),
        ]:
            opening, closing = "[" if low == ">=" else "(", "]" if high == "<=" else ")"
            return f"{opening}{value_text(start, ZEN)}..{value_text(end, ZEN)}{closing}"
    return None


def _result(groups: Sequence[_Group], decisions: Sequence[str]) -> dict[str, Any]:
    """Return the content of the node that combines the groups, as a server does."""
    rules = [(group, rule) for group in groups for rule in group.rules]
    order: dict[str, list[Any]] = {
        "decision": [
            one for one in decisions if any(rule.writes.get("decision") == one for _, rule in rules)
        ],
        "cap": sorted({rule.writes["cap"] for _, rule in rules if "cap" in rule.writes}),
        "floor": sorted({rule.writes["floor"] for _, rule in rules if "floor" in rule.writes}, reverse=True),
    }
    expressions = []
    for name, values in order.items():
        cases = []
        for value in values:
            tests = [
                group.applied(ids)
                for group in groups
                if (ids := [rule.id for rule in group.rules if rule.writes.get(name) == value])
            ]
            cases.append((" or ".join(tests), value))
        expressions.append((name, cases))
    # Of several queues, the first one in the order of the rules is used.
    queues = [
        (group.applied([rule.id]), rule.writes["queue"]) for group, rule in rules if "queue" in rule.writes
    ]
    expressions.append(("queue", queues))
    return {
        "passThrough": True,
        "inputField": None,
        "outputPath": None,
        "executionMode": "single",
        "expressions": [
            {"id": f"result_{name}", "key": name, "value": _choice(cases)}
            for name, cases in expressions
            if cases
        ],
    }


def _choice(cases: Sequence[tuple[str, Any]]) -> str:
    """Return the expression of the value of the first case that is true; null if none is."""
    text = "null"
    for when, value in reversed(cases):
        written = zen_text(value) if isinstance(value, str) else number_text(value)
        text = f"{when} ? {written} : {text}"
    return text
