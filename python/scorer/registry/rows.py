"""The SQL statements over the registry's tables, and the conversion of their rows."""

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
WHERE digest >= :prefix AND digest < :prefix || 'g' AND (:name IS NULL OR name = :name)
  AND kind <> 'removed list'
ORDER BY pushed_at_ms DESC, rowid DESC
"""
# No hex digit comes after "f", so the range holds the digests that begin with the prefix, by the index.
_DIGESTS = """
SELECT digest FROM bundles WHERE digest >= :prefix AND digest < :prefix || 'g' AND kind <> 'removed list'
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
ON CONFLICT (digest) DO UPDATE SET kind = excluded.kind, pushed_at_ms = excluded.pushed_at_ms,
  pushed_by = excluded.pushed_by, bytes = excluded.bytes WHERE bundles.kind = 'removed list'
"""
# The history of aliases refers to the rows of bundles, so the row of a removed version stays.
_REMOVE_LIST = "UPDATE bundles SET kind = 'removed list', bytes = 0 WHERE digest = ? AND kind = 'list'"
_REMOVED = "SELECT digest FROM bundles WHERE kind = 'removed list'"
_ADD_CHANGE = """
INSERT INTO alias_history (name, alias, digest, previous, action, at_ms, by, reason)
VALUES (:name, :alias, :digest, :previous, :action, :at_ms, :by, :reason)
RETURNING sequence, name, alias, digest, previous, action, at_ms, by, reason
"""


def current(connection: sqlite3.Connection) -> Mapping[str, str]:
    """Return the digest, as hex digits, that each ``name@alias`` points to now."""
    return {f"{name}@{alias}": digest for name, alias, digest in connection.execute(_CURRENT)}


def changed_at_ms(connection: sqlite3.Connection, alias: AliasReference) -> int | None:
    """Return when an alias was last moved, in milliseconds since the Unix epoch; None if it never was."""
    row = connection.execute(
        "SELECT at_ms FROM alias_history WHERE name = ? AND alias = ? ORDER BY sequence DESC LIMIT 1",
        (alias.name, alias.alias),
    ).fetchone()
    return None if row is None else int(row[0])


def digests(connection: sqlite3.Connection, prefix: str = "") -> set[str]:
    """Return the digests that begin with a prefix, as hex digits."""
    return {row[0] for row in connection.execute(_DIGESTS, {"prefix": prefix})}


def records(
    connection: sqlite3.Connection, *, name: str | None = None, prefix: str = ""
) -> Sequence[BundleRecord]:
    """Return the bundles whose digest begins with a prefix (hex digits), newest push first.

    Args:
        connection: An open connection.
        name: Return only bundles of this name.
        prefix: The whole digest for one bundle; empty: all bundles.
    """
    pointing: dict[str, list[str]] = {}
    for alias, target in current(connection).items():
        pointing.setdefault(target, []).append(alias)
    return [
        BundleRecord(
            f"sha256:{digest}", name, kind, created, at_ms, by, size, tuple(sorted(pointing.get(digest, ())))
        )
        for digest, name, kind, created, at_ms, by, size in connection.execute(
            _RECORDS, {"name": name, "prefix": prefix}
        )
    ]


def history(
    connection: sqlite3.Connection, *, alias: AliasReference | None = None, digest: str | None = None
) -> Sequence[AliasChange]:
    """Return alias changes, oldest first.

    Args:
        connection: An open connection.
        alias: Return only the changes of this alias.
        digest: Return only the changes of aliases that have pointed to this digest (hex digits).
    """
    values = {"name": alias and alias.name, "alias": alias and alias.alias, "digest": digest}
    return [_change(row) for row in connection.execute(_HISTORY, values)]


def add_bundle(connection: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    """Enter a bundle unless a bundle with its digest is already entered."""
    connection.execute(_ADD_BUNDLE, values)


def remove_list(connection: sqlite3.Connection, digest: str) -> None:
    """Mark a version of a list as removed: from now on, no reference names it."""
    connection.execute(_REMOVE_LIST, (digest,))


def removed(connection: sqlite3.Connection) -> set[str]:
    """Return the digests of the removed versions of lists, as hex digits."""
    return {row[0] for row in connection.execute(_REMOVED)}


def add_change(connection: sqlite3.Connection, values: Mapping[str, Any]) -> AliasChange:
    """Append an entry to an alias's history. The newest entry determines where the alias points."""
    return _change(connection.execute(_ADD_CHANGE, values).fetchone())


def before_current(changes: Sequence[AliasChange]) -> str | None:
    """Return the digest that an alias had before its current one was set, or None.

    A rollback undoes the last change: after A, B, C and one rollback (to B), the result is A and not C.

    Args:
        changes: The entries of one alias, oldest first.
    """
    values: list[str] = []
    for change in changes:
        if change.action == "rollback":
            # MLflow's history can lack the entry that a rollback undid.
            values = values[:-1]
        else:
            values.append(change.digest)
    return values[-2] if len(values) >= 2 else None


def _change(row: Sequence[Any]) -> AliasChange:
    sequence, name, alias, digest, previous, action, at_ms, by, reason = row
    before = None if previous is None else f"sha256:{previous}"
    return AliasChange(sequence, f"{name}@{alias}", f"sha256:{digest}", before, action, at_ms, by, reason)
