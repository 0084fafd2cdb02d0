"""Tests of a registry on a read-only volume, as the servers of a cluster mount it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from fakes import fake_bundle, fake_verify

from scorer.registry import Registry
from scorer.registry.database import Database


def test_a_change_on_another_machine_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publisher = Registry(tmp_path / "registry", verify=fake_verify)
    first = publisher.push(_bundle(tmp_path, "1"))
    second = publisher.push(_bundle(tmp_path, "2"))
    publisher.alias("fraud-checkout", "live", first)

    # The effect of opening the file on such a mount: without locks and shared memory, changes are not
    # detected.
    def immutable(database: Database) -> sqlite3.Connection:
        return database._connect("immutable=1")

    monkeypatch.setattr(Database, "open_reader", immutable)
    scorer = Registry(tmp_path / "registry", verify=fake_verify)
    before = scorer.version()
    assert scorer.version() == before
    assert scorer.resolve("fraud-checkout@live").digest == first

    monkeypatch.undo()
    publisher.alias("fraud-checkout", "live", second)
    monkeypatch.setattr(Database, "open_reader", immutable)

    assert scorer.version() != before
    assert scorer.resolve("fraud-checkout@live").digest == second
    scorer.close()


def _bundle(tmp_path: Path, content: str) -> Path:
    directory = tmp_path / f"bundle-{content}"
    fake_bundle(directory, content=content)
    return directory
