"""Imported DMN decision tables have the results of pyDMNrules, another implementation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from components import require
from rule_exchange import (
    NUMBERS,
    dmn_file,
    dmn_results,
    dmn_table,
    evaluate,
    exchange_bundle,
    our_results,
    random_rows,
    target_of,
)

from scorer.bundle import Bundle
from scorer.bundle.rules import BundleRules
from scorer.rule_exchange.dmn import import_dmn
from scorer.rule_exchange.expressions import ExchangeError
from scorer.rule_exchange.mapping import ImportMapping

HITS = ("UNIQUE", "FIRST", "PRIORITY", "ANY", "COLLECT", "chain")
FILES = 24
ROWS = 40


def _number_cell(random: Random) -> str:
    low, high = sorted(random.sample(NUMBERS, 2))
    one = f"{random.choice(NUMBERS):g}"
    return random.choice(
        [
            f"{random.choice(['<', '<=', '>', '>='])} {one}",
            # pyDMNrules does not read the other notation of open ends, ]1..5[.
            f"{random.choice('[(')}{low:g}..{high:g}{random.choice('])')}",
            one,
            f"{one}, {high:g}",
            f"not({random.choice(['<', '>='])} {one})",
            f"not({one})",
            f"not({low:g},{high:g})",
            "null",
        ]
    )


def _cell(random: Random, name: str) -> str:
    if random.random() < 0.3:
        return "-"
    if name == "new_card":
        return random.choice(["true", "false", "not(true)"])
    if name == "country":
        one, other = random.sample(['"NL"', '"DE"', '"NG"'], 2)
        return random.choice([one, f"{one},{other}", f"not({one})", f"not({one},{other})", "null"])
    if name == "level":
        return random.choice(['"high"', '"low"', 'not("low")', '"high","low"'])
    return _number_cell(random)


def _file(random: Random, hit: str) -> str:
    inputs = random.sample(["amount", "country", "new_card", "age"], random.randint(1, 3))
    decisions = ['"decline"', '"review"', '"approve"']
    if hit == "chain":
        rows = [[*(_cell(random, one) for one in inputs), value] for value in ('"low"', '"high"', '"low"')]
        level = dmn_table("level", inputs, ["level"], [*rows, ["-"] * len(inputs) + ['"high"']], hit="FIRST")
        tests = [
            [_cell(random, "level"), _cell(random, "amount"), random.choice(decisions)] for _ in range(2)
        ]
        return dmn_file(
            level,
            dmn_table("decision", ["level", "amount"], ["decision"], tests, hit="FIRST", requires=["level"]),
        )
    rows = [
        [*(_cell(random, one) for one in inputs), random.choice(decisions)]
        for _ in range(random.choice([1, 2, 3, 4]))
    ]
    values = {"decision": ",".join(random.sample(decisions, 3))} if hit == "PRIORITY" else None
    return dmn_file(dmn_table("decision", inputs, ["decision"], rows, hit=hit, values=values))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exchange") / "bundle"
    exchange_bundle(path)
    return path


def _decided(found: Any) -> list[str]:
    value = found.get("decision")
    if isinstance(value, list):
        return [one for one in value if one is not None]
    return [] if value is None else [value]


@pytest.mark.slow
def test_imported_tables_have_the_results_of_another_implementation(directory: Path) -> None:
    require("rule peers")
    target, bundle = target_of(directory), Bundle.load(directory)
    refused: Counter[str] = Counter()
    cases: list[dict[str, Any]] = []
    ours = []
    for seed in range(FILES):
        random, hit = Random(seed), HITS[seed % len(HITS)]
        text = _file(random, hit)
        rows = random_rows(random, ROWS)
        try:
            rules = import_dmn(text.encode(), target, ImportMapping(), name="x", doubles=False)
        except ExchangeError as error:
            refused[str(error)] += 1
            continue
        found = bundle.check_rules(BundleRules(rules))
        if isinstance(found, tuple):
            refused[found[0].problem] += 1
            continue
        cases.append(
            {
                "text": text,
                "rows": rows,
                "inputs": ["amount", "country", "new_card", "age"],
                "hit": hit,
                "rules": rules,
            }
        )
        ours.append(list(zip(our_results(found, rows), evaluate(found, rows).conflicts, strict=True)))
    compared: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    for case, mine, theirs in zip(cases, ours, dmn_results(cases), strict=True):
        assert isinstance(theirs, list), (theirs, case["text"])
        for row, (our, conflicts), their in zip(case["rows"], mine, theirs, strict=True):
            if conflicts:
                # DMN leaves open what a table returns whose rules contradict each other.
                continue
            expected = [one["decision"] for one in our if "decision" in one]
            assert "errors" not in their, (their, case["text"])
            assert _decided(their) == expected, (row, their, our, case["text"], case["rules"])
            compared[case["hit"]] += 1
            fired[case["hit"]] += bool(expected)
    print(compared, fired, refused.most_common(8))
    assert all(compared[hit] >= ROWS and fired[hit] > ROWS // 4 for hit in HITS)
