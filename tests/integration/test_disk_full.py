"""A full disk under the decision log: nothing unlogged is explored, nothing acknowledged is lost."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundles import ACTIONS
from servers import RunningServer, scorer, start_server
from waiting import wait_until

from scorer.client import Client, UnavailableError
from scorer.registry import Registry

CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}


@pytest.fixture
def server(tmp_path: Path, registry: Registry) -> Iterator[RunningServer]:
    with start_server(tmp_path) as running:
        yield running


def fill_disk(server: RunningServer) -> None:
    """No file of the process may grow any more: what ENOSPC does to a log, without filling this machine."""
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1, hard))


def free_disk(server: RunningServer) -> None:
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_exploration_stops_while_the_log_is_full_and_resumes_after(server: RunningServer) -> None:
    with Client(server.address, timeout=10) as client:
        before = client.select_action("action.authorise", CONTEXT, request_id="before")
        assert before.logged
        assert before.propensity < 1
        assert not client.report_outcome("action.authorise", "before", "authorised", 1.0).duplicate

        fill_disk(server)
        chosen = [
            client.select_action("action.authorise", CONTEXT, request_id=f"full-{i}", include_pmf=True)
            for i in range(20)
        ]
        assert {action.logged for action in chosen} == {False}
        assert {action.propensity for action in chosen} == {1.0}, "an unlogged decision must not be explored"
        assert len({action.action for action in chosen}) == 1
        assert all("log" in action.served.fallback_reason for action in chosen)
        with pytest.raises(UnavailableError, match="log"):
            client.report_outcome("action.authorise", "before", "chargeback", 1.0)
        # Fraud scores keep coming: their class of durability may lose a record, and counts it.
        assert client.score("fraud.checkout", CONTEXT).decision in {"approve", "review", "decline"}
        status = server.status()
        assert status["log"]["state"] == "unavailable"

        free_disk(server)

        def logged_again() -> bool:
            return client.select_action("action.authorise", CONTEXT).logged

        wait_until(logged_again, "the log to be written again")
        # What was refused while the disk was full was not half-recorded: it is new now.
        ack = client.report_outcome("action.authorise", "before", "chargeback", 1.0)
        assert not ack.duplicate
        explored = {client.select_action("action.authorise", CONTEXT).action for _ in range(200)}
        assert len(explored) > 1, "exploration resumes"
        assert explored <= set(ACTIONS)
    assert server.stop() == 0, server.story()
    verified = scorer(
        "log", "verify", "--log", "decisions", "--bundles", "registry/bundles", cwd=server.directory
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
