"""Tests that recorded decisions are decided again with other rules."""

from __future__ import annotations

import json
import math
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ACTIONS
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from logs import write_segment
from sealing import seal
from typer.testing import CliRunner

from scorer.bundle import Bundle
from scorer.bundle.rules import BundleRules, CompiledRules
from scorer.commands.rules import app
from scorer.errors import LogError
from scorer.log import ReaderKey
from scorer.log.erasure import erase
from scorer.log.rule_backtest import RuleBacktest, RuleChange, amount_band, backtest_rules
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, OutcomeProof, OutcomeRecord, WithdrawnRecord
from scorer.v1.scoring_pb2 import AppliedRules, FiredRule

CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "large"
when = "amount >= 200.0"
decision = "decline"
[[rules]]
id = "night"
when = "hour < 5.0 && score < 0.9"
floor = 0.5
[[rules]]
id = "never"
when = "distance < 0.0"
decision = "approve"
"""

EXEMPTIONS = """
name = "exemptions"
[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "agreement"
"""

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def scored(bundle: Bundle, number: int, amount: float, hour: float, **fields: Any) -> LogRecord:
    row = np.asarray([[amount, hour, 1, 1]], np.float32)
    out = bundle.score(row)
    decision = DecisionRecord(
        decision_id=f"d{number}",
        checkpoint="fraud.checkout",
        bundle=bytes(32),
        decided_at_us=int(NOON.timestamp() * 1e6) + number,
        features=row[0],
        schema_fingerprint=bundle.schema_fingerprint,
        score=float(out.scores[0]),
        decision=bundle.labels[int(out.bands[0])],
        **fields,
    )
    return LogRecord(decision=decision)


def outcome(number: int, value: float) -> LogRecord:
    report = OutcomeRecord(
        checkpoint="fraud.checkout",
        decision_id=f"d{number}",
        kind="fraud",
        value=value,
        proof=OutcomeProof.OUTCOME_PROOF_KNOWN,
    )
    return LogRecord(outcome=report)


@pytest.fixture
def fraud(built_bundles: dict[str, Path]) -> Bundle:
    return Bundle.load(built_bundles["score-1"])


@pytest.fixture
def log(tmp_path: Path, fraud: Bundle) -> Path:
    other = scored(fraud, 7, 50, 12)
    other.decision.schema_fingerprint = 1
    records = [
        scored(fraud, 0, 20, 12),
        scored(fraud, 1, 20, 3),
        # It is above the limit, and a rule of that time was recorded.
        scored(fraud, 2, 230.5, 12, rules=AppliedRules(fired=[FiredRule(id="large"), FiredRule(id="old")])),
        scored(fraud, 3, 6000, 12),
        scored(fraud, 3, 6000, 12),
        scored(fraud, 4, math.nan, 12),
        scored(fraud, 5, 300, 12, fallback_source="static", fallback_reason="late"),
        outcome(2, 1.0),
        outcome(3, 0.0),
        other,
    ]
    write_segment(tmp_path / "log", 1, 1, [record.SerializeToString() for record in records])
    return tmp_path / "log"


def compiled(bundle: Bundle, text: str) -> CompiledRules:
    rules = bundle.check_rules(BundleRules(text))
    assert isinstance(rules, CompiledRules), rules
    return rules


def by_change(result: RuleBacktest) -> dict[tuple[str, str], RuleChange]:
    return {key: change for key, change in result.changes.items() if change.changed}


def test_changed_decisions_are_counted_by_what_they_were_and_would_be(log: Path, fraud: Bundle) -> None:
    result = backtest_rules([log], fraud, compiled(fraud, CHECKOUT), amount="amount", examples=2)
    assert (result.decisions, result.fallbacks, result.others) == (5, 1, 1)
    assert result.hits == {"large": 2, "night": 1}
    assert result.hits_before == {"large": 1, "old": 1}
    assert (result.never, result.unknown) == (["never"], 1)
    # A rule with an effect before and after counts once. One that is not in the set counts where it had one.
    effects = {1: {"night"}, 2: {"large", "old"}, 3: {"large"}}
    changed = {int(name[1:]) for change in by_change(result).values() for name in change.examples}
    assert {2, 3} & changed and changed <= effects.keys()
    assert result.changed_by == Counter(rule for at in changed for rule in effects[at])
    before = {at: scored(fraud, at, amount, 12).decision.decision for at, amount in ((2, 230.5), (3, 6000))}
    declined = [change for key, change in by_change(result).items() if key[1] == "decline"]
    wanted = [f"d{at}" for at in (2, 3) if before[at] != "decline"]
    assert sorted(name for change in declined for name in change.examples) == wanted
    large = [change for change in result.changes.values() if change.after == "decline"]
    assert sum(change.count for change in large) == 2
    bands = sum((change.bands for change in large), start=type(large[0].bands)())
    assert bands == {"100 to 250": 1, "5000 and above": 1}
    assert sum(change.amount for change in large) == pytest.approx(6230.5)
    assert sum(change.outcomes["fraud"] for change in large) == 1
    assert sum(change.known["fraud"] for change in large) == 2
    night = scored(fraud, 1, 20, 3).decision
    if night.decision == "approve":
        assert result.changes[("approve", "review")].examples == ["d1"]


def test_the_window_and_the_amount_are_checked(log: Path, fraud: Bundle) -> None:
    rules = compiled(fraud, CHECKOUT)
    assert backtest_rules([log], fraud, rules, until=NOON).decisions == 0
    assert backtest_rules([log], fraud, rules, since=NOON).decisions == 5
    with pytest.raises(LogError, match='amount "price" is not a feature'):
        backtest_rules([log], fraud, rules, amount="price")


def test_the_rules_of_the_bundle_change_nothing(log: Path, fraud: Bundle) -> None:
    result = backtest_rules([log], fraud, compiled(fraud, 'name = "none"'))
    assert result.changed == 0 and result.decisions == 5


def test_every_decision_counts_once_over_logs_chunks_and_withdrawals(tmp_path: Path, fraud: Bundle) -> None:
    random = np.random.default_rng(3)
    count = 17_000
    amounts = random.choice([20.0, 150.0, 230.5, 6000.0, math.nan], count)
    hours = random.integers(24, size=count)
    records = [scored(fraud, at, amounts[at], hours[at]) for at in range(count)]
    # The last revision counts, unproven reports and withdrawn ones do not, and one outcome is of no decision.
    first, second = outcome(0, 0.0), outcome(0, 1.0)
    second.outcome.revision = 1
    forged = outcome(0, 0.0)
    forged.outcome.revision, forged.outcome.proof = 2, OutcomeProof.OUTCOME_PROOF_UNPROVEN
    records += [second, first, forged, outcome(1, 1.0), outcome(count, 1.0), outcome(2, 0.0)]
    # Records begin at sequence 1: a decision and an outcome are withdrawn.
    for sequence, number, kind in ((6, 5, ""), (count + 4, 1, "fraud")):
        taken = WithdrawnRecord(
            sequence=sequence, checkpoint="fraud.checkout", decision_id=f"d{number}", kind=kind
        )
        records.append(LogRecord(withdrawn=taken))
    # Memory is used again for the records of the next batch, except that of a large one.
    records[3].decision.entity = "e" * 20_000
    payloads = [record.SerializeToString() for record in records]
    # Another encoding of the same decision: the second part adds nothing to the first one.
    payloads[7] += b"\x0a\x00"
    write_segment(tmp_path / "one", 1, 1, payloads)
    write_segment(tmp_path / "other", 1, 1, payloads[2_000:4_000])
    rules = compiled(fraud, CHECKOUT)
    steps: list[tuple[int, int]] = []
    result = backtest_rules(
        [tmp_path / "one", tmp_path / "other"],
        fraud,
        rules,
        amount="amount",
        advance=lambda read, whole: steps.append((read, whole)),
    )
    assert result.decisions == count - 1
    expected: dict[tuple[str, str], RuleChange] = {}
    hits: Counter[str] = Counter()
    changed_by: Counter[str] = Counter()
    for at in range(count):
        if at == 5:
            continue
        decision = records[at].decision
        row = np.asarray([decision.features], np.float32)
        alone = rules.evaluate(row, scores=[decision.score], seconds=[0], ids=[decision.decision_id])
        applied = [rules.rules[number].id for number in alone.applied[0]]
        hits.update(applied)
        key = decision.decision, fraud.labels[int(alone.bands[0])]
        changed_by.update(applied if key[0] != key[1] else ())
        change = expected.setdefault(key, RuleChange(*key))
        change.count += 1
        change.bands[amount_band(amounts[at])] += 1
        change.amount += 0.0 if math.isnan(amounts[at]) else amounts[at]
        if at in (0, 2):
            change.known["fraud"] += 1
            change.outcomes["fraud"] += at == 0
        if len(change.examples) < 5:
            change.examples.append(decision.decision_id)
    assert (result.hits, result.changed_by) == (hits, changed_by)
    assert list(result.changes) == list(expected)
    for key, change in expected.items():
        assert result.changes[key].amount == pytest.approx(change.amount)
        result.changes[key].amount = change.amount
        assert result.changes[key] == change
    assert steps and steps[-1][0] == steps[-1][1]


EXPLORE = """
name = "checkout"
hit = "first"
decisions = ["decline", "review", "approve"]
[[rules]]
id = "explore"
when = "amount >= 200.0 && amount < 300.0"
decision = "approve"
daily = 3
daily_amount = { of = "amount", most = 500 }
[[rules]]
id = "large"
when = "amount >= 200.0"
decision = "decline"
"""


@pytest.mark.parametrize("opened", [False, True])
def test_daily_budgets_are_those_of_one_server_for_each_log(
    tmp_path: Path, fraud: Bundle, opened: bool
) -> None:
    def at(number: int, amount: float, day: int) -> bytes:
        record = scored(fraud, number, amount, 12)
        record.decision.decided_at_us += day * 86_400_000_000
        return record.SerializeToString()

    # The first day holds two payments of 250. The second one holds 200 and 290, and nothing after them.
    days = [(250, 1), (250, 1), (250, 1), (200, 2), (290, 2), (250, 2), (210, 2), (20, 2)]
    write_segment(tmp_path / "first", 1, 1, [at(number, *one) for number, one in enumerate(days)])
    # Another server has budgets of its own, whenever its decisions were made.
    write_segment(tmp_path / "second", 1, 1, [at(100 + number, 201, 0) for number in range(4)])
    key = ReaderKey(X25519PrivateKey.generate()) if opened else None
    result = backtest_rules(
        [tmp_path / "first", tmp_path / "second"],
        fraud,
        compiled(fraud, EXPLORE),
        reader_key=key,
        examples=20,
    )
    assert result.exhausted == {"explore": 1 + 1 + 1 + 2}
    assert result.hits == {"explore": 2 + 2 + 2, "large": 5}
    declined = {
        one for change in result.changes.values() if change.after == "decline" for one in change.examples
    }
    assert declined == {"d2", "d5", "d6", "d102", "d103"}
    assert result.document()["exhausted"] == {"explore": 5}


def test_erased_entities_are_left_out(tmp_path: Path, fraud: Bundle) -> None:
    records = [scored(fraud, at, 300, 12, entity=f"customer-{at % 2}") for at in range(6)]
    write_segment(tmp_path / "log", 1, 1, [record.SerializeToString() for record in records])
    erase(tmp_path / "log", "customer-1")
    result = backtest_rules([tmp_path / "log"], fraud, compiled(fraud, CHECKOUT))
    assert result.decisions == 3
    assert {name for change in result.changes.values() for name in change.examples} == {"d0", "d2", "d4"}


def test_sensitive_features_are_decrypted_with_their_key(tmp_path: Path, fraud: Bundle) -> None:
    key = ReaderKey(X25519PrivateKey.generate())
    decision = scored(fraud, 0, 300, 12).decision
    seal(decision, [0], key)
    write_segment(tmp_path / "log", 1, 1, [LogRecord(decision=decision).SerializeToString()])
    rules = compiled(fraud, CHECKOUT)
    without = backtest_rules([tmp_path / "log"], fraud, rules)
    assert (without.decisions, without.withheld, without.hits) == (1, 1, {})
    opened = backtest_rules([tmp_path / "log"], fraud, rules, amount="amount", reader_key=key)
    assert (opened.decisions, opened.withheld, opened.hits) == (1, 0, {"large": 1})
    assert next(iter(opened.changes.values())).bands == {"250 to 500": 1}


def test_a_record_of_another_program_is_refused(tmp_path: Path, fraud: Bundle) -> None:
    write_segment(tmp_path / "log", 1, 1, [b"\xff\xff\xff"])
    with pytest.raises(LogError, match=r"record 1 is intact but no scorer\.v1\.LogRecord"):
        backtest_rules([tmp_path / "log"], fraud, compiled(fraud, CHECKOUT))


def test_eligible_actions_are_compared(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    bundle = Bundle.load(built_bundles["action-1"])

    def selected(number: int, amount: float, action: int, mask: bytes = b"", **fields: Any) -> bytes:
        decision = DecisionRecord(
            decision_id=f"d{number}",
            checkpoint="action.authorise",
            bundle=bytes(32),
            features=[amount, 1, 1, 1],
            schema_fingerprint=bundle.schema_fingerprint,
            pmf=[1 / 6] * 6,
            action_index=action,
            action=ACTIONS[action],
            eligible_mask=mask,
            **fields,
        )
        return LogRecord(decision=decision).SerializeToString()

    records = [
        selected(0, 50, 1),
        selected(1, 500, 1),
        selected(2, 500, 0),
        selected(3, 500, 1, bytes([0b000010])),
        selected(4, 500, 0, bytes([0b101101])),
        # Rules of that time removed more than the new ones do.
        selected(5, 500, 0, bytes([0b000001]), rules=AppliedRules()),
    ]
    write_segment(tmp_path / "log", 1, 1, records)
    result = backtest_rules([tmp_path / "log"], bundle, compiled(bundle, EXEMPTIONS))
    found = {change.after: change.examples for change in result.changes.values()}
    assert found == {
        "selected": ["d0", "d4"],
        "not allowed": ["d1"],
        "fewer choices": ["d2"],
        "nothing left": ["d3"],
        "other choices": ["d5"],
    }
    assert result.changed == 4


def test_the_command_shows_changes(log: Path, built_bundles: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(CHECKOUT)
    given = [
        *("backtest", str(tmp_path / "rules.toml"), "--bundle", str(built_bundles["score-1"])),
        *("--log", str(log), "--amount", "amount"),
    ]
    shown = CliRunner().invoke(app, given)
    assert shown.exit_code == 0, shown.output
    assert "5 decisions," in shown.stdout and "no effect on any decision: never" in shown.stdout
    assert "1 decisions of fallbacks are left out" in shown.stdout
    found = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)
    assert (found["decisions"], found["hits"], found["never"]) == (5, {"large": 2, "night": 1}, ["never"])
    assert sum(change["count"] for change in found["changes"]) == 5


def test_amount_bands() -> None:
    names = [amount_band(amount) for amount in (9.99, 10.0, 249.9, 250.0, 5000.0, math.nan)]
    assert names == ["below 10", "10 to 50", "100 to 250", "250 to 500", "5000 and above", "missing"]
