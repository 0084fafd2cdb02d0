"""Tests of the grammar of gates, and of the messages for gates that are not valid."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.config.example import toml
from scorer.config.problems import InvalidSettingsError
from scorer.release.errors import InvalidError
from scorer.release.gates import default_gates, read, read_all
from scorer.release.gates.names import METRICS
from scorer.release.model import GateSpec
from scorer.release.settings import PlatformFile


def parse(entries: Sequence[Mapping[str, object]]) -> tuple[GateSpec, ...]:
    """Return the gates of a settings file with these tables."""
    text = f'[checkpoints."fraud.checkout"]\nalias = "fraud@live"\ngates = {toml(entries)}\n'
    return PlatformFile.parse(text).checkpoints["fraud.checkout"].gates


@pytest.mark.parametrize(
    ("metric", "success", "number", "side", "confidence"),
    [
        ("exec_p99_us", "<= 5000", 5000.0, "upper", 0.95),
        ("exec_p99_us", "<= 5 ms", 5000.0, "upper", 0.95),
        ("exec_p99_us", "<= 5ms upper99", 5000.0, "upper", 0.99),
        ("exec_p50_us", "< 0.25 s", 250_000.0, "upper", 0.95),
        ("exec_p999_us", "<= 0.8 sla", 0.8, "upper", 0.95),
        ("data_load_p99_us", "<= sla", 1.0, "upper", 0.95),
        ("error_rate", "== 0", 0.0, "", 0.0),
        ("error_rate", "<= 0.1 % upper95", 0.001, "upper", 0.95),
        ("parity_max_abs", "<= 1e-6", 1e-6, "", 0.0),
        ("feature_parity_rate", ">= 0.999", 0.999, "", 0.0),
        ("flip_rate", "<= 0.02 upper97.5", 0.02, "upper", 0.975),
        ("auc_matured", ">= -0.002 lower95", -0.002, "lower", 0.95),
        ("covered_hours_of_week", ">= 168", 168.0, "", 0.0),
    ],
)
def test_comparisons_are_parsed(
    metric: str, success: str, number: float, side: str, confidence: float
) -> None:
    gate = read(GateSpec(metric, success))
    assert gate.success.limit.number == pytest.approx(number)
    assert gate.success.side == side
    assert gate.success.confidence == pytest.approx(confidence)


def test_thresholds_and_absolute_values_are_parsed() -> None:
    limit = read(
        GateSpec("score_psi", "< threshold(alpha=0.01, floor=0.1)", against="reference")
    ).success.limit
    assert (limit.of_chance, limit.alpha, limit.floor) == (True, 0.01, 0.1)
    assert read(GateSpec("score_psi", "< threshold()")).success.limit.alpha is None
    gate = read(GateSpec("approve_rate_delta", "abs <= 0.5 % upper95", against="live"))
    assert gate.success.absolute
    assert gate.success.limit.number == pytest.approx(0.005)
    assert gate.against == "live"


def test_the_documented_grammar_is_accepted(tmp_path: Path) -> None:
    text = """
    [[gates]]
    metric = "exec_p99_us"
    against = "sla"
    success = "<= 5000"
    min_rows = 20000
    interval = "5m"
    count = 12
    failure_limit = 1
    inconclusive_limit = 3
    [[gates]]
    metric = "flip_rate"
    against = "live"
    minus = "aa_control"
    success = "<= 0.02 upper95"
    [[gates]]
    metric = "auc_matured"
    against = "live"
    success = ">= -0.002 lower95"
    when = "labels_matured >= 80%"
    dry_run = true
    """
    specs = parse(tomllib.loads(text)["gates"])
    assert specs[0].interval_seconds == 300
    assert read(specs[2]).when.number == pytest.approx(0.8)  # type: ignore[union-attr]
    # A gate that is stored as JSON is read again unchanged.
    assert parse([asdict(spec) for spec in specs]) == specs


@pytest.mark.parametrize(
    ("entry", "field", "remedy"),
    [
        ({"metric": "exec_p98_us", "success": "< 1"}, "gates[0].metric", "exec_p99_us"),
        ({"metric": "error_rate"}, "gates[0].success", "required, but not set"),
        ({"metric": "error_rate", "success": "zero"}, "gates[0].success", '"== 0"'),
        ({"metric": "error_rate", "success": "<= 5 ms"}, "gates[0].success", '"%"'),
        ({"metric": "error_rate", "success": "<= sla"}, "gates[0].success", "write a number"),
        ({"metric": "error_rate", "success": "<= nan"}, "gates[0].success", "no number"),
        ({"metric": "error_rate", "success": "<= 1 upper50"}, "gates[0].success", "upper95"),
        ({"metric": "exec_p99_us", "success": "<= 0 sla"}, "gates[0].success", "0.8 sla"),
        ({"metric": "exec_p99_us", "success": "<= 5000 lower95"}, "gates[0].success", "upper95"),
        ({"metric": "auc_matured", "success": ">= 0 upper95"}, "gates[0].success", "lower95"),
        ({"metric": "parity_max_abs", "success": "<= 1 upper95"}, "gates[0].success", "leave upper out"),
        ({"metric": "flip_rate", "success": "< threshold(floor=1)"}, "gates[0].success", "for PSI"),
        ({"metric": "score_psi", "success": "< threshold(beta=1)"}, "gates[0].success", "alpha=0.01"),
        ({"metric": "score_psi", "success": "< threshold(alpha=2)"}, "gates[0].success", "alpha=0.01"),
        ({"metric": "score_psi", "success": "< threshold(floor=-1)"}, "gates[0].success", "floor=0.1"),
        ({"metric": "approve_rate_delta", "success": "abs >= 0.1"}, "gates[0].success", '"<="'),
        ({"metric": "error_rate", "success": "== 0", "against": "live"}, "gates[0].against", "nothing"),
        (
            {"metric": "error_rate", "success": "== 0", "minus": "aa_control"},
            "gates[0].minus",
            "leave it out",
        ),
        ({"metric": "flip_rate", "success": "< 1", "minus": "aa"}, "gates[0].minus", "aa_control"),
        ({"metric": "error_rate", "success": "== 0", "when": "moon > 1"}, "gates[0].when", "labels_matured"),
        ({"metric": "error_rate", "success": "== 0", "interval": "5m"}, "gates[0].count", "count = 12"),
        ({"metric": "error_rate", "success": "== 0", "count": 3}, "gates[0].interval", 'interval = "5m"'),
        ({"metric": "error_rate", "success": "== 0", "interval": "x", "count": 1}, "gates[0]", "5m"),
        ({"metric": "error_rate", "success": "== 0", "failure_limit": 1}, "gates[0].failure_limit", "count"),
        (
            {"metric": "error_rate", "success": "== 0", "interval": 60, "count": 2, "failure_limit": 2},
            "gates[0].failure_limit",
            "below count = 2",
        ),
        ({"metric": "error_rate", "success": "== 0", "min_rows": -1}, "gates[0].min_rows", "at least 0"),
        ({"metric": "error_rate", "success": "== 0", "min_rows": True}, "gates[0].min_rows", "whole number"),
        ({"metric": "error_rate", "success": 0}, "gates[0].success", "not a text"),
        ({"metric": "error_rate", "success": "== 0", "alfa": 1}, "gates[0].alfa", "unknown key"),
        (
            {"metric": "covered_hours_of_week", "success": ">= 1", "interval": "1h", "count": 2},
            "gates[0].interval",
            "leave interval and count out",
        ),
    ],
)
def test_refusals_name_field_and_remedy(entry: dict[str, object], field: str, remedy: str) -> None:
    with pytest.raises(InvalidSettingsError) as refused:
        parse([entry])
    assert f"{field}: " in str(refused.value)
    assert remedy in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_metric_has_at_most_one_gate() -> None:
    with pytest.raises(InvalidError, match=r"gates\[1\].metric: error_rate is judged twice"):
        read_all([GateSpec("error_rate", "== 0"), GateSpec("error_rate", "<= 1%")])


@pytest.mark.parametrize("kind", ["score", "action"])
def test_the_standard_gates_are_valid(kind: str) -> None:
    gates = read_all(default_gates(kind))
    assert all(kind in gate.names.kinds for gate in gates)


def test_every_example_is_valid() -> None:
    for metric, names in METRICS.items():
        read(GateSpec(metric, names.example), backtest=names.backtest)


@given(st.text(max_size=40))
def test_every_invalid_text_is_refused_without_a_crash(text: str) -> None:
    for spec in (GateSpec("score_psi", text), GateSpec("error_rate", "== 0", when=text)):
        try:
            read(spec)
        except InvalidError as error:
            assert "gate.success: " in str(error) or "gate.when: " in str(error)
