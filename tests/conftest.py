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


TESTS = Path(__file__).parent
LONGEST = (
    "property/test_release_crashes.py",
    "unit/test_release_builds.py",
    "integration/test_demo.py",
    "integration/test_bench_smoke.py",
    "integration/test_kills.py",
    "integration/test_training_memory.py",
    "browser/test_journey.py",
    "integration/test_training_engines.py",
    "browser/test_pages.py",
    "contract/test_platform_api_fuzz.py",
    "browser/test_onboarding.py",
    "property/test_overlay_incremental.py",
    "integration/test_balanced.py",
    "property/test_join_source.py",
    "integration/test_ship_kill9.py",
    "unit/test_bench_overlay.py",
    "unit/test_release_segments.py",
    "integration/test_batch_engines.py",
    "integration/test_fleet_load.py",
    "unit/test_batch_runs.py",
    "property/test_ship_kills.py",
    "contract/test_deploy_prometheus.py",
    "contract/test_deploy_entrypoint.py",
    "integration/test_one_learner.py",
    "integration/test_airflow.py",
    "integration/test_moratorium.py",
    "unit/test_metrics_over_time.py",
    "unit/test_loop_worlds.py",
)
"""The files that take longest. They run first, so that none of them runs when other processes have ended."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first, and leave the order otherwise."""
    if unknown := [name for name in LONGEST if not (TESTS / name).is_file()]:
        raise pytest.UsageError(f"tests/conftest.py: LONGEST names files that do not exist: {unknown}")
    places = {TESTS / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Report the missing components and the number of skipped tests, once for the whole run."""
    for line in components.summary():
        terminalreporter.write_line(line)


# --- pytest-xdist: sum the missing components of all processes; run a test that is marked `alone` alone ---


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the missing components to the controller; remove the locks when every process has ended."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["absent"] = dict(components.absent)
    elif (distributed := session.config.pluginmanager.get_plugin("dsession")) is not None:
        run = distributed.nodemanager.testrunuid
        shutil.rmtree(machine_locks.directory(run), ignore_errors=True)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add the missing components of one process to the summary of the run."""
    components.absent.update(getattr(node, "workeroutput", {}).get("absent", {}))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Hold the machine's lock during a test. The time limit of the test starts when the lock is held."""
    worker = getattr(item.config, "workerinput", None)
    if worker is None:
        return (yield)
    alone = item.get_closest_marker("alone") is not None
    with machine_locks.holding(machine_locks.directory(worker["testrunuid"]), alone=alone):
        return (yield)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's SCORER_ variables, so that they do not change the results of tests."""
    for name in [name for name in os.environ if name.startswith("SCORER_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def built_bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small real bundles, built once per process: score-1, score-2, score-3, action-1, action-2."""
    from bundles import tiny_action_bundle, tiny_score_bundle

    directory = tmp_path_factory.mktemp("bundles")
    for variant in (1, 2, 3):
        tiny_score_bundle(directory / f"score-{variant}", variant=variant)
    for variant in (1, 2):
        tiny_action_bundle(directory / f"action-{variant}", variant=variant)
    return {path.name: path for path in directory.iterdir()}


@pytest.fixture
def registry(tmp_path: Path, built_bundles: dict[str, Path]) -> Registry:
    """A registry in ``tmp_path/registry``. The bundles score-1 and action-1 are live; score-2 is stored."""
    registry = Registry(tmp_path / "registry")
    registry.alias("fraud-checkout", "live", registry.push(built_bundles["score-1"]))
    registry.alias("action-authorise", "live", registry.push(built_bundles["action-1"]))
    registry.push(built_bundles["score-2"])
    return registry


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Postgres]:
    """A real PostgreSQL server, started for the first test that uses it."""
    from postgres import Postgres

    components.require("PostgreSQL")
    with Postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without tables. A test that uses it runs on both engines."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/platform.db"
        return
    server: Postgres = request.getfixturevalue("postgresql")
    name = server.database()
    yield server.url(name)
    server.drop(name)


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated database file, which `database_url` copies because a migration takes long."""
    from scorer.release.store import Store

    path = tmp_path_factory.mktemp("migrated") / "platform.db"
    Store(f"sqlite:///{path}").close()
    return path


@pytest.fixture(scope="session")
def migrated_postgresql(postgresql: Postgres) -> str:
    """The name of a migrated database on the PostgreSQL server, which is the template of new databases."""
    from scorer.release.store import Store

    name = postgresql.database()
    Store(postgresql.url(name)).close()
    return name


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a migrated database without rows. A test that uses it runs on both engines."""
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
