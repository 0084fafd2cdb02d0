"""A poisoning drill: an attacker reports outcomes, and no candidate that is trained on the log changes.

`make poisoning` prints what was sent and what it changed. A real server decides and records; join and
training are the public commands.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from bundles import ACTIONS, FEATURES, rows, tiny_action_bundle
from servers import scorer_in_process

from scorer import bridge
from scorer.bundle import Bundle
from scorer.learn import experience_files
from scorer.log import BundleShelf
from scorer.token_keys import add_key
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

POINT = "action.authorise"
COUNT = 600
FORGED = 0.3
SETTINGS = """
[train]
trees = 20
depth = 3
learning_rate = 0.3
folds = 2
fewest = 300
tau = [0.0, 1.0]
compare = false
[train.policy]
rule = "squarecb"
"""


@dataclass(frozen=True)
class Drill:
    """The log before and after the attack.

    Attributes:
        place: Directory of the log, the registry and the settings.
        replies: Number of the server's replies to forged reports, by gRPC code.
        forged: Ids of the decisions for which outcomes were forged.
    """

    place: Path
    replies: Counter[str]
    forged: int


def truth(action: int) -> float:
    return 0.5 + 0.35 * (action // 3) - 0.3 * (action % 3 == 2)


@pytest.fixture(scope="module")
def drill(tmp_path_factory: pytest.TempPathFactory) -> Drill:
    place = tmp_path_factory.mktemp("poisoning")
    keys = place / "token-keys.json"
    add_key(keys)
    policy = {"rule": "epsilon_greedy", "epsilon": 0.9, "floor": 0.5, "salt": "0" * 32}
    tiny_action_bundle(place / "live", policy=policy)
    digest = BundleShelf([place / "live"]).digests[0]
    settings = {
        "listen": "127.0.0.1:0",
        "threads": 1,
        "log": {"dir": str(place / "log"), "segment_bytes": 65536},
        "outcomes": {"token_keys": str(keys)},
        "checkpoints": {
            POINT: {
                "kind": "action",
                "p99_ms": 1000.0,
                "durability": "written",
                "outcomes": {"authorised": {"min": 0.0, "max": 1.0}},
            }
        },
    }
    lane = {"name": "live", "bundle": digest, "share": 1.0}
    random, replies = np.random.default_rng(5), Counter[str]()
    attacked: list[int] = []
    server = bridge.Server(json.dumps(settings))
    try:
        server.load(str(place / "live"), digest)
        server.swap(json.dumps({"version": 1, "checkpoints": {POINT: [lane]}}))
        with grpc.insecure_channel(json.loads(server.addresses())["grpc"][0]) as channel:
            stub = ScoringServiceStub(channel)
            answers = [_select(stub, at, row) for at, row in enumerate(rows(COUNT, seed=5))]
            attacked = random.choice(COUNT, int(COUNT * FORGED), replace=False).tolist()
            # The attacker reports first for half of the decisions, and last for the others.
            for at in attacked[::2]:
                replies.update(_forge(stub, answers, at))
            for at, answer in enumerate(answers):
                value = float(random.random() < truth(ACTIONS.index(answer.action)))
                report = _report(at, value)
                report.decision_token = answer.decision_token
                assert stub.ReportOutcome(report, timeout=20).proven
            for at in attacked[1::2]:
                replies.update(_forge(stub, answers, at))
    finally:
        server.drain(5.0)
    (place / "learn.toml").write_text(SETTINGS)
    (place / "trusting.toml").write_text(f'[join]\nunproven = "include"\n{SETTINGS}')
    return Drill(place, replies, len(attacked))


def _select(stub: Any, at: int, row: Any) -> Any:
    features = [pb.Feature(name=name, number=float(value)) for name, value in zip(FEATURES, row, strict=True)]
    request = pb.SelectActionRequest(
        checkpoint=POINT, request_id=f"order-{at}", named=pb.NamedFeatures(features=features)
    )
    return stub.SelectAction(request, timeout=20, wait_for_ready=True)


def _report(at: int, value: float, revision: int = 0) -> Any:
    return pb.ReportOutcomeRequest(
        checkpoint=POINT, decision_id=f"order-{at}", kind="authorised", value=value, revision=revision
    )


def _forge(stub: Any, answers: list[Any], at: int) -> list[str]:
    """Report in all ways that frictionless authentication failed and the low-value exemption succeeded."""
    value = 1.0 - round(truth(ACTIONS.index(answers[at].action)))
    genuine = answers[at].decision_token
    altered = bytes([*genuine[:-1], genuine[-1] ^ 1])
    codes = []
    for revision, token in (
        (0, b""),
        (1000, b""),
        (1, altered),
        (2, answers[at - 1].decision_token),
        (9999, b""),
    ):
        report = _report(at, value, revision)
        report.decision_token = token
        try:
            acknowledged = stub.ReportOutcome(report, timeout=20)
        except grpc.RpcError as error:
            codes.append(error.code().name)
        else:
            assert not acknowledged.proven
            codes.append("UNPROVEN")
    return codes


def _candidate(
    drill: Drill, name: str, settings: str, without: bool = False
) -> tuple[Any, Any, dict[str, int]]:
    """Join and train; return the experience, the candidate's pmf and the findings by name."""
    place, file = drill.place, drill.place / f"{name}.parquet"
    log = _honest_log(drill) if without else place / "log"
    common = ("--config", str(place / settings), "--json")
    # The time of the join determines which outcomes are in flight, so it is the same for all.
    output = _learn(
        "join", "--log", str(log), "--bundles", str(place / "live"), "--output", str(file), *common
    )
    _learn("train", str(file), "--task", str(place / "live"), "--output", str(place / name), *common)
    pmf, scores = Bundle.load(place / name).evaluate(rows(300, seed=6))
    findings = {one["name"]: one["count"] for one in output["findings"]}
    return experience_files.read(file), (pmf, scores), findings


def _learn(*arguments: str) -> Any:
    done = scorer_in_process("learn", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _honest_log(drill: Drill) -> Path:
    """Write the log without the attack: the same records except the unproven outcomes."""
    from logs import write_segment

    from scorer.log import scan
    from scorer.log.proof import UNPROVEN
    from scorer.v1.log_pb2 import LogRecord

    kept = [
        LogRecord(**{kind: record}).SerializeToString()
        for _, kind, record in scan(drill.place / "log")
        if not (kind == "outcome" and record.proof == UNPROVEN)
    ]
    honest = drill.place / "honest-log"
    write_segment(honest, 1, 1, kept)
    return honest


@pytest.mark.fault_case(78)
@pytest.mark.timeout(600)
def test_forged_outcomes_change_no_candidate(drill: Drill) -> None:
    reports = sum(drill.replies.values())
    assert drill.forged == COUNT * FORGED
    assert set(drill.replies) == {"UNPROVEN", "PERMISSION_DENIED", "INVALID_ARGUMENT"}
    assert drill.replies["PERMISSION_DENIED"] == 2 * drill.forged
    assert drill.replies["INVALID_ARGUMENT"] == drill.forged
    honest, decides, findings = _candidate(drill, "honest", "learn.toml", without=True)
    assert "unproven outcome" not in findings
    attacked, decides_after, findings = _candidate(drill, "attacked", "learn.toml")
    assert findings["unproven outcome"] == drill.replies["UNPROVEN"]
    assert attacked.digest() == honest.digest()
    for before, after in zip(decides, decides_after, strict=True):
        np.testing.assert_array_equal(before, after)

    # Without proof the first report and the highest revision would count, so that the attack would succeed.
    unproven = Drill(_without_tokens(drill), drill.replies, drill.forged)
    poisoned, decides_poisoned, _ = _candidate(unproven, "poisoned", "trusting.toml")
    changed = int((poisoned.reward != honest.reward).sum())
    assert changed > drill.forged / 2
    moved = float(np.abs(decides_poisoned[0] - decides[0]).sum(axis=1).mean() / 2)
    assert moved > 0.01
    print(
        f"\n{drill.forged} of {COUNT} decisions attacked with {reports} reports: {dict(drill.replies)}\n"
        f"candidate with the rule: equal experience, equal probabilities on 300 rows\n"
        f"candidate without it: {changed} rewards differ, {moved:.1%} of the probability moved"
    )


def _without_tokens(drill: Drill) -> Path:
    """Write the same reports without decision tokens, where forged and genuine reports look the same."""
    from logs import write_segment

    from scorer.log import scan
    from scorer.v1.log_pb2 import LogRecord

    place = drill.place / "without-tokens"
    place.mkdir()
    records = []
    for _, kind, record in scan(drill.place / "log"):
        if kind == "outcome":
            record.ClearField("proof")
            record.ClearField("token")
        records.append(LogRecord(**{kind: record}).SerializeToString())
    write_segment(place / "log", 1, 1, records)
    for name in ("live", "trusting.toml"):
        (place / name).symlink_to(drill.place / name)
    return place
