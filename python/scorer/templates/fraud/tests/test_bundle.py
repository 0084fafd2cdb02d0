"""Tests of the bundle: its golden cases, and payments whose decision is known."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from scorer.batch import BatchScorer

PROJECT = Path(__file__).parents[1]


def test_known_payments_are_decided_as_before() -> None:
    cases = json.loads((PROJECT / "tests/cases.json").read_text(encoding="utf-8"))
    # Loading scores every golden case and compares the bits.
    scorer = BatchScorer.load(PROJECT / "build/bundle")
    rows = pa.RecordBatch.from_pylist([case["payment"] for case in cases])
    for case, found in zip(cases, scorer.score(rows).to_pylist(), strict=True):
        assert found["decision"] == case["decision"], case["name"]
        assert found["rules"] == case.get("rules", []), case["name"]
