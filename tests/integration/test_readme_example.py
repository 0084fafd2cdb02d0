"""Test of the README's client example with a server that has the demo's checkpoints."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from servers import RunningServer, environment, settings, start_server
from waiting import PATIENCE

from examples.fraud.bundles import build_fraud
from examples.fraud.features import features
from examples.fraud.split import SplitPlan
from examples.fraud.training import FraudPlan, train_fraud
from examples.oracle import OraclePlan, build_oracle, near_greedy, train_oracle
from examples.simulators.payments import Payments, contexts, log_baseline
from examples.simulators.task import authorise_task, choices
from examples.simulators.transactions import TransactionPlan, simulate_transactions
from scorer.registry import Registry

README = Path(__file__).resolve().parents[2] / "README.md"
TARGET = re.compile(r'(?<=Client\()"127\.0\.0\.1:\d+"')


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with small versions of the demo's models: the same features, categories and actions."""
    transactions = simulate_transactions(TransactionPlan(customers=1_000, terminals=3_000, days=40), seed=1)
    rows = features(transactions)
    fraud = train_fraud(transactions, rows, SplitPlan().last(transactions), FraudPlan(trees=20, depth=4))
    first = np.arange(8_000)
    logged = log_baseline(
        Payments(), contexts(transactions.take(first), fraud.scores(rows[first]), seed=1), seed=1
    )
    result = choices(logged)
    oracle = train_oracle(authorise_task(), result, result.digest(), OraclePlan(trees=20, depth=4))
    registry = Registry(tmp_path / "registry")
    for built in (
        build_fraud(fraud, tmp_path / "fraud", "readme"),
        build_oracle(oracle, near_greedy(0.05, "readme"), tmp_path / "oracle", "readme"),
    ):
        registry.alias(built.name, "live", registry.push(built.path))
    with start_server(tmp_path, settings()) as running:
        yield running


def test_the_readme_example_of_the_client_runs(server: RunningServer) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    examples = [block for block in blocks if "Client(" in block]
    assert examples, "the README shows no client"
    for example in examples:
        assert len(TARGET.findall(example)) == 1, 'the example connects to "127.0.0.1:<port>", once'
        # The test waits for the server, because the example does not handle a cold start.
        code = re.sub(r"timeout=[0-9.]+", f"timeout={PATIENCE}", TARGET.sub(f'"{server.address}"', example))
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env=environment(),
            capture_output=True,
            text=True,
            timeout=PATIENCE * 2,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
