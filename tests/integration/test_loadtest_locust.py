"""Tests of the Locust users without a browser, and of their cases."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from scorer.client.testing import FakeServer, Fault
from scorer.loadtest.settings import MethodName, case_file, make_settings

# The package is searched and not imported, because an import replaces the threads of this process by
# greenlets.
needs_locust = pytest.mark.skipif(
    importlib.util.find_spec("locust") is None, reason="locust is not installed"
)
LOADTESTS = Path(__file__).parents[2] / "loadtests"


def locust(target, *arguments):
    command = [sys.executable, "-m", "locust", "-f", str(LOADTESTS / "locustfile.py"), "--host", target]
    options = ["--headless", "--json", "-u", "10", "-r", "10", "-t", "2s", *arguments]
    done = subprocess.run(command + options, capture_output=True, text=True, timeout=100, check=False)
    stats = {entry["name"]: entry for entry in json.loads(done.stdout)}
    return done.returncode, stats, done.stderr


@needs_locust
def test_both_kinds_of_shoppers_are_served():
    with FakeServer() as server:
        code, stats, log = locust(server.target)
        assert code == 0, log
        assert stats.keys() == {"Score", "SelectAction", "ReportOutcome"}, log
        assert all(entry["num_failures"] == 0 for entry in stats.values())
        # Locust's counts equal those of the server, except for requests in flight at the end.
        for name, entry in stats.items():
            assert 0 < entry["num_requests"] <= len(server.requests(name)) <= entry["num_requests"] + 10
        reported = {request.decision_id for request in server.requests("ReportOutcome")}
        assert reported <= {request.request_id for request in server.requests("SelectAction")}
        # All users share one client, so that the description is requested once.
        assert len(server.requests("Describe")) == 1


@needs_locust
def test_failed_requests_are_reported_as_failures_to_locust():
    with FakeServer() as server:
        server.script("Score", *[Fault("INVALID_ARGUMENT", "no")] * 5)
        code, stats, _ = locust(server.target)
    assert code == 1
    assert stats["Score"]["num_failures"] == 5


@pytest.mark.parametrize(
    "folder",
    sorted(file.parent for file in (LOADTESTS / "cases").rglob("case.toml")),
    ids=lambda folder: str(folder.relative_to(LOADTESTS / "cases")),
)
def test_every_load_case_can_be_read(folder):
    case = case_file(folder)
    # Some cases have no rate, because the user gives it: it is the capacity of the server.
    settings = make_settings({"rate": 100.0} | case.load | {"target": "localhost:1"})
    assert case.goal
    assert set(settings.methods) <= set(MethodName)
    assert f"`{folder.name}`" in (LOADTESTS / "README.md").read_text()
