"""Tests that decisions of a real server are verified with their bundles bit for bit."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import grpc
import pytest
from bundles import ACTIONS, FEATURES, rows
from servers import scorer_in_process

from scorer import bridge
from scorer.log import BundleShelf, LogReader, verify
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

SCORE, ACTION = "fraud.checkout", "action.authorise"


@contextmanager
def serving(log: Path, bundles: dict[str, Path]) -> Iterator[ScoringServiceStub]:
    """Run the data plane in this process. Its log is sealed at the end."""
    settings = {
        "listen": "127.0.0.1:0",
        "threads": 1,
        "log": {"dir": str(log), "segment_bytes": 8192},
        "checkpoints": {
            SCORE: {"kind": "score", "p99_ms": 1000.0, "durability": "async"},
            ACTION: {"kind": "action", "p99_ms": 1000.0, "durability": "written"},
        },
    }
    server = bridge.Server(json.dumps(settings))
    lanes = {}
    for checkpoint, path in ((SCORE, bundles["score-1"]), (ACTION, bundles["action-1"])):
        digest = BundleShelf([path]).digests[0]
        server.load(str(path), digest)
        lanes[checkpoint] = [{"name": "live", "bundle": digest, "share": 1.0}]
    server.swap(json.dumps({"version": 1, "checkpoints": lanes}))
    (address,) = json.loads(server.addresses())["grpc"]
    try:
        with grpc.insecure_channel(address) as channel:
            yield ScoringServiceStub(channel)
    finally:
        server.drain(5.0)


def named(row: Any) -> pb.NamedFeatures:
    values = zip(FEATURES, row, strict=True)
    return pb.NamedFeatures(
        features=[
            pb.Feature(name=name, number=float(value)) for name, value in values if not math.isnan(value)
        ]
    )


def select(stub: ScoringServiceStub, row: Any, **more: Any) -> pb.SelectActionResponse:
    return stub.SelectAction(
        pb.SelectActionRequest(checkpoint=ACTION, named=named(row), **more), timeout=20, wait_for_ready=True
    )


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> tuple[Path, dict[str, pb.SelectActionResponse]]:
    """A log with scores, a batch, selections with and without masks, missing features, and outcomes."""
    log = tmp_path_factory.mktemp("served") / "log"
    answers = {}
    data = rows(60, seed=3)
    data[::7, 1] = math.nan
    with serving(log, built_bundles) as stub:
        for at, row in enumerate(data):
            stub.Score(pb.ScoreRequest(checkpoint=SCORE, request_id=f"s{at}", named=named(row)), timeout=20)
            eligible = pb.EligibleActions(mask=bytes([at % 63 + 1])) if at % 2 else None
            answers[f"x{at}"] = select(stub, row, request_id=f"x{at}", eligible=eligible)
        width = data.shape[1]
        fingerprint = stub.Describe(pb.DescribeRequest(checkpoint=SCORE), timeout=20).checkpoints[0]
        batch = pb.ScoreBatchRequest(
            checkpoint=SCORE,
            request_id="batch",
            schema_fingerprint=fingerprint.schema_fingerprint,
            values=data.ravel().tolist(),
            rows=data.size // width,
        )
        stub.ScoreBatch(batch, timeout=20)
        for decision, value in (("s1", 1.0), ("s2", 0.0), ("s2", 0.0)):
            report = pb.ReportOutcomeRequest(
                checkpoint=SCORE, decision_id=decision, kind="fraud", value=value
            )
            stub.ReportOutcome(report, timeout=20)
    return log, answers


@pytest.mark.fault_case(81)
def test_every_decision_of_a_server_is_repeated_bit_for_bit(
    served: tuple[Path, dict[str, pb.SelectActionResponse]], built_bundles: dict[str, Path]
) -> None:
    log, _ = served
    bundles = [str(built_bundles[name]) for name in ("score-1", "action-1")]
    done = scorer_in_process(
        "log", "verify", "--log", str(log), "--bundles", bundles[0], "--bundles", bundles[1], "--json"
    )
    document = json.loads(done.stdout)
    assert done.returncode == 0, document
    assert document["records"]["decision"] == document["verified"] == 180
    assert document["records"]["outcome"] == 2
    assert document["fallbacks"] == document["mismatched"] == 0
    assert document["segments"] > 1


def test_the_log_equals_the_replies(
    served: tuple[Path, dict[str, pb.SelectActionResponse]],
) -> None:
    log, answers = served
    logged = {
        record.decision.decision_id: record.decision
        for _, record in LogReader(log).records()
        if record.WhichOneof("record") == "decision" and record.decision.checkpoint == ACTION
    }
    assert logged.keys() == answers.keys()
    for decision_id, answer in answers.items():
        decision = logged[decision_id]
        assert (decision.action, decision.propensity) == (answer.action, answer.propensity)
        assert f"sha256:{decision.bundle.hex()}" == answer.served.bundle
        assert math.isclose(sum(decision.pmf), 1.0, abs_tol=1e-6)


def test_an_export_of_a_server_s_log_has_named_features_and_outcomes(
    served: tuple[Path, dict[str, pb.SelectActionResponse]], built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    log, _ = served
    to = tmp_path / "d.parquet"
    done = scorer_in_process(
        "log", "export", "--log", str(log), "--to", str(to), "--bundles", str(built_bundles["score-1"].parent)
    )
    assert done.returncode == 0, done.stderr
    assert "180 decisions" in done.stdout
    (counted,) = duckdb.sql(
        "select count(*), count(outcome_fraud), sum(outcome_fraud), count(*) filter (isnan(feature_hour)),"
        f" bool_and(feature_amount = features[1]), max(len(pmf)) from '{to}'"
    ).fetchall()
    assert counted == (180, 2, 1.0, 27, True, len(ACTIONS))


def rewrite(log: Path, to: Path, change: Any) -> tuple[int, int]:
    """Copy a log with one changed decision and correct checksums; return the sequence and the segments."""
    from scorer.v1.log_pb2 import LogRecord

    to.mkdir()
    changed = 0
    for path in sorted(log.glob("*.seg")):
        data = path.read_bytes()
        out, at, identity = bytearray(data[:96]), 96, data[32:48]
        while at < len(data):
            word, sequence = struct.unpack_from("<IQ", data, at + 4)
            length, kind = word & 0xFFFFFF, word >> 24
            payload = data[at + 16 : at + 16 + length]
            record = LogRecord.FromString(payload) if kind == 1 else None
            if record is not None and not changed and change(record):
                payload, changed = record.SerializeToString(), sequence
            tail = struct.pack("<IQ", kind << 24 | len(payload), sequence)
            whole = struct.pack("<I", crc32c(payload + identity + tail[:4] + tail[4:])) + tail + payload
            out += whole + bytes(-len(whole) % 8)
            at += -(-(16 + length) // 8) * 8
        (to / path.name).write_bytes(out)
    return changed, len(list(to.iterdir()))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def ulp(value: float) -> float:
    return math.nextafter(value, math.inf)


def _margin(record: Any) -> bool:
    if record.decision.checkpoint == SCORE:
        record.decision.margin = ulp(record.decision.margin)
    return bool(record.decision.checkpoint == SCORE)


def _label(record: Any) -> bool:
    if record.decision.checkpoint == SCORE:
        record.decision.decision = "review" if record.decision.decision == "approve" else "approve"
    return bool(record.decision.checkpoint == SCORE)


def _feature(record: Any) -> bool:
    if record.decision.checkpoint == ACTION:
        record.decision.features[3] += 40.0
        record.decision.features[0] += 60.0
    return bool(record.decision.checkpoint == ACTION)


def _pmf(record: Any) -> bool:
    if record.decision.checkpoint == ACTION:
        record.decision.pmf[0] = ulp(record.decision.pmf[0])
    return bool(record.decision.checkpoint == ACTION)


def _propensity(record: Any) -> bool:
    if record.decision.checkpoint == ACTION:
        record.decision.propensity = ulp(record.decision.propensity)
    return bool(record.decision.checkpoint == ACTION)


def _id(record: Any) -> bool:
    """Give an exploring decision an id with which the best action is drawn."""
    if record.decision.checkpoint != ACTION or record.decision.propensity > 0.1:
        return False
    record.decision.decision_id = "x0"
    return True


def _static(record: Any) -> bool:
    if record.decision.checkpoint == ACTION:
        record.decision.fallback_source = "static"
    return bool(record.decision.checkpoint == ACTION)


CHANGES = {
    "margin": _margin,
    "decision": _label,
    "expected_reward": _feature,
    "pmf": _pmf,
    "propensity": _propensity,
    "action": _id,
    "1 for a static fallback": _static,
}


@pytest.mark.parametrize("named_field", CHANGES)
def test_one_altered_bit_of_a_decision_is_found(
    served: tuple[Path, dict[str, pb.SelectActionResponse]],
    built_bundles: dict[str, Path],
    tmp_path: Path,
    named_field: str,
) -> None:
    sequence, _ = rewrite(served[0], tmp_path / "log", CHANGES[named_field])
    report = verify(tmp_path / "log", BundleShelf([built_bundles["score-1"].parent]))
    assert sequence > 0
    assert not report.ok
    assert report.findings == []
    assert {mismatch.sequence for mismatch in report.mismatches} == {sequence}
    assert report.mismatched == 1
    assert any(named_field in str(mismatch) for mismatch in report.mismatches)


def test_other_bundles_are_reported_as_missing(
    served: tuple[Path, dict[str, pb.SelectActionResponse]], built_bundles: dict[str, Path], tmp_path: Path
) -> None:
    log, _ = served
    done = scorer_in_process("log", "verify", "--log", str(log), "--bundles", str(built_bundles["action-1"]))
    assert done.returncode == 1
    assert "120 not checked, bundle" in done.stdout
    assert "60 repeated bit for bit" in done.stdout
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in built_bundles["score-1"].iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    forest = broken / "forest.bin"
    forest.write_bytes(forest.read_bytes()[:-1])
    done = scorer_in_process(
        "log",
        "verify",
        "--log",
        str(log),
        "--bundles",
        str(broken),
        "--bundles",
        str(built_bundles["action-1"]),
    )
    assert done.returncode == 1
    assert "forest.bin" in done.stdout
