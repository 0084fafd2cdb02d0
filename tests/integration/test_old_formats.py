"""What every released version left on disk is read: segments, bundles, a registry and a platform's database.

`scripts/gen_release_fixture.py` makes the fixture of a release.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from servers import SCORE, scorer, settings, start_server
from sqlalchemy import select

from scorer.client import Client
from scorer.log import LogReader
from scorer.registry import Registry
from scorer.release.store import Store, tables

RELEASES = sorted((Path(__file__).parents[1] / "fixtures" / "releases").glob("*.tar.xz"))
CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}

every_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


@pytest.fixture
def directory(release: Path, tmp_path: Path) -> Path:
    """A directory with the files of the release."""
    with tarfile.open(release) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def test_each_release_has_a_fixture() -> None:
    assert RELEASES, "run scripts/gen_release_fixture.py"


@every_release
def test_a_log_of_a_killed_server_is_read_continued_and_verified(directory: Path) -> None:
    def decisions() -> list[str]:
        reader = LogReader(directory / "decisions")
        ids = [record.decision.decision_id for _, record in reader.records() if record.HasField("decision")]
        assert not [finding for finding in reader.findings if finding.severity == "error"]
        return ids

    assert decisions() == ["d0", "d1", "d2"]
    text = settings(SCORE + 'durability = "written"\n')
    with start_server(directory, text) as server, Client(server.address, timeout=30) as client:
        assert client.score("fraud.checkout", CONTEXT, request_id="new").logged
        # The outcome index is rebuilt from the old records.
        assert client.report_outcome("fraud.checkout", "d0", "fraud", 1.0).duplicate
        assert client.report_outcome("fraud.checkout", "d1", "fraud", 0.0).decision_known
        assert server.stop() == 0, server.transcript()
    assert decisions() == ["d0", "d1", "d2", "new"]
    verified = scorer("log", "verify", "--log", "decisions", "--bundles", "registry/bundles", cwd=directory)
    assert verified.returncode == 0, verified.stdout + verified.stderr


@every_release
def test_a_registry_of_the_release_keeps_its_bundle_alias_and_history(directory: Path) -> None:
    registry = Registry(directory / "registry")
    digest = registry.resolve("fraud-checkout@live").digest
    assert [change.digest for change in registry.history()] == [digest]
    assert registry.push(registry.resolve(digest).path) == digest, "the bundle passes every current check"


@every_release
def test_a_platform_database_of_the_release_is_migrated(directory: Path) -> None:
    store = Store(f"sqlite:///{directory}/platform.sqlite")
    with store.read() as connection:
        assert connection.execute(select(tables.projects.c.name)).scalars().all() == ["checkout"]
    store.close()
