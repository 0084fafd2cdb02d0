"""Imported JDM graphs have the results of the real zen-engine, and it has those of exported rule sets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from components import require
from rule_exchange import (
    NUMBERS,
    compiled,
    evaluate,
    exchange_bundle,
    expression_node,
    graph,
    our_results,
    random_rows,
    switch_node,
    table_node,
    target_of,
    zen_results,
)

from scorer.bundle import Bundle
from scorer.bundle.rule_text import table_text
from scorer.bundle.rules import BundleRules, CompiledRules
from scorer.rule_exchange.export import export_jdm
from scorer.rule_exchange.expressions import ExchangeError
from scorer.rule_exchange.jdm import import_jdm
from scorer.rule_exchange.mapping import ImportMapping

GRAPHS = 200
ROWS = 40
DECISIONS = ("'decline'", "'review'", "'approve'")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exchange") / "bundle"
    exchange_bundle(path)
    return path


def _number(random: Random) -> str:
    return f"{random.choice(NUMBERS):g}"


def _number_cell(random: Random) -> str:
    low, high = sorted(random.sample(NUMBERS, 2))
    one, other = _number(random), _number(random)
    return random.choice(
        [
            f"{random.choice(['<', '<=', '>', '>=', '==', '!='])} {one}",
            f"{random.choice('[(')}{low:g}..{high:g}{random.choice('])')}",
            f"[{low:g}..{high:g}), {one}",
            f"not in [{low:g}..{high:g}]",
            f"not in [{one}, {other}]",
            f"in [{one}, {other}, null]",
            one,
            f"{one}, {other}, {_number(random)}",
            f"> {low:g} and < {high:g}",
            f"< {low:g} or > {high:g}",
            f"$ > {low:g} and not ($ == {high:g})",
            f"not ($ > {one})",
            "null",
            "!= null",
            f"$ == null or $ < {one}",
            f"$ < {one} or age == {other} and country != 'NL' or $ == {one}",
            "> age",
            f"$ in ({low:g}..{high:g}] or new_card == true",
        ]
    )


def _text_cell(random: Random) -> str:
    one, other = random.sample(["'NL'", '"DE"', "'NG'"], 2)
    return random.choice(
        [
            one,
            f"{one}, {other}",
            f"!= {one}",
            f"== {one}",
            f"in [{one}, {other}]",
            f"not in [{one}, {other}]",
            f"not in [{one}, null]",
            "startsWith($, 'N')",
            "endsWith($, 'E') or $ == 'NG'",
            "not startsWith($, 'N')",
            "contains($, 'G')",
            "matches($, '^N[LG]$')",
            f"{one} or {other}",
            "null",
            f"$ == null or $ == {one}",
        ]
    )


def _flag_cell(random: Random) -> str:
    return random.choice(["true", "false", "== true", "!= true", "null", "$ == null or $ == true"])


def _cell(random: Random, name: str) -> str:
    if random.random() < 0.3:
        return ""
    if name == "new_card":
        return _flag_cell(random)
    return _text_cell(random) if name == "country" else _number_cell(random)


def _inputs(random: Random) -> list[str]:
    return random.sample(["amount", "country", "new_card", "age", "score"], random.randint(1, 3))


def _table(random: Random, name: str, inputs: list[str], **options: Any) -> dict[str, Any]:
    outputs = ["decision", *random.sample(["reason", "cap", "floor", "queue"], random.randint(0, 2))]
    values = {
        "decision": DECISIONS,
        "reason": ("'R1'", '"R2"', ""),
        "cap": ("0.5", "0.75", ""),
        "floor": ("0.1", "0.25", "null"),
        "queue": ("'level_1'", "'level_2'", ""),
    }
    rows = [
        [_cell(random, one) for one in inputs] + [random.choice(values[one]) for one in outputs]
        for _ in range(random.choice([1, 2, 3, 4, 10]))
    ]
    return table_node(name, inputs, outputs, rows, **options)


def _graph(random: Random) -> dict[str, Any]:
    shape = random.choice(["table", "table", "collect", "values", "expressions", "switch"])
    if shape == "table":
        return graph([_table(random, "Limits", _inputs(random))], [("in", "Limits"), ("Limits", "out")])
    if shape == "collect":
        node = _table(random, "Limits", _inputs(random), hit="collect")
        return graph([node], [("in", "Limits"), ("Limits", "out")])
    if shape == "values":
        inputs = _inputs(random)
        rows = [
            [
                *(_cell(random, one) for one in inputs),
                random.choice(["'high'", "'low'", "'middle'", "null"]),
                random.choice(["1", "5", "10", ""]),
                random.choice(["true", "false", ""]),
            ]
            for _ in range(random.randint(2, 5))
        ]
        rows += [[""] * len(inputs) + ["'high'", "5", "true"]]
        first = table_node("Risk", inputs, ["risk.level", "points", "known"], rows, passes=True)
        tests = [
            (
                random.choice(["'high'", "!= 'low'", "", "'middle', 'high'", "null", "not in ['low']"])
                if any("low" in row[-3] for row in rows) and any("middle" in row[-3] for row in rows)
                else random.choice(["'high'", "null", "!= null", "!= 'high'"]),
                _number_cell(random).replace("age", "amount"),
                _flag_cell(random),
                _cell(random, "amount"),
                random.choice(DECISIONS),
            )
            for _ in range(random.randint(1, 3))
        ]
        second = table_node(
            "Limits", ["risk.level", "points", "known", "amount"], ["decision"], tests, passes=False
        )
        return graph([first, second], [("in", "Risk"), ("Risk", "Limits"), ("Limits", "out")])
    if shape == "expressions":
        node = expression_node(
            "Values",
            {
                "large": f"amount != null and amount > {_number(random)}",
                "group": "country == 'NL' ? 'home' : ($.large ? 'far' : 'near')",
                "limit": f"age == null ? {_number(random)} : $.group == 'home' ? age : {_number(random)}",
                "sum": "amount == null or age == null ? null : amount + age * 2",
            },
        )
        tests = [
            (
                _flag_cell(random),
                random.choice(["'home'", "!= 'far'", "", "'near', 'far'"]),
                _number_cell(random),
                _number_cell(random),
                random.choice(DECISIONS),
            )
            for _ in range(random.randint(1, 4))
        ]
        last = table_node("Limits", ["large", "group", "limit", "sum"], ["decision"], tests)
        if random.random() < 0.3:
            last = expression_node(
                "Limits",
                {"decision": f"group == 'home' ? 'approve' : large ? {random.choice(DECISIONS)} : null"},
                passes=False,
            )
        return graph([node, last], [("in", "Values"), ("Values", "Limits"), ("Limits", "out")])
    condition = f"amount > {_number(random)} and country != 'NL'"
    branches = [_table(random, name, _inputs(random)) for name in ("Large", "Home", "Rest")]
    return graph(
        [switch_node("Route", [condition, "country == 'NL' or new_card == true", ""]), *branches],
        [
            ("in", "Route"),
            ("Route", "Large", "s0"),
            ("Route", "Home", "s1"),
            ("Route", "Rest", "s2"),
            *((name, "out") for name in ("Large", "Home", "Rest")),
        ],
    )


def _zen_row(found: Any) -> list[dict[str, Any]]:
    """Return what each row that fires writes, as our results have it."""
    rows = found if isinstance(found, list) else [found]
    return [{name: value for name, value in row.items() if value is not None} for row in rows if row]


def test_imported_graphs_have_the_results_of_zen_engine(directory: Path) -> None:
    require("rule peers")
    target, bundle = target_of(directory), Bundle.load(directory)
    reasons: Counter[str] = Counter()
    cases, ours = [], []
    for seed in range(GRAPHS):
        random = Random(seed)
        document, rows = _graph(random), random_rows(random, ROWS)
        try:
            text = import_jdm(json.dumps(document).encode(), target, ImportMapping(), name="x", doubles=True)
        except ExchangeError as error:
            reasons[str(error).rpartition(": ")[2]] += 1
            continue
        found = bundle.check_rules(BundleRules(text))
        if isinstance(found, tuple):
            reasons[found[0].problem] += 1
            continue
        compiled(bundle, text)
        cases.append({"graph": document, "rows": rows, "text": text})
        ours.append(our_results(found, rows))
    fired = compared = failed = 0
    for case, mine, theirs in zip(cases, ours, zen_results(cases), strict=True):
        for row, our, their in zip(case["rows"], mine, theirs, strict=True):
            if isinstance(their, dict) and "error" in their:
                failed += 1
                continue
            expected = _zen_row(their)
            assert [one for one in our if one] == expected, (row, their, our, case["graph"], case["text"])
            compared += 1
            fired += bool(expected)
    print(len(cases), compared, fired, failed, reasons.most_common(12))
    assert len(cases) > GRAPHS // 3 and compared > GRAPHS * ROWS // 4 and fired > compared // 5


CONDITIONS = (
    "amount > {a}",
    'amount >= {a} && country == "NL"',
    '!(country in ["NL", "DE"]) || age < {a}',
    'country != "NG" && !new_card',
    "has(amount) ? amount > {a} : age > {b}",
    "amount == null || amount < {a}",
    'country.startsWith("N") && score > 0.5',
    "!(amount > {a} && age < {b})",
    "new_card && amount <= {a} || score < 0.25",
    "large && age != {a}",
    "!large || has(age) && !has(country)",
    "amount in [{a}, {b}, 5.0] && !country.matches('^N')",
    "rules.first && age > {a}",
    "group == 'home' || twice >= {b}",
    "amount > age",
    "!has(twice) && new_card == false",
)
VALUES = """
[[values]]
name = "large"
is = "amount > 5.0 || new_card"

[[values]]
name = "group"
is = 'country == "NL" ? "home" : "other"'

[[values]]
name = "twice"
is = "amount * 2.0 + age"
"""


def _effect(random: Random) -> dict[str, Any]:
    written = {
        "decision": random.choice(["decline", "review", "approve"]),
        "reason": random.choice(["R1", "R2"]),
        "cap": random.choice([0.25, 0.5, 0.75]),
        "floor": random.choice([0.05, 0.1]),
        "queue": random.choice(["level_1", "level_2"]),
    }
    return {name: written[name] for name in random.sample(sorted(written), random.randint(1, 3))}


def _condition(random: Random, *, first: bool) -> str:
    choices = [one for one in CONDITIONS if not (first and "rules.first" in one)]
    one, other = f"{random.choice(NUMBERS)!r}", f"{random.choice(NUMBERS)!r}"
    return random.choice(choices).replace("{a}", one).replace("{b}", other)


def _rule_set(random: Random) -> str:
    hits = ["first", "priority", "collect", "any", "unique"]
    parts = [
        f'name = "x"\nhit = "{random.choice(hits)}"\ndecisions = ["decline", "review", "approve"]\n{VALUES}'
    ]
    for number in range(random.randint(1, 4)):
        fields = {
            "id": "first" if number == 0 else f"rule_{number}",
            "when": _condition(random, first=number == 0),
            **_effect(random),
            "priority": random.randint(0, 3),
        }
        parts.append(table_text("rules", fields))
    inputs = random.sample(["amount", "country", "new_card", "age", "score"], 2)
    cells = {
        "country": ['"NL"', 'in ["NL", "DE"]', '!= "NG"', "-"],
        "new_card": ["true", "false", "-"],
    }
    numbers = ["> 3.0", "[1.0..5.5)", "(0..7]", "!= 5.0", "4.5", "-", "in [1.0, 3.0]"]
    rows = [
        [
            *(random.choice(cells.get(one, numbers)) for one in inputs),
            random.choice(["decline", "review", "-"]),
            random.choice(["T1", "T2"]),
            random.choice([0.5, "-"]),
            random.randint(0, 2),
        ]
        for _ in range(random.randint(1, 4))
    ]
    head = {"id": "limits", "hit": random.choice(hits), "inputs": inputs}
    outputs = ["decision", "reason", "cap", "priority"]
    parts.append(table_text("tables", {**head, "outputs": outputs, "rows": rows}))
    return "\n".join(parts)


def _expected(rules: CompiledRules, applied: list[int]) -> dict[str, Any]:
    """Return what the rules that have an effect write together, as a server combines it."""
    found = [rules.rules[number] for number in applied]
    decisions = [one.decision for one in found if one.decision is not None]
    order = ["decline", "review", "approve"]
    return {
        "rules": sorted(one.id for one in found),
        "decision": min(decisions, key=order.index) if decisions else None,
        "cap": min((one.cap for one in found if one.cap is not None), default=None),
        "floor": max((one.floor for one in found if one.floor is not None), default=None),
        "queue": next((one.queue for one in found if one.queue is not None), None),
    }


def _combined(found: dict[str, Any]) -> dict[str, Any]:
    ids = []
    for name in ("rules", "limits"):
        group = found.get(name) or []
        ids += [one["rule"] for one in (group if isinstance(group, list) else [group])]
    return {"rules": sorted(ids), **{name: found.get(name) for name in ("decision", "cap", "floor", "queue")}}


def test_zen_engine_has_the_results_of_exported_rule_sets(directory: Path) -> None:
    require("rule peers")
    target, bundle = target_of(directory), Bundle.load(directory)
    cases, ours = [], []
    refused: Counter[str] = Counter()
    for seed in range(GRAPHS):
        random = Random(seed)
        text, rows = _rule_set(random), random_rows(random, ROWS)
        found = bundle.check_rules(BundleRules(text))
        if isinstance(found, tuple):
            refused[found[0].problem] += 1
            continue
        cases.append(
            {"graph": json.loads(export_jdm(text, target, doubles=True)), "rows": rows, "text": text}
        )
        applied = evaluate(found, rows).applied
        ours.append([_expected(found, one) for one in applied])
    fired = 0
    for case, mine, theirs in zip(cases, ours, zen_results(cases), strict=True):
        for row, our, their in zip(case["rows"], mine, theirs, strict=True):
            assert _combined(their) == our, (row, their, case["graph"], case["text"])
            fired += bool(our["rules"])
    print(len(cases), fired, refused.most_common(5))
    assert len(cases) > GRAPHS // 3 and fired > len(cases) * ROWS // 4
