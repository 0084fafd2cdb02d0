"""Tests of the learning schedule in a server: a job starts at its time and ends with the server."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from servers import settings, start_server

from scorer.registry import Registry

LEARNING = '[learning]\nworkspace = "learning"\nconfig = "learn.toml"\n'


def test_a_due_job_runs_beside_the_server(tmp_path: Path, registry: Registry) -> None:
    # The generation was due a minute ago, when no server was running.
    now = datetime.now(UTC)
    due = now - timedelta(minutes=1)
    cron = f"{due.minute} {due.hour} * * *"
    (tmp_path / "learn.toml").write_text(f'[schedule]\njobs = {{ generation = "{cron}" }}\n')
    (tmp_path / "learning").mkdir()
    earlier = {"generation": {"due": (now - timedelta(days=1)).isoformat()}}
    (tmp_path / "learning/schedule.json").write_text(json.dumps(earlier))
    with start_server(tmp_path, settings() + LEARNING) as server:
        assert server.event("learning_scheduled")["jobs"] == {"generation": cron}
        server.event("learning_begins", job="generation")
        # The job runs at low priority, so every other process of the machine runs first.
        ended = server.event("learning_ended", seconds=100)
        # The log has no decision yet. The step reports this, and the server continues to serve.
        assert ended["code"] == 1
        assert ended["says"].startswith("error: ")
        assert server.status()["state"] == "SERVING"
        assert server.stop() == 0
        assert not server.noise
    state = json.loads((tmp_path / "learning/schedule.json").read_text())
    assert state["generation"]["state"] == "failed"


def test_bad_learning_settings_end_the_start(tmp_path: Path, registry: Registry) -> None:
    (tmp_path / "learn.toml").write_text("[schedule]\nkeep = 1\n")
    with start_server(tmp_path, settings() + LEARNING, ready=False) as server:
        assert server.wait() == 64
        assert "learn.toml:2" in server.event("start_failed")["error"]
