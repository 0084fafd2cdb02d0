"""Tests of SQLite on a network file system, which is detected and never gets a write-ahead log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes import fake_bundle, fake_verify

from scorer import durable
from scorer.errors import RegistryUnavailableError
from scorer.registry import Registry
from scorer.registry import database as registry_database
from scorer.release import store as platform_store
from scorer.release.errors import PlatformError
from scorer.release.store import Store

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:5 / /proc rw - proc proc rw
40 22 0:44 / /srv/registry rw,relatime shared:9 - nfs4 nas:/export rw,vers=4.2
41 40 0:45 / /srv/registry/local rw - tmpfs tmpfs rw
42 22 0:46 / /mnt/with\040space rw - fuse.glusterfs gl:/v rw
43 22 0:47 / /over rw - ext4 /dev/vdb rw
44 22 0:48 / /over rw - cifs //nas/x rw
not a line
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/srv", "ext4"),
        ("/srv/registry", "nfs4"),
        ("/srv/registry/a/b", "nfs4"),
        ("/srv/registry-two", "ext4"),
        ("/srv/registry/local/c", "tmpfs"),
        ("/mnt/with space/d", "fuse.glusterfs"),
        ("/over/e", "cifs"),
    ],
)
def test_the_innermost_mount_is_used(path: str, kind: str) -> None:
    assert durable.filesystem_of(Path(path), MOUNTS) == kind


def test_a_local_disk_is_not_a_network_file_system(tmp_path: Path) -> None:
    assert durable.network_filesystem(tmp_path) is None


def _nfs(_: Path) -> str | None:
    return "nfs4"


def test_the_platform_refuses_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform_store, "network_filesystem", _nfs)
    with pytest.raises(PlatformError, match=r"network file system \(nfs4\).*local disk, or use PostgreSQL"):
        Store(f"sqlite:///{tmp_path}/platform.sqlite")


@pytest.fixture
def bundle(tmp_path: Path) -> Callable[[str], Path]:
    def make(content: str) -> Path:
        directory = tmp_path / f"bundle-{content}"
        fake_bundle(directory, content=content)
        return directory

    return make


def test_the_registry_uses_a_rollback_journal_on_a_network_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Callable[[str], Path]
) -> None:
    before = Registry(tmp_path / "registry", verify=fake_verify)
    first = before.push(bundle("1"))
    before.alias("fraud-checkout", "live", first)
    before.close()
    file = tmp_path / "registry" / registry_database.FILE
    assert _mode(file) == "wal"

    monkeypatch.setattr(registry_database, "network_filesystem", _nfs)
    registry = Registry(tmp_path / "registry", verify=fake_verify)
    assert (
        registry.resolve("fraud-checkout@live").digest == first
    )  # a file of an older version is read unchanged
    second = registry.push(bundle("2"))
    registry.alias("fraud-checkout", "live", second)
    assert _mode(file) == "delete"
    assert registry.resolve("fraud-checkout@live").digest == second
    registry.close()
    assert not list(file.parent.glob("*-wal")) and not list(file.parent.glob("*-shm"))


def test_a_write_ahead_log_on_a_network_file_system_is_an_error_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bundle: Callable[[str], Path]
) -> None:
    writer = Registry(tmp_path / "registry", verify=fake_verify)
    digest = writer.push(bundle("1"))
    held = sqlite3.connect(tmp_path / "registry" / registry_database.FILE)
    held.execute("SELECT count(*) FROM bundles").fetchall()
    writer.alias(
        "fraud-checkout", "live", digest
    )  # is in the write-ahead log, because the open connection `held` prevents a checkpoint
    monkeypatch.setattr(registry_database, "network_filesystem", _nfs)
    other = Registry(tmp_path / "registry", verify=fake_verify)
    with pytest.raises(RegistryUnavailableError, match="stop whatever writes it"):
        other.resolve("fraud-checkout@live")
    with pytest.raises(RegistryUnavailableError, match=r"network file system|locked by another process"):
        other.alias("fraud-checkout", "live", digest)
    held.close()
    other.close()
    writer.close()


def _mode(file: Path) -> str:
    connection = sqlite3.connect(file)
    try:
        return str(connection.execute("PRAGMA journal_mode").fetchone()[0])
    finally:
        connection.close()
