"""Graphs, rows and results for the tests of imported and exported rules."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from bundles import score_bundle_of
from components import BUILD, require

from scorer.bundle import Bundle, Feature, inspect
from scorer.bundle.rules import BundleRules, CompiledRules
from scorer.rule_exchange.mapping import RuleTarget

ENGINES = Path(__file__).resolve().parent / "rule_engines"
FEATURES = (
    Feature(name="amount"),
    Feature(name="country", type="category", categories=["NL", "DE", "NG"], unknown_category="missing"),
    Feature(name="new_card", type="flag"),
    Feature(name="age"),
)
BANDS = ((0.0, "approve"), (0.5, "review"), (0.8, "decline"))
NUMBERS = (-2.0, 0.0, 1.0, 3.0, 4.5, 5.0, 5.5, 7.0, 10.0, 12.25)
"""Values of numbers: limits of the cells, and numbers beside them."""


def exchange_bundle(directory: Path) -> str:
    """Build the bundle that rules are imported for and return its digest."""
    return score_bundle_of(directory, FEATURES, bands=BANDS)


def target_of(directory: Path) -> RuleTarget:
    """Return the names and decisions of a bundle."""
    bundle = Bundle.load(directory)
    return RuleTarget(inspect(directory).data.features, tuple(reversed(bundle.labels)), ())


def random_rows(random: Random, count: int) -> list[dict[str, Any]]:
    """Return requests, in which each value can be missing."""
    choices: dict[str, Sequence[Any]] = {
        "amount": NUMBERS,
        "country": ("NL", "DE", "NG"),
        "new_card": (True, False),
        "age": NUMBERS,
        "score": (0.1, 0.25, 0.5, 0.75, 0.9),
    }
    return [
        {name: random.choice(values) for name, values in choices.items() if random.random() > 0.15}
        for _ in range(count)
    ]


def our_results(rules: CompiledRules, rows: Sequence[Mapping[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return for each row what each rule with an effect writes."""
    return [[written(rules, number) for number in applied] for applied in evaluate(rules, rows).applied]


def evaluate(rules: CompiledRules, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Evaluate compiled rules on requests; a value that is left out is missing."""
    encoded = np.asarray([[_encoded(feature, row.get(feature.name)) for feature in FEATURES] for row in rows])
    scores = np.asarray([row.get("score", math.nan) for row in rows])
    return rules.evaluate(
        encoded.astype(np.float32), scores=scores, seconds=np.zeros(len(rows)), ids=["x"] * len(rows)
    )


def written(rules: CompiledRules, number: int) -> dict[str, Any]:
    """Return what a rule writes, by name."""
    rule = rules.rules[number]
    values = {name: getattr(rule, name) for name in ("decision", "reason", "cap", "floor", "queue")}
    return {name: value for name, value in values.items() if value is not None}


def _encoded(feature: Feature, value: Any) -> float:
    if value is None or (feature.type == "category" and value not in feature.categories):
        return math.nan
    return float(feature.categories.index(value)) if feature.type == "category" else float(value)


def compiled(bundle: Bundle, text: str) -> CompiledRules:
    """Compile a rule set.

    Raises:
        AssertionError: It has faults.
    """
    found = bundle.check_rules(BundleRules(text))
    assert not isinstance(found, tuple), [str(fault) for fault in found] + [text]
    return found


def zen_results(cases: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return what the real zen-engine answers, for each graph and row."""
    return _engine("zen_rows.py", cases)


def dmn_results(cases: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """Return what pyDMNrules answers, for each file and row."""
    return _engine("dmn_rows.py", cases)


def _engine(program: str, cases: Sequence[Mapping[str, Any]]) -> Any:
    require("rule peers")
    done = subprocess.run(
        [str(BUILD / "rule-peers" / "bin" / "python"), str(ENGINES / program)],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


# JDM graphs


@cache
def ends() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the input node and the output node of a graph."""
    return {"id": "in", "name": "Request", "type": "inputNode"}, {
        "id": "out",
        "name": "Response",
        "type": "outputNode",
    }


def graph(nodes: Sequence[Mapping[str, Any]], edges: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Return a JDM graph with an input and an output node.

    Args:
        nodes: The other nodes.
        edges: Source, target and, after a switch, the statement.
    """
    return {
        "contentType": "application/vnd.gorules.decision",
        "nodes": [ends()[0], *nodes, ends()[1]],
        "edges": [
            {
                "id": f"e{number}",
                "type": "edge",
                "sourceId": edge[0],
                "targetId": edge[1],
                **({"sourceHandle": edge[2]} if len(edge) > 2 else {}),
            }
            for number, edge in enumerate(edges)
        ],
    }


def table_node(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    hit: str = "first",
    passes: bool = False,
    path: str | None = None,
) -> dict[str, Any]:
    """Return a decision table node whose id is its name. A row has the cells of inputs, then of outputs."""
    columns = [f"i{at}" for at in range(len(inputs))] + [f"o{at}" for at in range(len(outputs))]
    return {
        "id": name,
        "name": name,
        "type": "decisionTableNode",
        "content": {
            "hitPolicy": hit,
            "passThrough": passes,
            "inputField": None,
            "outputPath": path,
            "executionMode": "single",
            "inputs": [{"id": f"i{at}", "name": one, "field": one} for at, one in enumerate(inputs)],
            "outputs": [{"id": f"o{at}", "name": one, "field": one} for at, one in enumerate(outputs)],
            "rules": [
                {"_id": f"r{number}", **dict(zip(columns, row, strict=True))}
                for number, row in enumerate(rows)
            ],
        },
    }


def expression_node(
    name: str, expressions: Mapping[str, str], *, passes: bool = True, path: str | None = None
) -> dict[str, Any]:
    """Return an expression node whose id is its name."""
    return {
        "id": name,
        "name": name,
        "type": "expressionNode",
        "content": {
            "passThrough": passes,
            "inputField": None,
            "outputPath": path,
            "executionMode": "single",
            "expressions": [
                {"id": f"x{number}", "key": key, "value": value}
                for number, (key, value) in enumerate(expressions.items())
            ],
        },
    }


def switch_node(name: str, conditions: Sequence[str]) -> dict[str, Any]:
    """Return a switch node whose id is its name; its statements are s0, s1 and so on."""
    return {
        "id": name,
        "name": name,
        "type": "switchNode",
        "content": {
            "hitPolicy": "first",
            "statements": [
                {"id": f"s{number}", "condition": condition, "isDefault": not condition}
                for number, condition in enumerate(conditions)
            ],
        },
    }


# DMN files

MODEL = "https://www.omg.org/spec/DMN/20191111/MODEL/"
"""Namespace of DMN 1.3."""
DMN_TYPES = {
    "amount": "number",
    "country": "string",
    "new_card": "boolean",
    "age": "number",
    "score": "number",
}


def dmn_table(
    name: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    hit: str = "UNIQUE",
    aggregation: str = "",
    values: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
) -> str:
    """Return a decision of a DMN file with a decision table.

    Args:
        name: Name of the decision.
        inputs: Expressions of the inputs.
        outputs: Names of the outputs.
        rows: The cells of inputs, then of outputs.
        hit: The hit policy.
        aggregation: The aggregation of COLLECT.
        values: The list of values of outputs, by name.
        defaults: The default of outputs, by name.
        requires: Decisions that it requires.
    """
    found = [one for one in DMN_TYPES if one in inputs]
    needs = [f'<requiredInput href="#in_{one}"/>' for one in found]
    needs += [f'<requiredDecision href="#d_{one}"/>' for one in requires]
    body = [f"<informationRequirement>{one}</informationRequirement>" for one in needs]
    aggregated = f' aggregation="{aggregation}"' if aggregation else ""
    body.append(f'<decisionTable id="t_{name}" hitPolicy="{hit}"{aggregated}>')
    for at, one in enumerate(inputs):
        kind = DMN_TYPES.get(one, "string")
        body.append(
            f'<input id="t_{name}_i{at}" label="{one}"><inputExpression typeRef="{kind}">'
            f"<text>{one}</text></inputExpression></input>"
        )
    for at, one in enumerate(outputs):
        kind = "number" if one in ("cap", "floor") else "string"
        inside = (
            f"<outputValues><text>{escape(values[one])}</text></outputValues>"
            if values and one in values
            else ""
        )
        if defaults and one in defaults:
            inside += f"<defaultOutputEntry><text>{escape(defaults[one])}</text></defaultOutputEntry>"
        body.append(
            f'<output id="t_{name}_o{at}" name="{one}" label="{one}" typeRef="{kind}">{inside}</output>'
        )
    for number, row in enumerate(rows):
        cells = [
            f"<{'inputEntry' if at < len(inputs) else 'outputEntry'} id='t_{name}_r{number}_{at}'>"
            f"<text>{escape(cell)}</text></{'inputEntry' if at < len(inputs) else 'outputEntry'}>"
            for at, cell in enumerate(row)
        ]
        body.append(f'<rule id="t_{name}_r{number}">{"".join(cells)}</rule>')
    body.append("</decisionTable>")
    return f'<decision id="d_{name}" name="{name}"><variable name="{name}"/>{"".join(body)}</decision>'


def dmn_file(*decisions: str, model: str = MODEL) -> str:
    """Return a DMN file whose input data are the bundle's features and the score."""
    inputs = [
        f'<inputData id="in_{name}" name="{name}"><variable name="{name}" typeRef="{kind}"/></inputData>'
        for name, kind in DMN_TYPES.items()
    ]
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><definitions xmlns="{model}" id="d" name="d" namespace="x">'
        f"{''.join(inputs)}{''.join(decisions)}</definitions>"
    )
