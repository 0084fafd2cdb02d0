"""Tests that the recorded rules of a decision are exported and shown, and that clients decode them."""

from __future__ import annotations

from pathlib import Path

from logs import write_segment
from pyarrow import parquet

from scorer.client.replies import read_action, read_score
from scorer.client.results import AppliedRules, FiredRule
from scorer.log import export
from scorer.release.decisions.shapes import decision_shape
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.log_pb2 import DecisionRecord, LogRecord

RULES = pb.AppliedRules(
    fired=[pb.FiredRule(id="large", reason="R01"), pb.FiredRule(id="limits.row2")],
    score=0.9,
    queue="level_2",
)


def record(**fields: object) -> DecisionRecord:
    return DecisionRecord(
        decision_id="payment-1",
        checkpoint="fraud.checkout",
        bundle=bytes(32),
        decided_at_us=1_000,
        features=[1.0],
        score=0.75,
        decision="decline",
        **fields,  # type: ignore[arg-type]
    )


EXPECTED = [{"id": "large", "reason": "R01"}, {"id": "limits.row2", "reason": None}]


def test_an_export_has_columns_of_rules(tmp_path: Path) -> None:
    action = record(pmf=[1.0], action="a", rules=pb.AppliedRules(), requested_mask=b"\x01")
    records = [record(rules=RULES), record(), action]
    for number, one in enumerate(records):
        one.decision_id = f"payment-{number}"
    write_segment(tmp_path / "log", 1, 1, [LogRecord(decision=one).SerializeToString() for one in records])
    export(tmp_path / "log", tmp_path / "decisions.parquet")
    table = parquet.read_table(tmp_path / "decisions.parquet")
    assert table["rules"].to_pylist() == [EXPECTED, None, []]
    assert table["ruled_score"].to_pylist() == [0.9, None, None]
    assert table["queue"].to_pylist() == ["level_2", None, None]


def test_the_decision_of_the_platform_has_rules() -> None:
    shape = decision_shape(record(rules=RULES), "server")
    assert (shape["rules"], shape["ruled_score"], shape["queue"]) == (EXPECTED, 0.9, "level_2")
    shape = decision_shape(record(), "server")
    assert (shape["rules"], shape["ruled_score"], shape["queue"]) == (None, None, None)


def test_clients_decode_rules() -> None:
    rules = pb.AppliedRules(fired=[pb.FiredRule(id="a", reason="R", source="law")], score=0.5, unknown=2)
    expected = AppliedRules(fired=(FiredRule("a", "R", "law"),), score=0.5, unknown=2)
    reply = pb.ScoreResponse(decision_id="d", decision="decline", rules=rules)
    assert read_score(reply.SerializeToString(), "d").rules == expected
    chosen = pb.SelectActionResponse(decision_id="d", action="a", propensity=1.0, rules=rules)
    assert read_action(chosen.SerializeToString(), "d").rules == expected
    # The reply of a bundle without rules, and of a server that does not know them.
    reply.ClearField("rules")
    assert read_score(reply.SerializeToString(), "d").rules is None
