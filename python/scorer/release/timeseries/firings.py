"""The rules that had an effect on answered decisions, in the file of the rollups.

A row names a decision and a rule, so a record that is read again adds nothing. The oldest rows are removed
beyond a limit, as those of decisions are (expiry.py).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from scorer.release.timeseries.batch import NewFiring, Withdrawal
from scorer.release.timeseries.expiry import DAY

TABLES: Final = """
CREATE TABLE IF NOT EXISTS rule_names (
    id INTEGER PRIMARY KEY, checkpoint TEXT NOT NULL, name TEXT NOT NULL, UNIQUE (checkpoint, name)
);
CREATE TABLE IF NOT EXISTS rule_since (checkpoint TEXT PRIMARY KEY, at INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS firings (
    rule INTEGER NOT NULL, key INTEGER NOT NULL, at INTEGER NOT NULL, log INTEGER NOT NULL,
    sequence INTEGER NOT NULL, UNIQUE (key, rule, log, sequence)
);
CREATE INDEX IF NOT EXISTS firings_rule ON firings (rule, at);
"""
"""Tables that are added to the file of any version."""
_BEST: Final = """
SELECT r.positive FROM reports r WHERE r.key = f.key AND r.counts = 1
ORDER BY r.rank DESC, r.received_at, r.log, r.sequence LIMIT 1
"""
"""Of several reports of an outcome, the one that counts."""


class RuleFirings(NamedTuple):
    """What is counted of one rule."""

    daily: Sequence[int]
    """Decisions on which the rule had an effect, by day."""
    last: int
    """Time of the newest of them, microseconds."""
    known: int
    """Of the matured ones, those whose outcome is known."""
    positive: int
    """Of these, those with a positive outcome."""


def add_firings(
    connection: sqlite3.Connection,
    log: int,
    following: int,
    begun: Mapping[str, int],
    firings: Sequence[NewFiring],
    withdrawals: Sequence[Withdrawal],
) -> None:
    """Add the firings of a batch, and remove those of withdrawn records.

    Args:
        connection: The writer's transaction.
        log: Number of the log.
        following: Sequence of the first record that is not counted yet; earlier ones are left out.
        begun: Time of the first decision of each checkpoint in the batch, microseconds.
        firings: The firings.
        withdrawals: Records of the same log that do not count.
    """
    earliest = "ON CONFLICT (checkpoint) DO UPDATE SET at = min(at, excluded.at)"
    connection.executemany(f"INSERT INTO rule_since VALUES (?, ?) {earliest}", begun.items())  # noqa: S608
    fresh = [one for one in firings if one.sequence >= following]
    names = sorted({(one.checkpoint, one.rule) for one in fresh})
    connection.executemany("INSERT OR IGNORE INTO rule_names (checkpoint, name) VALUES (?, ?)", names)
    query = "SELECT id FROM rule_names WHERE checkpoint = ? AND name = ?"
    ids = {name: connection.execute(query, name).fetchone()[0] for name in names}
    connection.executemany(
        "INSERT OR IGNORE INTO firings VALUES (?, ?, ?, ?, ?)",
        [(ids[one.checkpoint, one.rule], one.key, one.at, log, one.sequence) for one in fresh],
    )
    connection.executemany(
        "DELETE FROM firings WHERE key = ? AND log = ? AND sequence = ?",
        [(one.key, log, one.sequence) for one in withdrawals],
    )


def counted_since(connection: sqlite3.Connection, checkpoint: str) -> int | None:
    """Return the time of the first decision whose rules are counted, microseconds; None: there is none."""
    if not _exists(connection):
        return None
    query = "SELECT at FROM rule_since WHERE checkpoint = ?"
    row = connection.execute(query, (checkpoint,)).fetchone()
    return None if row is None else int(row[0])


def read_firings(
    connection: sqlite3.Connection, checkpoint: str, start: int, days: int, matured: int
) -> Mapping[str, RuleFirings]:
    """Return what is counted of each rule of a checkpoint.

    Args:
        connection: A reader's transaction.
        checkpoint: Name of the checkpoint.
        start: Start of the first day, microseconds.
        days: Number of days.
        matured: Only outcomes of decisions before this time count, microseconds.
    """
    if not _exists(connection):
        return {}
    found = {}
    query = "SELECT id, name FROM rule_names WHERE checkpoint = ? ORDER BY name"
    for rule, name in connection.execute(query, (checkpoint,)).fetchall():
        window = (rule, start, start + days * DAY)
        daily = [0] * days
        counts = "SELECT (at - ?) / ?, count(DISTINCT key), max(at) FROM firings WHERE rule = ? AND at >= ? "
        last = 0
        for day, count, newest in connection.execute(
            f"{counts} AND at < ? GROUP BY 1",
            (start, DAY, *window),
        ):
            daily[day], last = count, max(last, newest)
        own = "SELECT DISTINCT key FROM firings WHERE rule = ? AND at >= ? AND at < ?"
        sums = f"SELECT count(p), total(p) FROM (SELECT ({_BEST}) AS p FROM ({own}) f)"  # noqa: S608 - constants
        ends = (rule, start, min(matured, window[2]))
        known, positive = connection.execute(sums, ends).fetchone()
        found[name] = RuleFirings(tuple(daily), last, int(known), int(positive))
    return found


def _exists(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = 'firings'"
    return connection.execute(query).fetchone() is not None
