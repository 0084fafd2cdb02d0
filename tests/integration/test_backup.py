"""Tests of backups of registry, log and platform under load, and of restoring them to new directories."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from servers import ACTION, SCORE, scorer, settings, start_server

from scorer.backup import Sources, Targets, back_up, create, restore
from scorer.client import Client
from scorer.errors import BackupError
from scorer.log import LogReader
from scorer.registry import Registry

CONTEXT = {"amount": 25.0, "hour": 13.0, "count_24h": 1.0, "distance": 2.0}


def _decisions(log: Path) -> set[str]:
    reader = LogReader(log)
    ids = {record.decision.decision_id for _, record in reader.records() if record.HasField("decision")}
    assert not [finding for finding in reader.findings if finding.severity == "error"]
    return ids


def _platform(directory: Path) -> tuple[Path, Path]:
    """Create a data directory, and a database in WAL mode with rows that are only in its log."""
    database, data = directory / "platform.sqlite", directory / "data"
    (data / "readouts").mkdir(parents=True)
    (data / "readouts" / "1.parquet").write_bytes(b"report")
    (data / "uploads").mkdir()
    (data / "uploads" / "half").write_bytes(b"under way")
    return database, data


def test_a_backup_contains_what_was_acknowledged_before_it(tmp_path: Path, registry: Registry) -> None:
    with (
        start_server(tmp_path, settings(SCORE + ACTION, log="segment_mb = 1")) as server,
        Client(server.address, timeout=30) as client,
    ):
        acknowledged: list[str] = []
        stop = threading.Event()

        def decide() -> None:
            while not stop.is_set():
                answer = client.select_action("action.authorise", CONTEXT)
                if answer.logged:
                    acknowledged.append(answer.decision_id)

        load = threading.Thread(target=decide)
        load.start()
        try:
            while len(acknowledged) < 300:
                stop.wait(0.01)
            before = set(acknowledged)
            done = scorer("backup", "saved", "--json", cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            again = scorer("backup", "saved", cwd=tmp_path)
            assert again.returncode == 1 and "exists already" in again.stderr
        finally:
            stop.set()
            load.join()
        assert server.stop() == 0, server.transcript()
    facts = json.loads(done.stdout)["parts"]
    assert facts["log"]["damage"] == [] and facts["registry"]["bundles"] >= 2

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.copy(tmp_path / "scorer.toml", elsewhere)
    restored = scorer("restore", str(tmp_path / "saved"), cwd=elsewhere)
    assert restored.returncode == 0, restored.stderr
    assert before <= _decisions(elsewhere / "decisions")
    copied = Registry(elsewhere / "registry")
    assert dict(copied.aliases()) == dict(registry.aliases())
    assert [change.digest for change in copied.history()] == [change.digest for change in registry.history()]
    # A server serves from the restored directories, and the log continues where the backup ended.
    with (
        start_server(elsewhere, settings(SCORE + ACTION)) as server,
        Client(server.address, timeout=30) as client,
    ):
        assert client.select_action("action.authorise", CONTEXT, request_id="after").logged
        assert server.stop() == 0, server.transcript()
    assert before | {"after"} <= _decisions(elsewhere / "decisions")
    verified = scorer("log", "verify", "--log", "decisions", "--bundles", "registry/bundles", cwd=elsewhere)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_signed_bundle_is_restored_with_its_signature(tmp_path: Path, registry: Registry) -> None:
    signed = next(iter(registry.list())).digest.removeprefix("sha256:")
    stored = Path("bundles") / signed / "signature.json"
    source = tmp_path / "registry"
    (source / stored).write_bytes(b"{}")
    back_up(Sources(registry=source), tmp_path / "saved")
    restore(tmp_path / "saved", Targets(registry=tmp_path / "restored"))
    restored = {
        path.relative_to(tmp_path / "restored") for path in tmp_path.glob("restored/bundles/*/signature.json")
    }
    assert restored == {stored}
    assert (tmp_path / "restored" / stored).read_bytes() == b"{}"


def test_a_platform_is_copied_in_the_state_of_one_commit(tmp_path: Path) -> None:
    database, data = _platform(tmp_path)
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE changes (id INTEGER PRIMARY KEY, state TEXT)")
        connection.execute("INSERT INTO changes VALUES (1, 'released')")
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO changes VALUES (2, 'not committed')")
        back_up(Sources(platform=(database, data)), tmp_path / "saved")
        connection.execute("ROLLBACK")
    target = tmp_path / "other" / "platform.sqlite", tmp_path / "other" / "data"
    restore(tmp_path / "saved", Targets(platform=target))
    with closing(sqlite3.connect(target[0])) as connection:
        assert connection.execute("SELECT * FROM changes").fetchall() == [(1, "released")]
    assert target[0].stat().st_mode & 0o777 == 0o600
    assert (target[1] / "readouts" / "1.parquet").read_bytes() == b"report"
    assert not (target[1] / "uploads").exists()


def test_a_bundle_that_is_pushed_during_the_copy_of_the_platform_is_in_the_backup(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, data = _platform(tmp_path)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (x)")
    bundle = registry.resolve(next(iter(registry.list())).digest).path
    assert bundle is not None
    source, copy_platform = Registry(tmp_path / "source"), create._platform

    def push_and_copy(database: Path, data: Path, target: Path) -> Mapping[str, Any]:
        # From now on the platform can refer to the bundle.
        source.push(bundle)
        return copy_platform(database, data, target)

    monkeypatch.setattr(create, "_platform", push_and_copy)
    back_up(Sources(registry=source.path, platform=(database, data)), tmp_path / "saved")
    copied = Registry(tmp_path / "saved" / "registry")
    assert [record.digest for record in copied.list()] == [record.digest for record in source.list()]


def test_an_altered_or_incomplete_backup_is_not_restored(tmp_path: Path) -> None:
    database, data = _platform(tmp_path)
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("CREATE TABLE t (x)")
    saved, target = tmp_path / "saved", Targets(platform=(tmp_path / "new.sqlite", tmp_path / "new-data"))
    back_up(Sources(platform=(database, data)), saved)
    for name, change, message in [
        ("platform/platform.sqlite", lambda content: content[:-1] + b"x", "is altered"),
        ("platform/data/readouts/1.parquet", lambda content: content[:-1], "is altered"),
        ("backup.json", lambda content: content[:-20], "make the backup again"),
        ("backup.json", lambda content: content.replace(b"data/readouts", b"../../../etc"), "lies outside"),
        ("backup.json", None, "no complete backup"),
    ]:
        copy = tmp_path / "copy"
        shutil.copytree(saved, copy)
        path = copy / name
        if change is None:
            path.unlink()
        else:
            path.write_bytes(change(path.read_bytes()))
        with pytest.raises(BackupError, match=message):
            restore(copy, target)
        assert not (tmp_path / "new.sqlite").exists() and not (tmp_path / "new-data").exists()
        shutil.rmtree(copy)
    with pytest.raises(BackupError, match="holds no log"):
        restore(saved, Targets(log=tmp_path / "log"))
    with pytest.raises(BackupError, match="exists already"):
        restore(saved, Targets(platform=(database, tmp_path / "new-data")))


def test_a_failed_backup_leaves_no_files(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    with pytest.raises(Exception, match="holds no segments"):
        back_up(Sources(log=tmp_path / "log"), tmp_path / "saved")
    with pytest.raises(BackupError, match="nothing to back up"):
        back_up(Sources(), tmp_path / "saved")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log"]
