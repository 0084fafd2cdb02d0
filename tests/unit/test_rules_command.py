"""Tests of ``scorer rules``: static checks and the author's cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bundles import ACTIONS
from typer.testing import CliRunner

from scorer.bundle.rules import ListFile
from scorer.commands.rule_options import given_lists
from scorer.commands.rules import app
from scorer.errors import BundleError

RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = 'amount > 250.1 && !(int(hour) in list("open"))'
decision = "decline"
reason = "R01"
queue = "level_2"

[[rules]]
id = "low"
when = "score < 0.3"
cap = 0.1
until = 2027-01-01
"""

CASES = """
[[cases]]
name = "a large amount while the shop is closed"
features = { amount = 250.2, hour = 3 }
score = 0.5
expect = { fired = ["large"], decision = "decline", score = 0.5, queue = "level_2" }

[[cases]]
name = "exactly the limit"
features = { amount = 250.1, hour = 3 }
score = 0.5
expect = { fired = [], decision = "review", queue = "" }

[[cases]]
name = "a low score"
features = { amount = 5.0, hour = 12 }
score = 0.2
at = 2026-12-31T23:59:59Z
expect = { fired = ["low"], decision = "approve", score = 0.1 }

[[cases]]
name = "the rule has ended"
features = { amount = 5.0, hour = 12 }
score = 0.2
at = 2027-01-01T00:00:00Z
expect = { fired = [], score = 0.2 }

[[cases]]
name = "no hour and no score"
features = { amount = 1000.0 }
without_score = true
expect = { fired = [] }
"""

EXEMPTIONS = """
name = "exemptions"
[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "Delegated Regulation (EU) 2018/389, article 18"
"""


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "rules.toml").write_text(RULES)
    (tmp_path / "cases.toml").write_text(CASES)
    (tmp_path / "open.txt").write_text("9\n10\n11\n12\n")
    return {path.stem: str(path) for path in tmp_path.iterdir()}


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    error = str(result.exception) if isinstance(result.exception, BundleError) else ""
    return result.exit_code, result.stdout, error


def test_valid_rules_are_shown(files: dict[str, str], built_bundles: dict[str, Path]) -> None:
    given = ["--bundle", str(built_bundles["score-1"]), "--list", f"open={files['open']}:int"]
    code, shown, _ = run("check", files["rules"], *given)
    assert code == 0 and "ok checkout: 2 rules" in shown and "decision decline, reason R01" in shown
    code, shown, _ = run("check", files["rules"], *given, "--json")
    assert (code, json.loads(shown)["ok"], len(json.loads(shown)["rules"])) == (0, True, 2)


def test_every_fault_is_shown(files: dict[str, str], built_bundles: dict[str, Path], tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(RULES.replace("score <", "scores <").replace("amount >", "amont >"))
    given = ["--bundle", str(built_bundles["score-1"]), "--list", f"open={files['open']}:int"]
    code, shown, error = run("check", str(wrong), *given)
    assert code == 1 and error.endswith("2 faults; correct them")
    assert (
        f'{wrong}: rule "large", line 7, column 9: unknown name "amont"; the nearest name is "amount"'
        in shown
    )
    assert 'rule "low", line 14, column 9: unknown name "scores"' in shown
    code, shown, _ = run("check", str(wrong), *given, "--json")
    found = json.loads(shown)
    assert code == 1 and not found["ok"]
    assert [(fault["rule"], fault["line"], fault["column"]) for fault in found["faults"]] == [
        ("large", 7, 9),
        ("low", 14, 9),
    ]
    # Without its list, the rule names a list that is not there.
    code, shown, _ = run("check", files["rules"], "--bundle", str(built_bundles["score-1"]))
    assert code == 1 and 'list "open"' in shown


def test_cases_pass_and_fail(files: dict[str, str], built_bundles: dict[str, Path], tmp_path: Path) -> None:
    given = ["--bundle", str(built_bundles["score-1"]), "--list", f"open={files['open']}:int"]
    code, shown, error = run("test", files["rules"], files["cases"], *given)
    assert (code, shown.strip(), error) == (0, "ok 5 cases", "")
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        CASES.replace('fired = ["large"], decision = "decline"', 'fired = [], decision = "approve"')
    )
    code, shown, error = run("test", files["rules"], str(wrong), *given)
    assert code == 1 and error.startswith(f'cases "{wrong}": 1 of 5 failed')
    assert "a large amount while the shop is closed: fired ['large'], expected []" in shown
    assert 'decision "decline", expected "approve"' in shown
    code, shown, _ = run("test", files["rules"], str(wrong), *given, "--json")
    assert (code, json.loads(shown)["failed"]) == (1, 1)


def test_cases_of_an_action_bundle(built_bundles: dict[str, Path], tmp_path: Path) -> None:
    rules, cases = tmp_path / "rules.toml", tmp_path / "cases.toml"
    rules.write_text(EXEMPTIONS)
    tra, none = ACTIONS[1], ACTIONS[0]
    cases.write_text(
        f"""
[[cases]]
name = "below the limit"
features = {{ amount = 100.0 }}
eligible = ["{tra}"]
expect = {{ fired = [], eligible = ["{tra}"] }}
[[cases]]
name = "above the limit"
features = {{ amount = 100.01 }}
eligible = ["{none}", "{tra}"]
expect = {{ fired = ["tra_limit"], eligible = ["{none}"] }}
[[cases]]
name = "nothing is left"
features = {{ amount = 500.0 }}
eligible = ["{tra}"]
expect = {{ eligible = [] }}
"""
    )
    given = ["--bundle", str(built_bundles["action-1"])]
    assert run("test", str(rules), str(cases), *given)[:2] == (0, "ok 3 cases\n")
    cases.write_text(cases.read_text().replace("100.01", "99.0"))
    code, shown, _ = run("test", str(rules), str(cases), *given)
    assert code == 1 and "above the limit: fired [], expected ['tra_limit']" in shown


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ('features = { colour = "red" }', 'the bundle has no feature "colour"'),
        ('features = { amount = "much" }', "feature \"amount\" is 'much', not a number"),
        ("features = { amount = true }", 'feature "amount" is True, not a number'),
        ("at = 2026-01-01T00:00:00", "cases.0.at: Input should have timezone info"),
        ('colour = "red"', "cases.0.colour: Extra inputs are not permitted"),
    ],
)
def test_wrong_cases_are_named(
    files: dict[str, str], built_bundles: dict[str, Path], tmp_path: Path, case: str, message: str
) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(f'[[cases]]\nname = "one"\nexpect = {{}}\n{case}\n')
    given = ["--bundle", str(built_bundles["score-1"]), "--list", f"open={files['open']}:int"]
    code, _, error = run("test", files["rules"], str(wrong), *given)
    assert code == 1 and message in error


def test_lists_are_given_by_name() -> None:
    assert given_lists(["a=x.txt", "b=dir/y.txt:int"]) == {
        "a": ListFile(Path("x.txt"), "string"),
        "b": ListFile(Path("dir/y.txt"), "int"),
    }
    for wrong in (["a"], ["=x"], ["a="], ["a=:int"]):
        with pytest.raises(BundleError, match="not of the form NAME=FILE"):
            given_lists(wrong)
    with pytest.raises(BundleError, match='list "a" is given twice'):
        given_lists(["a=x", "a=y"])
