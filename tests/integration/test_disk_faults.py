"""Errors and delays of the disk under a real server, injected into its system calls with strace."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

import components
import pytest
from servers import SCORE, RunningServer, scorer, settings, start_server
from stalled_disk import injected
from waiting import wait_until

from scorer.client import Client, SelectedAction, UnavailableError
from scorer.log import LogReader

CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}
WRITER, SYNCER = "scorer-log-write", "scorer-log-sync"


def _action(durability: str) -> str:
    return (
        '[checkpoints."action.authorise"]\nkind = "action"\nalias = "action-authorise@live"\n'
        f'p99_ms = 10000.0\nmode = "observe"\ndurability = "{durability}"\n'
    )


def _metric(server: RunningServer, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return next(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(f"{name} "))


def _check(server: RunningServer, acknowledged: set[str]) -> None:
    """Assert that every acknowledged record is in the log once and that its bundle reproduces it."""
    assert server.stop() == 0, server.transcript()
    ids = [
        record.decision.decision_id
        for _, record in LogReader(server.directory / "decisions").records()
        if record.HasField("decision")
    ]
    assert acknowledged <= set(ids)
    verified = scorer(
        "log", "verify", "--log", "decisions", "--bundles", "registry/bundles", cwd=server.directory
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.fault_case(73)
@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EDQUOT"])
@pytest.mark.parametrize("call", ["pwrite64", "fdatasync"])
@pytest.mark.usefixtures("registry")
def test_a_disk_error_is_reported_and_no_acknowledged_record_is_lost(
    tmp_path: Path, call: str, error: str
) -> None:
    components.require("strace")
    acknowledged: set[str] = set()
    with (
        start_server(tmp_path, settings(SCORE + _action("sync"))) as server,
        Client(server.address, timeout=30) as client,
    ):

        def select() -> SelectedAction:
            action = client.select_action("action.authorise", CONTEXT)
            if action.logged:
                acknowledged.add(action.decision_id)
            return action

        first = select()
        assert first.logged
        with injected(server.process.pid, [WRITER, SYNCER], f"{call}:error={error}"):
            answers = [select() for _ in range(20)]
            with pytest.raises(UnavailableError):
                client.report_outcome("action.authorise", first.decision_id, "authorised", 1.0)
            assert client.score("fraud.checkout", CONTEXT).served.fallback_reason == ""
            state = server.status()["log"]["state"]
        # Class `sync`: while the disk fails, no answer is marked as logged, and none explores.
        assert {(answer.logged, answer.propensity) for answer in answers} == {(False, 1.0)}
        assert state == "unavailable"
        wait_until(lambda: select().logged, "the log to be written again")
        ack = client.report_outcome("action.authorise", first.decision_id, "authorised", 0.0)
        assert not ack.duplicate, "a refused outcome was not recorded"
        _check(server, acknowledged)


@pytest.mark.fault_case(74)
@pytest.mark.usefixtures("registry")
def test_an_fdatasync_of_two_seconds_delays_no_answer(tmp_path: Path) -> None:
    components.require("strace")
    acknowledged: set[str] = set()
    with (
        start_server(tmp_path, settings(SCORE + _action("written"))) as server,
        Client(server.address, timeout=30) as client,
    ):

        def slowest(count: int) -> float:
            times = []
            for _ in range(count):
                began = time.monotonic()
                action = client.select_action("action.authorise", CONTEXT)
                times.append(time.monotonic() - began)
                assert action.logged
                acknowledged.add(action.decision_id)
            return sorted(times)[int(count * 0.99)]

        slowest(20)
        with injected(server.process.pid, [SYNCER], "fdatasync:delay_exit=2s"):
            # The first fdatasync is still running when the second answer is sent. No answer waits for it.
            assert slowest(200) < 1.0
            wait_until(
                lambda: _metric(server, "scorer_log_unsynced_bytes") > 0, "bytes to wait for fdatasync"
            )
        _check(server, acknowledged)


@pytest.mark.fault_case(74)
@pytest.mark.usefixtures("registry")
def test_bytes_that_wait_for_fdatasync_are_bounded_and_exploration_stops_there(tmp_path: Path) -> None:
    components.require("strace")
    acknowledged: set[str] = set()
    with (
        start_server(tmp_path, settings(SCORE + _action("written"), log="unsynced_mb = 1")) as server,
        Client(server.address, timeout=30) as client,
    ):
        with injected(server.process.pid, [SYNCER], "fdatasync:delay_enter=3600s"):

            def refused() -> bool:
                action = client.select_action("action.authorise", CONTEXT)
                if action.logged:
                    acknowledged.add(action.decision_id)
                    return False
                assert action.propensity == 1.0 and action.served.fallback_reason == "log_unavailable"
                return True

            # A record has about 300 bytes, so that far fewer records than these fill 1 MB.
            assert any(refused() for _ in range(20_000)), "the bytes that wait for fdatasync are not bounded"
            assert _metric(server, "scorer_log_unsynced_bytes") <= 1 << 20
        wait_until(lambda: not refused(), "the log to be written again")
        _check(server, acknowledged)
