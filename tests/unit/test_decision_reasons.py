"""Tests that the recorded reasons of a decision are exported and shown."""

from __future__ import annotations

from pathlib import Path

from logs import write_segment
from pyarrow import parquet

from scorer.log import export
from scorer.release.decisions.shapes import decision_shape
from scorer.v1.log_pb2 import DecisionRecord, LogRecord
from scorer.v1.scoring_pb2 import REASON_DIRECTION_LOWERS, REASON_DIRECTION_RAISES, Reason

RECORD = DecisionRecord(
    decision_id="payment-1",
    checkpoint="fraud.checkout",
    bundle=bytes(32),
    decided_at_us=1_000,
    features=[1.0],
    score=0.75,
    decision="decline",
    feature_reasons=[
        Reason(code="R01", feature="amount", contribution=1.5, direction=REASON_DIRECTION_RAISES),
        Reason(code="issuer", feature="issuer", direction=REASON_DIRECTION_LOWERS),
    ],
)
EXPECTED = [
    {"code": "R01", "feature": "amount", "contribution": 1.5, "raises": True},
    # A sensitive feature, whose contribution is not recorded.
    {"code": "issuer", "feature": "issuer", "contribution": None, "raises": False},
]


def test_an_export_has_a_column_of_reasons(tmp_path: Path) -> None:
    write_segment(tmp_path / "log", 1, 1, [LogRecord(decision=RECORD).SerializeToString()])
    export(tmp_path / "log", tmp_path / "decisions.parquet")
    table = parquet.read_table(tmp_path / "decisions.parquet")
    assert table["feature_reasons"].to_pylist() == [EXPECTED]
    assert table["reasons"].to_pylist() == [[]]


def test_the_decision_of_the_platform_has_reasons() -> None:
    assert decision_shape(RECORD, "server")["feature_reasons"] == EXPECTED
