"""Tests of the import of JDM graphs and DMN tables: what is written, and what is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import tiny_action_bundle
from rule_exchange import (
    compiled,
    dmn_file,
    dmn_table,
    exchange_bundle,
    expression_node,
    graph,
    our_results,
    switch_node,
    table_node,
    target_of,
)
from typer.testing import CliRunner

from scorer.bundle import Bundle, inspect
from scorer.commands.rules import app
from scorer.errors import BundleError
from scorer.rule_exchange.dmn import import_dmn
from scorer.rule_exchange.export import export_jdm
from scorer.rule_exchange.expressions import ExchangeError
from scorer.rule_exchange.jdm import import_jdm
from scorer.rule_exchange.mapping import ImportMapping, RuleTarget
from scorer.rule_exchange.xml import read_xml


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exchange") / "bundle"
    exchange_bundle(path)
    return path


def limits(*rows: list[str], inputs: tuple[str, ...] = ("amount",), **options: Any) -> dict[str, Any]:
    node = table_node("Limits", inputs, ["decision"], rows, **options)
    return graph([node], [("in", "Limits"), ("Limits", "out")])


def jdm(directory: Path, document: dict[str, Any], *, doubles: bool = False, **mapping: Any) -> str:
    return import_jdm(
        json.dumps(document).encode(),
        target_of(directory),
        ImportMapping.model_validate(mapping),
        name="x",
        doubles=doubles,
    )


def dmn(directory: Path, text: str, **mapping: Any) -> str:
    return import_dmn(
        text.encode(), target_of(directory), ImportMapping.model_validate(mapping), name="x", doubles=False
    )


def test_cells_become_cells_of_the_table(directory: Path) -> None:
    document = limits(
        ["> 5000", "'NG', 'DE'", "", "'decline'"],
        ["[500..5000)", "", "true", "'review'"],
        ["7", "!= 'NL'", "", "'approve'"],
        inputs=("amount", "country", "new_card"),
    )
    text = jdm(directory, document)
    assert 'inputs = ["amount", "country", "new_card", "true"]' in text
    assert """  ["> 5000.0", 'in ["NG", "DE"]', "-", "-", "decline"],""" in text
    assert '  ["[500.0..5000.0)", "-", "true", "-", "review"],' in text
    # A missing country is not "NL" in ZEN, and the comparison would be unknown in a rule.
    assert """  ["7.0", "-", "-", '== (!has(country) || country != "NL")', "approve"],""" in text
    compiled(Bundle.load(directory), text)


@pytest.mark.parametrize(
    ("document", "mapping", "expected"),
    [
        (
            graph([{"id": "f", "name": "Score", "type": "functionNode"}], [("in", "f"), ("f", "out")]),
            {},
            'node "Score" is a functionNode: it runs JavaScript; compute its results as features',
        ),
        (
            graph([{"id": "c", "name": "Call", "type": "customNode"}], [("in", "c"), ("c", "out")]),
            {},
            'node "Call" is a customNode',
        ),
        (
            limits(["> 5", "'decline'"], ["len($) > 3", "'review'"]),
            {},
            'node "Limits": row 2, input "amount": the function "len" is not supported; compute the value',
        ),
        (
            limits(["> 5", "'deny'"]),
            {},
            'row 1: the bundle has no decision "deny" (decline, review, approve)',
        ),
        (limits(["> 5", "country"]), {}, 'row 1, output "decision": the cell is not a string, a number'),
        (limits(["'NL'", "'decline'"]), {}, '"amount" is a number and "NL" a string, which are never equal'),
        (
            limits(["'XX'", "'decline'"], inputs=("country",)),
            {},
            '"XX" is not a value of "country" (NL, DE, NG); correct it, or add it to the schema',
        ),
        (limits(["> 5", "'decline'"], inputs=("amuont",)), {}, '"amuont" is not a feature of the bundle'),
        (limits(["> age * 2", "'decline'"]), {}, "accept that with --doubles, or compute a feature"),
        (
            limits(["> 5 and ($ < 7 or age > 3)", "'decline'"]),
            {},
            "are not valid in parentheses of a ZEN cell",
        ),
        (
            limits(["not $", "'decline'"], inputs=("new_card",)),
            {},
            "not of a value is never equal to the input",
        ),
        (
            limits(["$ == 5 ? true : false", "'decline'"]),
            {},
            "a conditional value in a cell is not supported",
        ),
        (limits(["> 5.1234567890123456", "'decline'"]), {}, "more than 15 significant digits; round it"),
        (limits(["date($) > 5", "'decline'"]), {}, 'the function "date" is not supported'),
        (
            graph(
                [table_node("Risk", ["amount"], ["risk"], [["> 5", "'high'"]])],
                [("in", "Risk"), ("Risk", "out")],
            ),
            {},
            'the output "risk" is not mapped to what rules write',
        ),
        (
            graph(
                [
                    table_node("A", ["amount"], ["decision"], [["> 5", "'decline'"]]),
                    table_node("B", ["age"], ["decision"], [["> 5", "'review'"]]),
                ],
                [("in", "A"), ("in", "B"), ("A", "out"), ("B", "out")],
            ),
            {},
            '"decision" is written by node "A" and by node "B", and the order in which they are merged',
        ),
        (
            graph(
                [
                    table_node("A", ["amount"], ["risk"], [["> 5", "'high'"]]),
                    table_node("B", ["age"], ["decision"], [["> 5", "'review'"]]),
                ],
                [("in", "A"), ("A", "B"), ("B", "out")],
            ),
            {},
            '"age" is not visible here, because a node before this one does not pass its input through',
        ),
        (
            graph([table_node("A", ["amount"], ["decision"], [["> 5", "'decline'"]])], [("in", "A")]),
            {},
            'node "Request" is not on a path from the input to the output',
        ),
        (
            graph(
                [
                    table_node("A", ["amount"], ["decision"], [["> 5", "'decline'"]]),
                    table_node("B", ["amount"], ["reason"], [["> 5", "'R'"]]),
                ],
                [("in", "A"), ("A", "B"), ("B", "A"), ("B", "out")],
            ),
            {},
            "is in a cycle; remove one of its edges",
        ),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_its_place(
    directory: Path, document: dict[str, Any], mapping: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ExchangeError) as raised:
        jdm(directory, document, **mapping)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_loops_and_collecting_switches_are_refused(directory: Path) -> None:
    loop = limits(["> 5", "'decline'"])
    loop["nodes"][1]["content"]["executionMode"] = "loop"
    with pytest.raises(ExchangeError, match='node "Limits" runs once for each element of a list'):
        jdm(directory, loop)
    route = switch_node("Route", ["amount > 5", ""])
    route["content"]["hitPolicy"] = "collect"
    nodes = [route, table_node("A", ["age"], ["decision"], [["> 5", "'decline'"]])]
    with pytest.raises(ExchangeError, match='node "Route": a switch that follows several branches'):
        jdm(directory, graph(nodes, [("in", "Route"), ("Route", "A", "s0"), ("A", "out")]))


def test_the_mapping_names_features_outputs_and_decisions(directory: Path) -> None:
    node = table_node(
        "Limits",
        ["order.total", "customer.country"],
        ["result.status", "note"],
        [["> 5", "'NG'", "'REJECT'", "'text'"]],
    )
    text = jdm(
        directory,
        graph([node], [("in", "Limits"), ("Limits", "out")]),
        names={"order.total": "amount", "customer.country": "country"},
        outputs={"result.status": "decision"},
        decisions={"REJECT": "decline"},
        ignore=["note"],
    )
    rules = compiled(Bundle.load(directory), text)
    rows = [{"amount": 6.0, "country": "NG"}, {"amount": 6.0, "country": "NL"}]
    assert our_results(rules, rows) == [[{"decision": "decline"}], []]


def test_a_long_table_that_another_one_reads_is_split(directory: Path) -> None:
    rows = [[f"< {number}", f"{number}"] for number in range(150)]
    first = table_node("Points", ["amount"], ["points"], rows, passes=True)
    second = table_node("Limits", ["points"], ["decision"], [["[3..5], 149", "'review'"]])
    text = jdm(directory, graph([first, second], [("in", "Points"), ("Points", "Limits"), ("Limits", "out")]))
    rules = compiled(Bundle.load(directory), text)
    values: list[dict[str, Any]] = [{"amount": one} for one in (1.5, 2.5, 4.5, 5.5, 148.5, 149.5)]
    found = [bool(one) and one[-1] == {"decision": "review"} for one in our_results(rules, [*values, {}])]
    assert found == [False, True, True, False, True, False, False]


def test_expressions_and_arithmetic_need_consent(directory: Path) -> None:
    nodes = [
        expression_node("Values", {"ratio": "amount / 4", "limit": "5 * 60"}),
        table_node("Limits", ["ratio"], ["decision"], [["> limit", "'review'"]]),
    ]
    document = graph(nodes, [("in", "Values"), ("Values", "Limits"), ("Limits", "out")])
    with pytest.raises(ExchangeError, match='node "Values": expression "ratio": "/" computes with decimals'):
        jdm(directory, document)
    rules = compiled(Bundle.load(directory), jdm(directory, document, doubles=True))
    assert our_results(rules, [{"amount": 1201.0}, {"amount": 1200.0}, {}]) == [
        [{"decision": "review"}],
        [],
        [],
    ]


def test_outputs_about_actions_become_eligibility(tmp_path: Path) -> None:
    tiny_action_bundle(tmp_path / "action")
    inspection = inspect(tmp_path / "action")
    target = RuleTarget(inspection.data.features, (), inspection.actions)
    node = table_node(
        "Exemptions", ["amount"], ["blocked"], [["> 500", "'tra'"], ["> 100", ""], ["", "'tra'"]]
    )
    mapping = ImportMapping.model_validate(
        {"eligibility": {"blocked": {"source": "Article 18", "remove": {"tra": {"exemption": ["tra"]}}}}}
    )
    document = json.dumps(graph([node], [("in", "Exemptions"), ("Exemptions", "out")])).encode()
    text = import_jdm(document, target, mapping, name="x", doubles=False)
    bundle = Bundle.load(tmp_path / "action")
    rules = compiled(bundle, text)
    rows = np.zeros((3, len(inspection.data.features)), np.float32)
    at = [feature.name for feature in inspection.data.features].index("amount")
    rows[:, at] = (600, 200, 50)
    found = rules.evaluate(rows, scores=np.full(3, np.nan), seconds=np.zeros(3), ids=["x"] * 3)
    removed = np.array(["tra" in action for action in bundle.actions])
    assert [bool((~allowed[removed]).all()) for allowed in found.allowed] == [True, False, True]
    assert found.allowed[:, ~removed].all()


# DMN


def table(*rows: list[str], **options: Any) -> str:
    inputs = options.pop("inputs", ("amount",))
    return dmn_file(dmn_table("Limits", inputs, ["decision"], rows, **options))


def test_dmn_cells_follow_feel(directory: Path) -> None:
    text = dmn(
        directory,
        table(
            ["]1..5[", "-", '"decline"'],
            ["(1..5]", 'not("NL", "DE")', '"review"'],
            ["not([5..7])", '"NL"', '"approve"'],
            ["< 3, > 12", "null", '"approve"'],
            inputs=("amount", "country"),
            hit="FIRST",
        ),
    )
    assert '  ["(1.0..5.0)", "-", "-", "decline"],' in text
    assert """  ["(1.0..5.0]", "-", '== (!has(country) || !(country in ["NL", "DE"]))', "review"],""" in text
    rules = compiled(Bundle.load(directory), text)
    # Whether a missing number is in an interval is not known in FEEL, nor is the negation.
    rows = [{"country": "NL"}, {"amount": 8.0, "country": "NL"}, {"amount": 13.0}, {"amount": 5.0}]
    assert [[one["decision"] for one in row] for row in our_results(rules, rows)] == [
        [],
        ["approve"],
        ["approve"],
        ["review"],
    ]


def test_dmn_defaults_priorities_and_aggregations(directory: Path) -> None:
    bundle = Bundle.load(directory)
    options: dict[str, Any] = {"defaults": {"decision": '"review"'}}
    for hit in ("UNIQUE", "FIRST", "ANY"):
        rules = compiled(bundle, dmn(directory, table(["> 5", '"decline"'], hit=hit, **options)))
        found = our_results(rules, [{"amount": 6.0}, {"amount": 5.0}, {}])
        assert found == [[{"decision": "decline"}], [{"decision": "review"}], [{"decision": "review"}]], hit
    rows = [["> 5", '"approve"'], ["> 7", '"decline"'], ["> 6", '"review"']]
    text = table(*rows, hit="PRIORITY", values={"decision": '"decline","review","approve"'})
    rules = compiled(bundle, dmn(directory, text))
    found = our_results(rules, [{"amount": one} for one in (5.5, 6.5, 8.0)])
    assert [row[0]["decision"] for row in found] == ["approve", "review", "decline"]
    caps = dmn_table(
        "Caps", ["amount"], ["cap"], [["> 5", "0.5"], ["> 7", "0.25"]], hit="COLLECT", aggregation="MIN"
    )
    rules = compiled(bundle, dmn(directory, dmn_file(caps)))
    assert our_results(rules, [{"amount": 8.0}]) == [[{"cap": 0.5}, {"cap": 0.25}]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (table(["> 5", '"decline"'], hit="OUTPUT ORDER"), "the hit policy OUTPUT ORDER is not supported"),
        (
            table(["> 5", '"decline"'], hit="COLLECT", aggregation="SUM"),
            "the aggregation SUM is not supported",
        ),
        (
            table(['date("2026-01-01")', '"decline"']),
            'row 1, input "amount": the function "date" is not supported',
        ),
        (table(["> 5", "amount"]), 'decision "Limits": row 1, output "decision": the cell is not a string'),
        (
            table(["> 5", '"decline"'], hit="PRIORITY"),
            "no output has a list of values, which has the priorities",
        ),
        (
            dmn_file(dmn_table("Limits", ["amount"], ["risk"], [["> 5", '"x"']])),
            'the output "Limits" is not mapped',
        ),
        (dmn_file('<decision id="d" name="D"><context/></decision>'), 'decision "D": its logic is context'),
        (table(["> 5", '"decline"']).replace("20191111", "20151101"), "the file is not DMN 1.3, 1.4 or 1.5"),
        (
            dmn_file(
                '<businessKnowledgeModel id="b" name="B"/>', dmn_table("D", ["amount"], ["decision"], [])
            ),
            'businessKnowledgeModel "B" is not supported',
        ),
    ],
)
def test_dmn_that_cannot_be_expressed_is_refused(directory: Path, text: str, expected: str) -> None:
    with pytest.raises(ExchangeError) as raised:
        dmn(directory, text)
    assert expected in str(raised.value)


def test_xml_is_read_within_bounds() -> None:
    bomb = '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><a>&c;</a>'
    external = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>'
    for text in (bomb, external, "<!DOCTYPE a><a/>"):
        with pytest.raises(ExchangeError, match="document type"):
            read_xml(text.encode())
    with pytest.raises(ExchangeError, match="nested more than 64 deep"):
        read_xml(("<a>" * 65 + "</a>" * 65).encode())
    for text in ("<a>", "<a>&undefined;</a>", ""):
        with pytest.raises(ExchangeError, match="not valid XML"):
            read_xml(text.encode())


# The command


def test_the_command_writes_rules_or_nothing(directory: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "limits.json", tmp_path / "rules.toml"
    source.write_text(json.dumps(limits(["> 5", "'decline'"], ["> 7", "'review'"])))
    given = ["import", str(source), "--bundle", str(directory), "--output", str(output)]
    # The second row never fires, because the first one does.
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, BundleError) and not output.exists()
    assert 'rule "Limits.row2": the rule never has an effect' in str(result.exception)
    assert "nothing is written" in str(result.exception)
    source.write_text(json.dumps(limits(["> 7", "'decline'"], ["> 5", "'review'"])))
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0 and "2 rules" in result.stdout
    assert 'name = "limits"' in output.read_text()
    result = CliRunner().invoke(app, given)
    assert "exists; choose another file" in str(result.exception)
    mapping = tmp_path / "map.toml"
    mapping.write_text('[outputs]\nx = "color"\n')
    result = CliRunner().invoke(app, [*given, "--force", "--map", str(mapping)])
    assert isinstance(result.exception, BundleError) and "outputs.x" in str(result.exception)


# The export


RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[values]]
name = "large"
is = "amount > 5.0 && country != 'NL'"

[[rules]]
id = "unusual"
when = "!large || age > 3.0"
decision = "review"
"""


def test_an_exported_rule_is_total_where_zen_would_fail(directory: Path) -> None:
    document = json.loads(export_jdm(RULES, target_of(directory), doubles=False))
    nodes = {node["id"]: node for node in document["nodes"]}
    (row,) = nodes["table_rules"]["content"]["rules"]
    assert row["condition"] == (
        '(amount != null and amount <= 5.0) or (country != null and country == "NL") '
        "or (age != null and age > 3.0)"
    )
    (decision,) = nodes["result"]["content"]["expressions"]
    assert decision["value"] == 'some(rules, #.rule in ["unusual"]) ? "review" : null'


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ('when = "amount > 5.0"\nrollout = 50.0', '"rollout" has no form in JDM; remove it'),
        ('when = "amount > 5.0"\ndaily = 5', '"daily" has no form in JDM; remove it'),
        ('when = "amount > 5.0"\ndaily_amount = { of = "amount", most = 5 }', '"daily_amount" has no form'),
        ('when = "amount > 5.0"\nfrom = 2026-01-01', '"from" has no form in JDM; remove it'),
        ("when = 'int(amount) in list(\"l\")'", 'the function "int" is not supported'),
        ('when = "amount + age > 5.0"', "accept that with --doubles"),
        ("when = '''country == \"'\\\"\"'''", "has no form in ZEN, whose strings have no escapes"),
    ],
)
def test_what_jdm_cannot_express_is_refused_by_rule(directory: Path, rule: str, expected: str) -> None:
    text = f'name = "x"\ndecisions = ["decline"]\n[[rules]]\nid = "unusual"\ndecision = "decline"\n{rule}\n'
    with pytest.raises(ExchangeError) as raised:
        export_jdm(text, target_of(directory), doubles=False)
    assert expected in str(raised.value) and 'rule "unusual"' in str(raised.value)


def test_the_export_command_writes_a_graph(directory: Path, tmp_path: Path) -> None:
    source, output = tmp_path / "rules.toml", tmp_path / "graph.json"
    source.write_text(RULES)
    result = CliRunner().invoke(app, ["export", str(source), "-b", str(directory), "-o", str(output)])
    assert result.exit_code == 0, result.exception
    assert [node["type"] for node in json.loads(output.read_text())["nodes"]] == [
        "inputNode",
        "decisionTableNode",
        "expressionNode",
        "outputNode",
    ]
    source.write_text(RULES.replace("large", "larg"))
    result = CliRunner().invoke(
        app, ["export", str(source), "-b", str(directory), "-o", str(output), "--force"]
    )
    assert result.exit_code == 0
    source.write_text(RULES.replace("!large", "!larg"))
    result = CliRunner().invoke(
        app, ["export", str(source), "-b", str(directory), "-o", str(output), "--force"]
    )
    assert isinstance(result.exception, BundleError) and 'unknown name "larg"' in str(result.exception)
