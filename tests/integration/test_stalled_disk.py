"""Tests of a disk that stops responding under the decision log of a server, which still answers."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import components
import pytest
from servers import SCORE, RunningServer, scorer, settings, start_server
from stalled_disk import stalled_writes
from waiting import wait_until

from scorer.client import Client, SelectedAction
from scorer.registry import Registry

CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}
# The mode is `enforce`, because only the SLA ends the wait for a record that the disk does not accept.
ACTION = (
    '[checkpoints."action.authorise"]\nkind = "action"\nalias = "action-authorise@live"\n'
    'p99_ms = 1000.0\nmode = "enforce"\n'
)
# The only thread of the log that writes; see `Log::open`.
WRITER = "scorer-log-write"


def samples(server: RunningServer) -> dict[str, float]:
    """Return the samples of the metrics page, by name and labels."""
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=30) as page:
        lines = [
            line.rsplit(" ", 1) for line in page.read().decode().splitlines() if not line.startswith("#")
        ]
    return {name: float(value) for name, value in lines}


@pytest.mark.fault_case(74)
def test_a_stalled_disk_stops_only_exploration(tmp_path: Path, registry: Registry) -> None:
    components.require("strace")
    with (
        start_server(tmp_path, settings(SCORE + ACTION)) as server,
        Client(server.address, timeout=30) as client,
    ):

        def select(request_id: str | None = None) -> SelectedAction:
            return client.select_action("action.authorise", CONTEXT, request_id=request_id)

        assert select("before").logged
        with stalled_writes(server.process.pid, WRITER):
            # No write starts before the block ends, so that no answer below waited for a write.
            chosen = [select(f"stalled-{number}") for number in range(20)]
            scored = [client.score("fraud.checkout", CONTEXT) for _ in range(200)]
            during = samples(server)
        assert {(action.logged, action.propensity) for action in chosen} == {(False, 1.0)}
        assert {action.served.fallback_reason for action in chosen} == {"log_unavailable"}
        assert {result.served.fallback_reason for result in scored} == {""}
        assert during["scorer_unlogged_decisions_total"] == 20
        fallbacks = (
            'scorer_fallbacks_total{checkpoint="action.authorise",source="greedy",reason="log_unavailable"}'
        )
        assert during[fallbacks] == 20
        assert during['scorer_sla_requests_total{checkpoint="action.authorise"}'] == 21
        for reason in ("late", "shed", "failed"):
            assert during[f'scorer_sla_misses_total{{checkpoint="action.authorise",reason="{reason}"}}'] == 0

        wait_until(lambda: select().logged, "the log to be written again")
        explored = {select().action for _ in range(200)}
        assert len(explored) > 1, "exploration resumes"
        assert server.stop() == 0, server.transcript()
    verified = scorer(
        "log", "verify", "--log", "decisions", "--bundles", "registry/bundles", cwd=server.directory
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
