"""Fixtures and settings shared by every test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import components
import machine_locks
import pytest

from scorer.registry import Registry

if TYPE_CHECKING:
    from postgres import Postgres

    from scorer.release.store import Store


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what was left out, once for the whole run."""
    for line in components.summary():
        terminalreporter.write_line(line)


# --- pytest-xdist: the processes' missing components are added up; a test marked `alone` runs alone ---


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand over what one process left out; remove the locks once every process has ended."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["absent"] = dict(components.absent)
    elif (distributed := session.config.pluginmanager.get_plugin("dsession")) is not None:
        run = distributed.nodemanager.testrunuid
        shutil.rmtree(machine_locks.directory(run), ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add what one process left out to the summary of the run."""
    components.absent.update(getattr(node, "workeroutput", {}).get("absent", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Hold the machine for a test; its time limit begins afterwards."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with machine_locks.holding(machine_locks.directory(worker["testrunuid"]), alone=alone):
        return (yield)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's own SCORER_ variables must not change what a test sees."""
    for name in [name for name in os.environ if name.startswith("SCORER_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def built_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny real bundles, built once: score-1, score-2, score-3, action-1, action-2."""
    from bundles import tiny_action_bundle, tiny_score_bundle

    directory = tmp_path_factory.mktemp("bundles")
    for variant in (1, 2, 3):
        tiny_score_bundle(directory / f"score-{variant}", variant=variant)
    for variant in (1, 2):
        tiny_action_bundle(directory / f"action-{variant}", variant=variant)
    return {path.name: path for path in directory.iterdir()}


@pytest.fixture
def registry(tmp_path: Path, built_bundles: dict[str, Path]) -> Registry:
    """A registry in ``tmp_path/registry`` where score-1 and action-1 are live, score-2 is stored."""
    made = Registry(tmp_path / "registry")
    made.alias("fraud-checkout", "live", made.push(built_bundles["score-1"]))
    made.alias("action-authorise", "live", made.push(built_bundles["action-1"]))
    made.push(built_bundles["score-2"])
    return made


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgres]:
    """A real PostgreSQL server, started with the first test that asks for it."""
    from postgres import Postgres

    components.require("PostgreSQL")
    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database without tables; whoever asks for it runs on both engines."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/platform.db"
        return
    server: Postgres = request.getfixturevalue("postgresql")
    name = server.database()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `database_url` copies: migrating takes longer than most tests."""
    from scorer.release.store import Store

    path = tmp_path_factory.mktemp("migrated") / "platform.db"
    Store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: Postgres) -> str:
    """The same on the server: the name of a database that new ones are copies of."""
    from scorer.release.store import Store

    name = postgresql.database()
    Store(postgresql.url(name)).close()
    return name


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A migrated database without rows; whoever asks for it runs on both engines."""
    if request.param == "sqlite":
        path = tmp_path / "platform.db"
        path.write_bytes(request.getfixturevalue("migrated_sqlite").read_bytes())
        yield f"sqlite:///{path}"
        return
    server: Postgres = request.getfixturevalue("postgresql")
    name = server.database(template=request.getfixturevalue("migrated_postgresql"))
    yield server.url(name)
    server.drop(name)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """An open `Store` on each engine."""
    from scorer.release.store import Store

    opened = Store(database_url)
    yield opened
    opened.close()
