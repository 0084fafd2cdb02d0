"""Tests that batch scoring gives the bits of a real server's answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bundles import FEATURES, rows, tiny_action_bundle, tiny_score_bundle
from servers import ACTION, SCORE, settings, start_server

from scorer.batch import BatchColumns, BatchScorer
from scorer.bundle.rules import BundleRules
from scorer.client import Client
from scorer.registry import Registry

PATIENT = 20.0
COUNT = 200
MAY = ("3ds=off|exemption=none", "3ds=off|exemption=low", "3ds=frictionless|exemption=tra")


@pytest.mark.usefixtures("registry")
def test_a_server_answers_with_the_same_bits(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    data = rows(COUNT, seed=21)
    data[::7, 1] = np.nan
    table = pa.record_batch(
        {
            **{
                name: pa.array(data[:, at].astype(np.float64), from_pandas=True)
                for at, name in enumerate(FEATURES)
            },
            "order": [f"order-{at}" for at in range(COUNT)],
            "may": pa.array([MAY if at % 3 else None for at in range(COUNT)], pa.list_(pa.string())),
        }
    )
    columns = BatchColumns(id="order", checkpoint="action.authorise", eligible="may", pmf=True)
    scores = BatchScorer.load(built_bundles["score-1"]).score(table).to_pylist()
    actions = BatchScorer.load(built_bundles["action-1"], columns).score(table).to_pylist()

    with start_server(tmp_path, settings()) as server, Client(server.address, timeout=PATIENT) as client:
        client.wait_ready()
        for at, (row, score, action) in enumerate(zip(data, scores, actions, strict=True)):
            named = {
                name: float(value) for name, value in zip(FEATURES, row, strict=True) if not np.isnan(value)
            }
            answer = client.score("fraud.checkout", named)
            assert answer.served.by_model
            assert (answer.margin, answer.score, answer.decision) == (
                score["margin"],
                score["score"],
                score["decision"],
            )
            chosen = client.select_action(
                "action.authorise",
                named,
                request_id=f"order-{at}",
                eligible=list(MAY) if at % 3 else None,
                include_pmf=True,
            )
            assert chosen.served.by_model
            assert (chosen.action, chosen.propensity) == (action["action"], action["propensity"])
            assert chosen.expected_reward == action["expected_reward"]
            # The protocol has float32 here.
            assert list(chosen.pmf) == np.float32(action["pmf"]).tolist()
    assert len({action["action"] for action in actions}) > 2
    assert len({score["decision"] for score in scores}) > 1


CHECKOUT = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0"
decision = "decline"
queue = "level_2"

[[rules]]
id = "half"
when = "count_24h >= 1.0"
floor = 0.5
rollout = 50.0

[[rules]]
id = "ended"
when = "hour < 12.0"
decision = "approve"
until = 2020-01-01
"""
EXEMPTIONS = """
name = "exemptions"

[[rules]]
id = "tra_limit"
when = "amount > 100.0"
remove = { exemption = ["tra"] }
source = "Delegated Regulation (EU) 2018/389, article 18"

[[rules]]
id = "challenge"
when = "distance > 30.0"
keep = { "3ds" = ["frictionless"] }
source = "agreement"
rollout = 60.0
"""


def test_a_server_applies_the_same_rules(tmp_path: Path) -> None:
    tiny_score_bundle(tmp_path / "score", rules=BundleRules(CHECKOUT))
    tiny_action_bundle(tmp_path / "action", rules=BundleRules(EXEMPTIONS))
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(tmp_path / "score"))
    registry.alias("action-authorise", "live", registry.push(tmp_path / "action"))
    data = rows(COUNT, seed=22)
    data[::7, 1] = np.nan
    columns = {
        name: pa.array(data[:, at].astype(np.float64), from_pandas=True) for at, name in enumerate(FEATURES)
    }
    table = pa.record_batch(
        {
            **columns,
            "row": [f"night/{at}" for at in range(COUNT)],
            "order": [f"order-{at}" for at in range(COUNT)],
        }
    )
    chosen = BatchColumns(id="order", checkpoint="action.authorise", pmf=True)
    scores = BatchScorer.load(tmp_path / "score", BatchColumns(id="row")).score(table).to_pylist()
    actions = BatchScorer.load(tmp_path / "action", chosen).score(table).to_pylist()

    with (
        start_server(tmp_path, settings(SCORE + ACTION)) as server,
        Client(server.address, timeout=PATIENT) as client,
    ):
        client.wait_ready()
        batch = client.score_batch("fraud.checkout", data, request_id="night")
        assert batch.rules is not None
        for at, score in enumerate(scores):
            assert (float(batch.scores[at]), float(batch.margins[at])) == (score["score"], score["margin"])
            applied = batch.rules[at]
            assert batch.decisions[at] == score["decision"]
            assert (applied.score, applied.queue or None) == (score["ruled_score"], score["queue"])
            assert [rule.id for rule in applied.fired] == score["rules"]
        for at, (row, action) in enumerate(zip(data, actions, strict=True)):
            named = {
                name: float(value) for name, value in zip(FEATURES, row, strict=True) if not np.isnan(value)
            }
            answer = client.select_action(
                "action.authorise", named, request_id=f"order-{at}", include_pmf=True
            )
            assert answer.rules is not None and answer.served.by_model
            assert (answer.action, answer.propensity) == (action["action"], action["propensity"])
            assert [rule.id for rule in answer.rules.fired] == action["rules"]
            assert list(answer.pmf) == np.float32(action["pmf"]).tolist()
    fired = {rule for one in (*scores, *actions) for rule in one["rules"]}
    assert fired == {"large", "half", "tra_limit", "challenge"}
