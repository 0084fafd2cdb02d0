"""Tests of the alert rules: valid for Prometheus, fired only when due, and about existing metrics."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import components

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus"
FILES = ("alerts.rules.yml", "recording.rules.yml")


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    result = components.require_program("promtool")
    return subprocess.run([result, *arguments], cwd=RULES, capture_output=True, text=True, check=False)


def test_the_rules_are_valid() -> None:
    checked = promtool("check", "rules", *FILES)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_alerts_fire_as_their_tests_expect() -> None:
    tested = promtool("test", "rules", "rules.test.yml")
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    alerts = set(re.findall(r"alert: (\w+)", (RULES / "alerts.rules.yml").read_text()))
    tests = (RULES / "rules.test.yml").read_text()
    for alert in alerts:
        assert re.search(rf"alertname: {alert}, exp_alerts: \[\]", tests), (
            f"no test in which {alert} does not fire"
        )
        assert re.search(rf"alertname: {alert}\s+exp_alerts:\s+(- exp_labels|\[\{{exp_labels)", tests), (
            f"no test in which {alert} fires"
        )


def test_the_metrics_that_the_rules_name_are_documented_with_those_labels() -> None:
    documented = {
        row.split("|")[1].strip(" `"): row.split("|")[3]
        for row in (ROOT / "docs/metrics.md").read_text().splitlines()
        if row.startswith("| `scorer_")
    }
    rules = "\n".join((RULES / name).read_text() for name in FILES)
    expressions = "\n".join(re.findall(r"expr: (.*)", rules))
    # Except those that the rules record.
    named = set(re.findall(r"(?<!:)\b(scorer_[a-z0-9_]+)(\{[^}]*\})?", expressions))
    assert named
    for name, selector in named:
        base = re.sub(r"_(total|bucket|count|sum)$", "", name)
        assert base in documented, f"{name} is not in docs/metrics.md"
        for label in re.findall(r"(\w+)[!=]", selector):
            assert f"`{label}`" in documented[base], f"{name} has no label {label}"
