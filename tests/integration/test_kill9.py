"""Tests of repeated kill -9 under traffic: acknowledged decisions are in the log once, unchanged."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from bundles import ACTIONS
from servers import scorer, start_server
from waiting import wait_until

from scorer.client import Client, ClientError, RetryPolicy, SelectedAction
from scorer.log import LogReader
from scorer.registry import Registry
from scorer.v1 import log_pb2

CHECKPOINT = "action.authorise"
# `make kill-rounds` runs 200.
ROUNDS = int(os.environ.get("SCORER_KILL_ROUNDS", "6"))
CALLERS = 3


@dataclass
class Ledger:
    """The responses that callers received."""

    actions: dict[str, SelectedAction] = field(default_factory=dict)
    outcomes: dict[str, float] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)


def call_until_it_dies(address: str, caller: str, ledger: Ledger, stop: threading.Event) -> None:
    """Select actions and report outcomes until a call fails.

    A response is recorded only when it has arrived.
    """
    chance = random.Random(caller)
    with Client(address, timeout=5, retry=RetryPolicy(attempts=1)) as client:
        count = 0
        while not stop.is_set():
            count += 1
            request = f"{caller}-{count}"
            context = {"amount": chance.uniform(1, 300), "hour": chance.randrange(24)}
            eligible = chance.sample(ACTIONS, chance.randint(1, len(ACTIONS)))
            ledger.asked.add(request)
            try:
                action = client.select_action(CHECKPOINT, context, request_id=request, eligible=eligible)
                ledger.actions[request] = action
                value = float(chance.random() < 0.8)
                client.report_outcome(CHECKPOINT, request, "authorised", value)
                ledger.outcomes[request] = value
            except ClientError as error:
                if not stop.is_set():
                    ledger.unexpected.append(repr(error))
                return


@pytest.mark.fault_case(71)
def test_no_acknowledged_decision_or_outcome_is_lost(tmp_path: Path, registry: Registry) -> None:
    ledger = Ledger()
    chance = random.Random(20260101)
    for turn in range(ROUNDS):
        with start_server(tmp_path) as server:
            stop = threading.Event()
            callers = [
                threading.Thread(
                    target=call_until_it_dies, args=(server.address, f"r{turn}c{c}", ledger, stop)
                )
                for c in range(CALLERS)
            ]
            before = len(ledger.outcomes)
            for caller in callers:
                caller.start()
            wanted = chance.randint(30, 400)
            wait_until(
                lambda before=before, wanted=wanted: len(ledger.outcomes) - before >= wanted, "traffic"
            )
            stop.set()  # from here on, calls are expected to fail
            server.kill()
            for caller in callers:
                caller.join(30)
                assert not caller.is_alive()
    assert not ledger.unexpected

    with start_server(tmp_path) as server, Client(server.address, timeout=5) as client:
        # The outcome index was rebuilt, so that the same report is a duplicate and not a second outcome.
        some = sorted(ledger.outcomes)[:20]
        assert all(
            client.report_outcome(CHECKPOINT, key, "authorised", ledger.outcomes[key]).duplicate
            for key in some
        )
        assert server.stop() == 0, server.transcript()

    decisions, outcomes = read_log(tmp_path / "decisions")
    assert len(ledger.actions) > ROUNDS * 30
    lost = [key for key in ledger.actions if key not in decisions]
    assert not lost, f"{len(lost)} acknowledged decisions are not in the log: {lost[:5]}"
    for key, action in ledger.actions.items():
        (row,) = decisions[key]
        assert (row.action, row.propensity, f"sha256:{row.bundle.hex()}") == (
            action.action,
            action.propensity,
            action.served.bundle,
        ), key
    assert decisions.keys() <= ledger.asked
    for key, value in ledger.outcomes.items():
        assert [row.value for row in outcomes[key]] == [value], key

    verified = scorer("log", "verify", "--log", "decisions", "--bundles", "registry/bundles", cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def read_log(
    directory: Path,
) -> tuple[dict[str, list[log_pb2.DecisionRecord]], dict[str, list[log_pb2.OutcomeRecord]]]:
    """Return every decision and outcome by decision id. The sequence must have no gap."""
    decisions: dict[str, list[log_pb2.DecisionRecord]] = {}
    outcomes: dict[str, list[log_pb2.OutcomeRecord]] = {}
    expected = 0
    for sequence, record in LogReader(directory).records():
        expected = expected or sequence
        assert sequence == expected
        expected += 1
        if record.HasField("decision"):
            decisions.setdefault(record.decision.decision_id, []).append(record.decision)
        elif record.HasField("outcome"):
            outcomes.setdefault(record.outcome.decision_id, []).append(record.outcome)
    return decisions, outcomes
