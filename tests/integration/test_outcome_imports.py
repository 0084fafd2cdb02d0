"""Test of the import of outcomes with real servers: fan-out, a kill in the middle, corrections, curves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bundles import FEATURES, rows
from servers import SCORE, RunningServer, environment, settings, start_server
from servers import scorer_in_process as scorer
from waiting import wait_until

from scorer.client import Client
from scorer.log import scan
from scorer.log.proof import KNOWN, UNPROVEN
from scorer.registry import Registry

POINT = "fraud.checkout"
EACH = 700


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]
) -> Iterator[list[RunningServer]]:
    """Two servers, each with decisions `<place>-<number>`."""
    with ExitStack() as stack:
        found = []
        for place in range(2):
            directory = tmp_path_factory.mktemp(f"server-{place}")
            registry = Registry(directory / "registry")
            registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
            server = stack.enter_context(start_server(directory, settings(SCORE)))
            with Client(server.address) as client:
                for number, row in enumerate(rows(EACH, seed=place).tolist()):
                    named = dict(zip(FEATURES, row, strict=True))
                    client.score(POINT, named, request_id=f"{place}-{number}")
            found.append(server)
        yield found


def logs(servers: list[RunningServer]) -> list[str]:
    return [str(server.directory / "decisions") for server in servers]


def outcomes(server: RunningServer, kind: str) -> list[Any]:
    """Return the outcomes of a kind in a server's log."""
    found = scan(server.directory / "decisions", kinds={"outcome"})
    return [one.record for one in found if one.record.kind == kind]


def write(path: Path, kind: str, value: int = 1, *, count: int = EACH, more: str = "") -> Path:
    names = [f"{place}-{number}" for number in range(count) for place in range(2)]
    lines = [f"{name},{kind},{value}" for name in names]
    path.write_text("decision_id,kind,value\n" + "\n".join(lines) + f"\n{more}")
    return path


def options(servers: list[RunningServer], *, with_logs: bool = True) -> list[str]:
    found = ["--checkpoint", POINT]
    for server, log in zip(servers, logs(servers), strict=True):
        found += ["--server", server.address, *(["--log", log] if with_logs else [])]
    return found


def test_an_import_that_is_killed_continues_and_every_outcome_is_recorded_once(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    file = write(tmp_path / "killed.csv", "fraud")
    command = ["outcomes", "import", str(file), *options(servers), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "scorer.cli", *command, "--concurrency", "1"],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # The first chunk of 512 rows is committed, and the second one is under way.
    wait_until(
        lambda: sum(len(outcomes(server, "fraud")) for server in servers) > 600 or process.poll() is not None,
        "more than one chunk of outcomes",
        seconds=120,
    )
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL, "the import ended before it was killed"
    assert sum(len(outcomes(server, "fraud")) for server in servers) < 2 * EACH
    done = scorer(*command)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["continued_after"] >= 512 and sum(found["results"].values()) == 2 * EACH
    assert set(found["results"]) <= {"recorded", "already recorded", "skipped"}
    for place, server in enumerate(servers):
        recorded = outcomes(server, "fraud")
        assert sorted(one.decision_id for one in recorded) == sorted(f"{place}-{n}" for n in range(EACH))
        assert {(one.value, one.revision, one.proof) for one in recorded} == {(1.0, 0, KNOWN)}
    # The same command again has nothing left to do.
    again = json.loads(scorer(*command).stdout)
    assert again["continued_after"] == 2 * EACH and again["skipped"] == 2 * EACH
    assert sum(len(outcomes(server, "fraud")) for server in servers) == 2 * EACH


def test_corrections_become_the_next_revision_and_a_contradiction_is_found(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    first = write(tmp_path / "first.csv", "review", count=30)
    assert scorer("outcomes", "import", str(first), *options(servers)).returncode == 0
    # Ten of sixty rows change; the rest are as they were.
    changed = tmp_path / "changed.jsonl"
    with changed.open("w") as lines:
        for number in range(30):
            for place in range(2):
                name, value = f"{place}-{number}", 0 if number < 5 else 1
                lines.write(json.dumps({"decision_id": name, "kind": "review", "value": value}) + "\n")
    command = ["outcomes", "import", str(changed), *options(servers), "--json"]
    refused = scorer(*command)
    assert refused.returncode == 1 and "10 rows are rejected" in refused.stderr
    done = json.loads(scorer(*command, "--revise").stdout)
    assert done["results"] == {"recorded": 10, "skipped": 50}
    for place, server in enumerate(servers):
        own = [(one.decision_id, one.value) for one in outcomes(server, "review") if one.revision == 1]
        # Several reports are under way at a time, so that their order is not that of the file.
        assert sorted(own) == [(f"{place}-{number}", 0.0) for number in range(5)]


def test_without_logs_each_report_reaches_the_server_that_knows_the_decision(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    file = write(tmp_path / "spread.csv", "chargeback", count=20, more="unknown,chargeback,1\n")
    done = json.loads(
        scorer("outcomes", "import", str(file), *options(servers, with_logs=False), "--json").stdout
    )
    assert done["results"] == {"recorded": 40, "unproven": 1}
    for place, server in enumerate(servers):
        proofs = {one.decision_id: one.proof for one in outcomes(server, "chargeback")}
        assert all(proofs[f"{place}-{number}"] == KNOWN for number in range(20))
        assert proofs["unknown"] == UNPROVEN


def test_a_server_that_is_away_stops_the_import_with_what_is_done(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    file = write(tmp_path / "away.csv", "issuer_report", count=5)
    away = ["--server", "127.0.0.1:1", "--checkpoint", POINT, "--patience", "0"]
    stopped = scorer("outcomes", "import", str(file), *away)
    assert stopped.returncode == 1 and "0 of 10 rows are done" in stopped.stderr
    # Other options are another import.
    other = scorer("outcomes", "import", str(file), *options(servers), "--value", "0")
    assert other.returncode == 1 and "is that of another import: value was not set and is 0" in other.stderr
    assert scorer("outcomes", "import", str(file), *options(servers)).returncode == 0


def test_the_maturity_of_what_was_imported_is_estimated_from_both_logs(
    tmp_path: Path, servers: list[RunningServer]
) -> None:
    file = write(tmp_path / "late.csv", "late", count=60)
    assert scorer("outcomes", "import", str(file), *options(servers)).returncode == 0
    given = [part for log in logs(servers) for part in ("--log", log)]
    options_of_curve = ["--checkpoint", POINT, "--kind", "late", "--horizon-days", "1e-5", "--json"]
    done = scorer("outcomes", "maturity", *given, *options_of_curve)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["window"]["decisions"] == 2 * EACH and found["window"]["first_ms"] <= time.time() * 1000
    assert len(found["window"]["logs"]) == 2
