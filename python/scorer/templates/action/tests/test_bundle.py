"""Tests of the bundle: its golden cases, and requests whose allowed actions are known."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from scorer.batch import BatchColumns, BatchScorer

PROJECT = Path(__file__).parents[1]


def test_known_payments_allow_the_same_actions_as_before() -> None:
    cases = json.loads((PROJECT / "tests/cases.json").read_text(encoding="utf-8"))
    columns = BatchColumns(id="id", checkpoint="action.@NAME@", pmf=True)
    # Loading scores every golden case and compares the bits.
    scorer = BatchScorer.load(PROJECT / "build/bundle", columns)
    rows = [{"id": f"case-{at}", **case["payment"]} for at, case in enumerate(cases)]
    for case, found in zip(cases, scorer.score(pa.RecordBatch.from_pylist(rows)).to_pylist(), strict=True):
        allowed = [action for action, may in zip(scorer.bundle.actions, found["allowed"], strict=True) if may]
        assert allowed == case["allowed"], case["name"]
        assert found["rules"] == case.get("rules", []), case["name"]
        assert found["action"] in allowed and found["propensity"] > 0, case["name"]
