"""Test of one cycle of the loop on a real server's log: decide, report, join, train, and decide again."""

from __future__ import annotations

import json
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
from scorer.learn.experience import State
from scorer.log import BundleShelf
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

POINT = "action.authorise"
COUNT = 700
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


def truth(row: Any, action: int) -> float:
    """Return the probabilities of success.

    Frictionless authentication raises them, and the low-value exemption lowers them.
    """
    return 0.5 + 0.35 * (action // 3) - 0.3 * (action % 3 == 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the log of a server that explores uniformly. Nine of ten outcomes were reported."""
    place = tmp_path_factory.mktemp("loop")
    policy = {"rule": "epsilon_greedy", "epsilon": 0.9, "floor": 0.5, "salt": "0" * 32}
    tiny_action_bundle(place / "live", policy=policy)
    digest = BundleShelf([place / "live"]).digests[0]
    settings = {
        "listen": "127.0.0.1:0",
        "threads": 1,
        "log": {"dir": str(place / "log"), "segment_bytes": 65536},
        "checkpoints": {POINT: {"kind": "action", "p99_ms": 1000.0, "durability": "written"}},
    }
    server = bridge.Server(json.dumps(settings))
    server.load(str(place / "live"), digest)
    lane = {"name": "live", "bundle": digest, "share": 1.0}
    server.swap(json.dumps({"version": 1, "checkpoints": {POINT: [lane]}}))
    random = np.random.default_rng(5)
    data = rows(COUNT, seed=5)
    data[::9, 3] = np.nan
    try:
        with grpc.insecure_channel(json.loads(server.addresses())["grpc"][0]) as channel:
            stub = ScoringServiceStub(channel)
            for at, row in enumerate(data):
                named = pb.NamedFeatures(
                    features=[
                        pb.Feature(name=name, number=float(value))
                        for name, value in zip(FEATURES, row, strict=True)
                        if value == value
                    ]
                )
                mask = bytes([0b011111 if at % 2 else 0b111111])
                answer = stub.SelectAction(
                    pb.SelectActionRequest(
                        checkpoint=POINT,
                        request_id=f"x{at}",
                        named=named,
                        eligible=pb.EligibleActions(mask=mask),
                    ),
                    timeout=20,
                    wait_for_ready=True,
                )
                if at % 10:
                    value = float(random.random() < truth(row, ACTIONS.index(answer.action)))
                    report = pb.ReportOutcomeRequest(
                        checkpoint=POINT, decision_id=f"x{at}", kind="authorised", value=value
                    )
                    stub.ReportOutcome(report, timeout=20)
    finally:
        server.drain(5.0)
    (place / "learn.toml").write_text(SETTINGS)
    return place


def learn(place: Path, *arguments: str) -> Any:
    done = scorer_in_process("learn", *arguments, "--config", str(place / "learn.toml"), "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_steps_of_the_loop_train_a_better_candidate(place: Path) -> None:
    file = place / "experience.parquet"
    joined = learn(
        place, "join", "--log", str(place / "log"), "--bundles", str(place / "live"), "--output", str(file)
    )
    findings = {one["name"]: one["count"] for one in joined["findings"]}
    assert set(findings) <= {"family without actions", "one action in a week"}
    e = experience_files.read(file)
    assert e.actions == ACTIONS
    assert (e.state == State.IN_FLIGHT).sum() == COUNT // 10
    assert (e.state == State.SETTLED).sum() == COUNT - COUNT // 10
    # The logged propensities equal those that the bundle computes.
    pmf, _ = Bundle.load(place / "live").evaluate(e.context, eligible=e.eligible)
    np.testing.assert_array_equal(pmf[np.arange(COUNT), e.action], e.propensity)
    trained = learn(place, "train", str(file), "--task", str(place / "live"), "--output", str(place / "next"))
    assert trained["generation"] == 1
    assert trained["decisions"]["in_flight"] == COUNT // 10
    assert trained["join"]["checkpoint"] == POINT
    scores = Bundle.load(place / "next").evaluate(rows(200, seed=6))[1].mean(axis=0)
    # The candidate prefers the better actions, unlike the bundle before it.
    assert scores[3:5].min() > scores[:2].max()
    assert scores[2] < scores[:2].min()
