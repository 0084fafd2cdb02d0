"""The statements over the registry's tables, and what their rows become."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from scorer.registry.base import AliasChange, BundleRecord
from scorer.registry.reference import AliasReference

_CURRENT = """
SELECT name, alias, digest FROM alias_history
WHERE sequence IN (SELECT max(sequence) FROM alias_history GROUP BY name, alias)
"""
_RECORDS = """
SELECT digest, name, kind, created_at, pushed_at_ms, pushed_by, bytes FROM bundles
WHERE (:name IS NULL OR name = :name) AND (:digest IS NULL OR digest = :digest)
ORDER BY pushed_at_ms DESC, rowid DESC
"""
_HISTORY = """
SELECT sequence, name, alias, digest, previous, action, at_ms, by, reason FROM alias_history
WHERE (:name IS NULL OR (name = :name AND alias = :alias))
  AND (:digest IS NULL OR (name, alias) IN (SELECT name, alias FROM alias_history WHERE digest = :digest))
ORDER BY sequence
"""
_ADD_BUNDLE = """
INSERT INTO bundles (digest, name, kind, created_at, pushed_at_ms, pushed_by, bytes)
VALUES (:digest, :name, :kind, :created_at, :pushed_at_ms, :pushed_by, :bytes)
ON CONFLICT (digest) DO NOTHING
"""
_ADD_CHANGE = """
INSERT INTO alias_history (name, alias, digest, previous, action, at_ms, by, reason)
VALUES (:name, :alias, :digest, :previous, :action, :at_ms, :by, :reason)
RETURNING sequence, name, alias, digest, previous, action, at_ms, by, reason
"""


def current(connection: sqlite3.Connection) -> Mapping[str, str]:
    """Where each ``name@alias`` points now, as hex digests."""
    return {f"{name}@{alias}": digest for name, alias, digest in connection.execute(_CURRENT)}


def changed_at_ms(connection: sqlite3.Connection, alias: AliasReference) -> int | None:
    """When an alias was last moved."""
    row = connection.execute(
        "SELECT at_ms FROM alias_history WHERE name = ? AND alias = ? ORDER BY sequence DESC LIMIT 1",
        (alias.name, alias.alias),
    ).fetchone()
    return None if row is None else int(row[0])


def digests(connection: sqlite3.Connection) -> set[str]:
    """The hex digest of every bundle."""
    return {row[0] for row in connection.execute("SELECT digest FROM bundles")}


def records(
    connection: sqlite3.Connection, *, name: str | None = None, digest: str | None = None
) -> Sequence[BundleRecord]:
    """The bundles (of one name, or the one with a digest), newest push first."""
    pointing: dict[str, list[str]] = {}
    for alias, target in current(connection).items():
        pointing.setdefault(target, []).append(alias)
    return [
        BundleRecord(
            f"sha256:{digest}", name, kind, created, at_ms, by, size, tuple(sorted(pointing.get(digest, ())))
        )
        for digest, name, kind, created, at_ms, by, size in connection.execute(
            _RECORDS, {"name": name, "digest": digest}
        )
    ]


def history(
    connection: sqlite3.Connection, *, alias: AliasReference | None = None, digest: str | None = None
) -> Sequence[AliasChange]:
    """Alias changes, oldest first: of one alias, or of all that ever pointed to a digest, or all."""
    values = {"name": alias and alias.name, "alias": alias and alias.alias, "digest": digest}
    return [_change(row) for row in connection.execute(_HISTORY, values)]


def add_bundle(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Enters a bundle unless it is there."""
    connection.execute(_ADD_BUNDLE, values)


def add_change(connection: sqlite3.Connection, values: Mapping[str, Any]) -> AliasChange:
    """Appends to an alias's history, which moves the alias."""
    return _change(connection.execute(_ADD_CHANGE, values).fetchone())


def before_current(changes: Sequence[AliasChange]) -> str | None:
    """The digest that an alias had before its current one was set, or None.

    Rolling back undoes: after A, B, C and one rollback the answer is A, not C.
    """
    values: list[str] = []
    for change in changes:
        if change.action == "rollback":
            values.pop()
        else:
            values.append(change.digest)
    return values[-2] if len(values) >= 2 else None


def _change(row: Sequence[Any]) -> AliasChange:
    sequence, name, alias, digest, previous, action, at_ms, by, reason = row
    before = None if previous is None else f"sha256:{previous}"
    return AliasChange(sequence, f"{name}@{alias}", f"sha256:{digest}", before, action, at_ms, by, reason)
