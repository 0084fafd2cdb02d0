"""Test that batch scoring gives the bits of a real server's answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from bundles import FEATURES, rows
from servers import settings, start_server

from scorer.batch import BatchColumns, BatchScorer
from scorer.client import Client

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
