"""A full disk under the decision log, the registry and the platform's database.

Nothing unlogged is explored, nothing acknowledged is lost, and service resumes when there is space again. The
disk is a small file system that is really full (ENOSPC). The log is also tested under a limit on the size of
files (EFBIG), which needs no mount.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import components
import pytest
from bundles import ACTIONS, tiny_score_bundle
from servers import RunningServer, scorer, settings, start_server
from small_disk import SmallDisk, small_disk
from sqlalchemy import insert, select
from waiting import wait_until

from scorer.client import Client, UnavailableError
from scorer.errors import RegistryUnavailableError
from scorer.registry import Registry
from scorer.release.errors import PlatformError
from scorer.release.store import Store
from scorer.release.store import tables as t

NOW = datetime(2026, 3, 2, tzinfo=UTC)
CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    components.require("a mountable tmpfs")
    with small_disk(tmp_path / "disk") as mounted:
        yield mounted


@dataclass(frozen=True)
class Logging:
    """A server, and functions that fill and free the disk of its log."""

    server: RunningServer
    log: Path
    fill: Callable[[], None]
    free: Callable[[], None]


@pytest.fixture(params=["no space left", "files may not grow"])
def logging_server(request: pytest.FixtureRequest, tmp_path: Path, registry: Registry) -> Iterator[Logging]:
    if request.param == "no space left":
        disk: SmallDisk = request.getfixturevalue("disk")
        log = disk.path / "decisions"
        with start_server(tmp_path, settings(log=f'dir = "{log}"')) as running:
            yield Logging(running, log, disk.fill, disk.free)
        return
    with start_server(tmp_path) as running:

        def limit(size: int | None) -> None:
            pid = running.process.pid
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

        yield Logging(running, tmp_path / "decisions", lambda: limit(1), lambda: limit(None))


@pytest.mark.fault_case(73)
def test_exploration_stops_while_the_log_is_full_and_resumes_afterwards(logging_server: Logging) -> None:
    server = logging_server.server
    with Client(server.address, timeout=10) as client:
        before = client.select_action("action.authorise", CONTEXT, request_id="before")
        assert before.logged
        assert before.propensity < 1
        assert not client.report_outcome("action.authorise", "before", "authorised", 1.0).duplicate

        logging_server.fill()

        def refused() -> bool:
            return not client.select_action("action.authorise", CONTEXT).logged

        # Records that fit into the last allocated block of the file are still logged.
        wait_until(refused, "the log to be full")
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
        # Score requests continue to be answered. Their durability class may lose records, which are counted.
        assert client.score("fraud.checkout", CONTEXT).decision in {"approve", "review", "decline"}
        status = server.status()
        assert status["log"]["state"] == "unavailable"

        logging_server.free()

        def logged_again() -> bool:
            return client.select_action("action.authorise", CONTEXT).logged

        wait_until(logged_again, "the log to be written again")
        # An outcome that was refused while the disk was full left no trace: it is not a duplicate now.
        ack = client.report_outcome("action.authorise", "before", "chargeback", 1.0)
        assert not ack.duplicate
        explored = {client.select_action("action.authorise", CONTEXT).action for _ in range(200)}
        assert len(explored) > 1, "exploration resumes"
        assert explored <= set(ACTIONS)
    assert server.stop() == 0, server.transcript()
    verified = scorer(
        "log",
        "verify",
        "--log",
        str(logging_server.log),
        "--bundles",
        "registry/bundles",
        cwd=server.directory,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_registry_without_space_refuses_changes_and_keeps_its_content(
    disk: SmallDisk, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    tiny_score_bundle(first, variant=1)
    tiny_score_bundle(second, variant=2)
    registry = Registry(disk.path / "registry")
    live = registry.push(first)
    registry.alias("fraud-checkout", "live", live)
    disk.fill()
    with pytest.raises((RegistryUnavailableError, OSError), match=r"[Nn]o space left"):
        registry.push(second)
    with pytest.raises(RegistryUnavailableError, match=r"no space left .*; free some and try again"):
        for number in range(10_000):
            # A write that fits into allocated pages of the database is accepted and must then be kept.
            registry.alias("fraud-checkout", f"alias-{number}", live)
    accepted = [f"alias-{known}" for known in range(number)]
    # Opening the file needs space for auxiliary files. Without space, readers get the same error.
    with pytest.raises(RegistryUnavailableError, match="no space left"):
        registry.resolve("fraud-checkout@live")
    disk.free()
    assert registry.resolve("fraud-checkout@live").digest == live
    registry.close()
    again = Registry(disk.path / "registry")
    assert {again.resolve(f"fraud-checkout@{name}").digest for name in ["live", *accepted]} == {live}
    pushed = again.push(second)
    again.alias("fraud-checkout", "live", pushed)
    assert again.resolve("fraud-checkout@live").digest == pushed
    again.close()


def test_a_platform_database_without_space_refuses_writes_and_keeps_its_rows(disk: SmallDisk) -> None:
    store = Store(f"sqlite:///{disk.path}/platform.db")

    def write(number: int) -> None:
        with store.write() as connection:
            row = {"name": f"project-{number}", "title": "t" * 200, "checkpoints": [], "created_at": NOW}
            limits = {"open_changes": 1, "slot_minutes_per_week": 60, "bundles": 1}
            connection.execute(insert(t.projects).values(row | limits))

    def names() -> set[str]:
        with store.read() as connection:
            return set(connection.execute(select(t.projects.c.name)).scalars())

    write(0)
    disk.fill()
    written = {"project-0"}
    with pytest.raises(PlatformError, match="free space on its disk"):
        for number in range(1, 100_000):
            write(number)
            written.add(f"project-{number}")
    assert names() == written, (
        "a refused write must leave no row, and an accepted write must leave all of its rows"
    )
    disk.free()
    write(100_000)
    assert names() == written | {"project-100000"}
    store.close()
    again = Store(f"sqlite:///{disk.path}/platform.db")
    with again.read() as connection:
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    again.close()
