"""Test of a rule pack from its file to the audit: written, put into a bundle, served, logged and audited."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from bundles import ACTIONS, FEATURES, rows, tiny_action_bundle
from servers import scorer_in_process

from scorer import bridge
from scorer.bundle import inspect
from scorer.learn import experience_files
from scorer.learn.experience import State
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

POINT = "action.authorise"
COUNT = 400
WRITE = (
    *("--map", "amount_eur=amount", "--map", "issuer_in_eea=hour < 12.0", "--map", "acquirer_in_eea=true"),
    *("--map", "merchant_initiated=false", "--map", "mail_or_telephone_order=false"),
    *("--map", "low_value_sum_eur=distance * 10.0", "--map", "low_value_count=count_24h"),
    *("--map", "fraud_rate_bp=6.0", "--map", "risk_found=distance > 30.0"),
    *("--map", "three_ds=3ds", "--map", "three_ds.none=off", "--map", "exemption.low_value=low"),
    *("--without", "sca_trusted_beneficiary", "--without", "sca_recurring"),
    *("--without", "sca_secure_corporate", "--without", "sca_merchant_initiated"),
)


def contexts() -> Any:
    """Return the payments. Every ninth lacks one of the features, each in turn."""
    data = rows(COUNT, seed=7)
    data[: COUNT // 2, 0] /= 4.0
    for at in range(0, COUNT, 9):
        data[at, at // 9 % len(FEATURES)] = np.nan
    return data


def allowed(data: Any) -> Any:
    """Return the actions that the written rules allow, without the engine, `[n, actions]`."""
    amount, hour, count, distance = data.T
    factors = [dict(part.split("=") for part in action.split("|")) for action in ACTIONS]
    off = np.array([one["3ds"] == "off" for one in factors])
    exemption = np.array([one["exemption"] for one in factors])
    with np.errstate(invalid="ignore"):
        excluded = [
            (off & (exemption == "none"), ~(hour >= 12)),
            (exemption == "low", ~(amount <= 30)),
            (exemption == "low", ~((distance * 10 <= 100) | (count <= 5))),
            (exemption == "tra", ~(amount <= 250)),
            (exemption == "tra", ~(distance <= 30)),
        ]
    mask = np.ones((len(data), len(ACTIONS)), dtype=bool)
    for actions, payments in excluded:
        mask[payments] &= ~actions
    return mask


def serve(place: Path, name: str) -> None:
    """Let a server decide all payments with a bundle. Every other request allows one action less itself."""
    digest = inspect(place / name).digest
    settings = {
        "listen": "127.0.0.1:0",
        "threads": 1,
        "log": {"dir": str(place / f"{name}-log"), "segment_bytes": 65536},
        "checkpoints": {POINT: {"kind": "action", "p99_ms": 1000.0, "durability": "written"}},
    }
    server = bridge.Server(json.dumps(settings))
    server.load(str(place / name), digest)
    lane = {"name": "live", "bundle": digest, "share": 1.0}
    server.swap(json.dumps({"version": 1, "checkpoints": {POINT: [lane]}}))
    try:
        with grpc.insecure_channel(json.loads(server.addresses())["grpc"][0]) as channel:
            stub = ScoringServiceStub(channel)
            for at, row in enumerate(contexts()):
                values = zip(FEATURES, map(float, row), strict=True)
                features = [pb.Feature(name=key, number=value) for key, value in values if value == value]
                mask = bytes([0b101111 if at % 2 else 0b111111])
                request = pb.SelectActionRequest(
                    checkpoint=POINT,
                    request_id=f"x{at}",
                    named=pb.NamedFeatures(features=features),
                    eligible=pb.EligibleActions(mask=mask),
                )
                stub.SelectAction(request, timeout=20, wait_for_ready=True)
    finally:
        server.drain(5.0)


def joined(place: Path, name: str) -> Path:
    """Join a server's log and return the file of the experience."""
    file = place / f"{name}.parquet"
    bundles = ("--bundles", str(place / name))
    run("learn", "join", "--log", str(place / f"{name}-log"), *bundles, "--output", str(file))
    return file


def run(*arguments: str, code: int = 0) -> str:
    done = scorer_in_process(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def audited(place: Path, experience: Path, bundle: str, *more: str, code: int) -> list[dict[str, Any]]:
    """Return what the audit of an experience finds."""
    arguments = ("learn", "guardrails", "check", str(experience), "--bundle", str(place / bundle), *more)
    findings: list[dict[str, Any]] = json.loads(run(*arguments, "--json", code=code))
    return findings


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the logs of two servers, one of a bundle with the rules of a pack and one without them."""
    place = tmp_path_factory.mktemp("packs")
    policy = {"rule": "epsilon_greedy", "epsilon": 0.5, "floor": 0.1, "salt": "0" * 32}
    tiny_action_bundle(place / "free", policy=policy)
    file = str(place / "rules.toml")
    run("rules", "packs", "write", "psd2_sca", "--bundle", str(place / "free"), "-o", file, *WRITE)
    run("rules", "check", file, "--bundle", str(place / "free"))
    run("bundle", "revise", str(place / "free"), "--rules", file, "--output", str(place / "ruled"))
    for name in ("ruled", "free"):
        serve(place, name)
    return place


def test_decisions_obey_the_rules_of_the_pack_and_the_audit_finds_nothing(place: Path) -> None:
    experience = joined(place, "ruled")
    logged = experience_files.read(experience)
    assert len(logged) == COUNT
    expected = allowed(contexts())
    expected[1::2, 4] = False
    numbers = [int(name[1:]) for name in logged.decision_id.tolist()]
    np.testing.assert_array_equal(logged.eligible, expected[numbers])
    assert logged.took_eligible.all()
    shares = expected.mean(axis=0)
    assert (shares > 0).all() and (shares[[0, 1, 2, 4, 5]] < 1).all(), "every rule excludes, and never always"
    assert audited(place, experience, "ruled", code=0) == []
    assert audited(place, experience, "free", "--rules", str(place / "rules.toml"), code=0) == []


def test_the_audit_of_a_bundle_without_the_rules_names_those_that_were_violated(place: Path) -> None:
    experience = joined(place, "free")
    assert audited(place, experience, "free", code=0) == [], "the bundle has no rules"
    findings = audited(place, experience, "free", "--rules", str(place / "rules.toml"), code=1)
    assert findings == audited(place, experience, "ruled", code=1)
    amount, hour, count, distance = contexts().T
    with np.errstate(invalid="ignore"):
        expected = {
            "sca_authentication_owed": ~(hour >= 12),
            "sca_low_value_amount": ~(amount <= 30),
            "sca_low_value_counters": ~((distance * 10 <= 100) | (count <= 5)),
            "sca_tra_amount": ~(amount <= 250),
            "sca_tra_risk": ~(distance <= 30),
        }
    assert {one["rule"]: one["rows"] for one in findings} == {
        rule: int(rows.sum()) for rule, rows in expected.items()
    }
    logged = experience_files.read(experience)
    low = np.array(["exemption=low" in action for action in ACTIONS])[logged.action]
    numbers = [int(name[1:]) for name in logged.decision_id.tolist()]
    taken = int((low & expected["sca_low_value_amount"][numbers]).sum())
    assert taken > 0
    assert {one["rule"]: one["detail"] for one in findings}["sca_low_value_amount"] == {"taken": taken}
    assert all("2018/389" in one["source"] or "2015/2366" in one["source"] for one in findings)
    shown = run("learn", "guardrails", "check", str(experience), "--bundle", str(place / "ruled"), code=1)
    assert "sca_tra_amount" in shown and "article 18" in shown


def test_the_gate_holds_the_violations_against_the_candidate(place: Path) -> None:
    """The audit of the gate uses the rules of the live bundle."""
    from scorer.learn.gate.judge import judge
    from scorer.learn.gate.settings import GateSettings
    from scorer.learn.guardrails.settings import GuardrailSettings

    gate = GateSettings(require_lineage=False)
    for name, passed in (("ruled", True), ("free", False)):
        logged = experience_files.read(joined(place, name))
        known = {"state": np.full(COUNT, State.SETTLED, np.int8), "reward": np.ones(COUNT)}
        logged = replace(logged, **known)
        verdict = judge(
            logged,
            place / "free",
            place / "ruled",
            gate,
            GuardrailSettings(),
            experience_digest=logged.digest(),
        )
        (check,) = [one for one in verdict.evidence.checks if one.name == "promises"]
        assert check.passed is passed, check.says
        assert ('rule "sca_tra_amount"' in check.says) is not passed
