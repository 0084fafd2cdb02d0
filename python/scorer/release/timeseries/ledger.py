"""Rollups of the decision logs: counted once each, whatever is repeated, killed, withdrawn or corrected.

Each batch is one transaction, which holds the new counts and the position in the log that they reach. The
contribution of a decision is a function of the records that are known of it, so a batch that adds a record
subtracts the contribution before and adds the one after.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from scorer.release.errors import UnreachableError
from scorer.release.timeseries import cells, expiry
from scorer.release.timeseries.batch import NewReport, OutcomeRule, RollupBatch
from scorer.release.timeseries.cells import EXEC, LOAD, ROWS, SCORE, WIDTH
from scorer.release.timeseries.expiry import HOUR, MINUTE
from scorer.release.timeseries.file import RollupFile
from scorer.release.timeseries.names import NONE, Names, References
from scorer.stats.arrays import Ints

_NO_CODE: Final = -1
_START_BITS: Final = 32
"""Minutes and hours since the Unix epoch have fewer bits."""


class Decided(NamedTuple):
    """One record of a decision, as the file keeps it until its outcome is final."""

    key: int
    log: int
    sequence: int
    at: int
    series: int
    exec: int
    load: int
    score: int
    label: int
    flag: int


class LedgerReport(NamedTuple):
    """One reported outcome, as the file keeps it."""

    key: int
    log: int
    sequence: int
    rank: int
    positive: int
    counts: int
    kinds: str
    unknown: int
    """Series that it is counted in while its decision is not known."""
    received_at: int
    token_series: int
    token_at: int
    series: int
    """Series of outcomes that it belongs to; `NONE`: not known."""
    at: int


class Ledger:
    """Adds batches of records to the file of the rollups.

    Args:
        path: The file.
        local: Returns the directory of a bundle by its digest.
        now: Returns the current time in microseconds.
        rules: Returns the checkpoints that are counted, and which of their outcomes count.
        most: Limit on the decisions, and on the reports, that are remembered.
    """

    def __init__(
        self,
        path: Path,
        local: Callable[[str], Path],
        *,
        now: Callable[[], int],
        rules: Callable[[], Mapping[str, OutcomeRule]],
        most: int = expiry.MOST_REMEMBERED,
    ) -> None:
        self.file = RollupFile(path)
        self._references = References(local)
        self._now, self._rules, self._most = now, rules, most
        self._expired_at = -math.inf

    def batch(self, server: str) -> RollupBatch:
        """Return an empty batch for records of a server's log."""
        return RollupBatch(server, self._rules())

    def apply(self, log: str, first: int, last: int, batch: RollupBatch) -> None:
        """Count the records of a stretch of a log that are not counted yet.

        Args:
            log: Identity of the log.
            first: Sequence of the first record.
            last: Sequence of the last record.
            batch: The records.

        Raises:
            UnreachableError: The file cannot be written. Nothing is counted.
        """
        try:
            with self.file.writing() as connection:
                connection.execute("INSERT OR IGNORE INTO logs (name, next) VALUES (?, ?)", (log, first))
                query = "SELECT id, next FROM logs WHERE name = ?"
                number, following = connection.execute(query, (log,)).fetchone()
                if last < following:
                    return
                names = Names(connection, self._references)
                deltas = _Batch(connection, names, number, following, batch).deltas()
                _add(connection, deltas, *expiry.spans(self._now()))
                connection.execute("UPDATE logs SET next = ? WHERE id = ?", (last + 1, number))
                expiry.forget(connection, self._now(), self._most)
                if time.monotonic() - self._expired_at >= expiry.EXPIRY_SECONDS:
                    expiry.expire(connection, self._now())
                    self._expired_at = time.monotonic()
        except sqlite3.Error as error:
            raise UnreachableError(
                f"the rollups in {self.file.path} cannot be written ({error}); free space on its disk, or "
                "delete the file to begin counting anew"
            ) from error

    def close(self) -> None:
        """Close the database file of the ledger."""
        self.file.close()


class _Deltas:
    """Changes of counts: `[n, 3]` series, time, code, and a sign of each."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._arrays: list[Ints] = []

    def add(self, contribution: Iterator[tuple[int, int, int]], sign: int) -> None:
        self._rows += [(series, at, code, sign) for series, at, code in contribution]

    def extend(self, rows: Ints) -> None:
        self._arrays.append(rows)

    def all(self) -> Ints:
        own = np.array(self._rows, dtype=np.int64).reshape(-1, 4)
        return np.concatenate([own, *self._arrays])


class _Batch:
    """One batch within its transaction."""

    def __init__(
        self, connection: sqlite3.Connection, names: Names, log: int, following: int, batch: RollupBatch
    ) -> None:
        self._connection, self._names = connection, names
        self._log, self._following = log, following
        self._decisions = self._numbered(batch)
        self._reports = [self._report(one) for one in batch.reports if one.sequence >= following]
        # The position is not compared: a withdrawal that is repeated finds nothing to take back.
        self._withdrawn = {one.key: set[int]() for one in batch.withdrawals}
        for one in batch.withdrawals:
            self._withdrawn[one.key].add(one.sequence)

    def deltas(self) -> Ints:
        """Keep the records, and return the changes of counts, `[n, 4]` series, time, code, sign."""
        deltas = _Deltas()
        decided, reported = self._known()
        fresh: dict[int, list[Decided]] = defaultdict(list)
        for one in self._decisions:
            fresh[one.key].append(one)
        involved = {*decided, *reported, *self._withdrawn, *(one.key for one in self._reports)}
        involved |= {key for key, rows in fresh.items() if len(rows) > 1}
        alone = [rows[0] for key, rows in fresh.items() if key not in involved]
        deltas.extend(_alone(alone))
        self._insert_decisions(alone)
        by_key: dict[int, list[LedgerReport]] = defaultdict(list)
        for report in self._reports:
            by_key[report.key].append(report)
        for key in sorted(involved):
            before = decided.get(key, []), reported.get(key, [])
            deltas.add(self._contribution(*before), -1)
            after = self._after(key, before[0] + fresh.get(key, []), before[1] + by_key.get(key, []))
            deltas.add(self._contribution(*after), 1)
            self._keep(key, before, after)
        return deltas.all()

    def _after(
        self, key: int, decisions: list[Decided], reports: list[LedgerReport]
    ) -> tuple[list[Decided], list[LedgerReport]]:
        gone = self._withdrawn.get(key, set())
        decisions = [one for one in decisions if one.log != self._log or one.sequence not in gone]
        reports = [one for one in reports if one.log != self._log or one.sequence not in gone]
        if decisions:
            counted = min(decisions, key=_order)
            series, kind = self._names.outcomes_of(counted.series, counted.at)
            about = [one for one in reports if kind in one.kinds.split()]
            return decisions, [one._replace(series=series, at=counted.at) for one in about]
        # A decision that is no longer remembered has left its place with its reports.
        if gone:
            reports = [one._replace(series=one.token_series, at=one.token_at) for one in reports]
        placed = next((one for one in reports if one.series), None)
        if placed is not None:
            reports = [one._replace(series=placed.series, at=placed.at) for one in reports]
        return decisions, reports

    def _contribution(
        self, decisions: Sequence[Decided], reports: Sequence[LedgerReport]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield series, time and code of everything that is counted of one decision."""
        if decisions:
            one = min(decisions, key=_order)
            for code in (ROWS, one.exec, one.load, one.score, one.label, one.flag):
                if code != _NO_CODE:
                    yield one.series, one.at, code
        countable = [one for one in reports if one.counts]
        if countable:
            best = min(countable, key=lambda one: (-one.rank, one.log, one.sequence))
            if not best.series:
                yield best.unknown, best.received_at, cells.UNPLACED
            else:
                yield best.series, best.at, cells.REPORTED
                if best.positive:
                    yield best.series, best.at, cells.POSITIVE
        elif reports:
            best = min(reports, key=lambda one: (-one.rank, one.log, one.sequence))
            yield best.series or best.unknown, best.at if best.series else best.received_at, cells.UNPROVEN

    def _known(self) -> tuple[dict[int, list[Decided]], dict[int, list[LedgerReport]]]:
        """Return the records that are remembered of the decisions in this batch."""
        keys = {one.key for one in self._decisions} | {one.key for one in self._reports} | {*self._withdrawn}
        self._connection.execute("DELETE FROM wanted")
        self._connection.executemany("INSERT INTO wanted VALUES (?)", [(key,) for key in sorted(keys)])
        decided: dict[int, list[Decided]] = defaultdict(list)
        reported: dict[int, list[LedgerReport]] = defaultdict(list)
        for row in self._connection.execute("SELECT t.* FROM wanted w JOIN decisions t ON t.key = w.key"):
            decided[row[0]].append(Decided(*row))
        for row in self._connection.execute("SELECT t.* FROM wanted w JOIN reports t ON t.key = w.key"):
            reported[row[0]].append(LedgerReport(*row))
        return decided, reported

    def _keep(
        self, key: int, before: tuple[list[Any], list[Any]], after: tuple[list[Any], list[Any]]
    ) -> None:
        if before[0] != after[0]:
            self._connection.execute("DELETE FROM decisions WHERE key = ?", (key,))
            self._insert_decisions(after[0])
        if before[1] != after[1]:
            self._connection.execute("DELETE FROM reports WHERE key = ?", (key,))
            places = ", ".join("?" * len(LedgerReport._fields))
            self._connection.executemany(f"INSERT INTO reports VALUES ({places})", after[1])  # noqa: S608

    def _insert_decisions(self, rows: Sequence[Decided]) -> None:
        places = ", ".join("?" * len(Decided._fields))
        self._connection.executemany(f"INSERT INTO decisions VALUES ({places})", rows)  # noqa: S608

    def _numbered(self, batch: RollupBatch) -> list[Decided]:
        rows = [one for one in batch.decisions if one.sequence >= self._following]
        if not rows:
            return []
        names = self._names
        series = [names.series(one.series, one.at) for one in rows]
        labels = [names.label(one.series.checkpoint, one.label) if one.label else _NO_CODE for one in rows]
        bundles = np.array([one.series.bundle for one in rows], dtype=object)
        scores = np.array([one.score for one in rows], dtype=np.float64)
        places = np.full(len(rows), _NO_CODE, dtype=np.int64)
        for digest in sorted(set(bundles)):
            reference = names.bins(digest)
            if reference is not None:
                own = np.flatnonzero((bundles == digest) & np.isfinite(scores))
                places[own] = SCORE + reference.places(scores[own])
        times = [
            np.where([one.error for one in rows], _NO_CODE, base + cells.time_bins(us)).tolist()
            for base, us in ((EXEC, [one.exec_us for one in rows]), (LOAD, [one.load_us for one in rows]))
        ]
        flags = [cells.ERRORS if one.error else cells.FALLBACKS if one.fallback else _NO_CODE for one in rows]
        return [
            Decided(one.key, self._log, one.sequence, one.at, *rest)
            for one, *rest in zip(rows, series, *times, places.tolist(), labels, flags, strict=True)
        ]

    def _report(self, one: NewReport) -> LedgerReport:
        token_series, token_at = NONE, 0
        if one.prefix and one.kind in one.kinds:
            token_series = self._names.by_token(one.checkpoint, one.prefix, one.kind, one.decided_at)
            token_at = one.decided_at if token_series else 0
        return LedgerReport(
            key=one.key,
            log=self._log,
            sequence=one.sequence,
            rank=one.rank,
            positive=int(one.positive),
            counts=int(one.counts),
            kinds=" ".join(sorted(one.kinds)),
            unknown=self._names.unknown(one.checkpoint, one.received_at),
            received_at=one.received_at,
            token_series=token_series,
            token_at=token_at,
            series=token_series,
            at=token_at,
        )


def _order(one: Decided) -> tuple[int, int, int]:
    """Of the records of one decision, the earliest counts."""
    return one.at, one.log, one.sequence


def _alone(rows: Sequence[Decided]) -> Ints:
    """Return the changes of counts by decisions of which nothing else is known."""
    if not rows:
        return np.empty((0, 4), dtype=np.int64)
    table = np.array(rows, dtype=np.int64)
    at, series = table[:, 3], table[:, 4]
    codes = np.column_stack([np.full(len(table), ROWS), table[:, 5:10]])
    kept = codes != _NO_CODE
    counts = kept.sum(axis=1)
    repeated = [np.repeat(series, counts), np.repeat(at, counts), codes[kept]]
    return np.column_stack([*repeated, np.ones(len(repeated[0]), np.int64)])


def _add(
    connection: sqlite3.Connection, deltas: Ints, minutes: tuple[int, int], hours: tuple[int, int]
) -> None:
    """Add changes of counts to the cells of minutes and hours within the times that are kept."""
    for step, (begin, end) in ((MINUTE, minutes), (HOUR, hours)):
        own = deltas[(deltas[:, 1] >= begin) & (deltas[:, 1] < end)]
        if not len(own):
            continue
        # One number for each cell, since sorting pairs takes ten times as long.
        numbers = own[:, 0] << _START_BITS | own[:, 1] // step
        places, inverse = np.unique(numbers, return_inverse=True)
        flat, which = np.unique(inverse.reshape(-1) * WIDTH + own[:, 2], return_inverse=True)
        sums = np.rint(np.bincount(which.reshape(-1), weights=own[:, 3])).astype(np.int64)
        bounds = np.searchsorted(flat, np.arange(len(places) + 1) * WIDTH)
        for row, number in enumerate(places.tolist()):
            series, at = number >> _START_BITS, (number & (1 << _START_BITS) - 1) * step
            part = slice(bounds[row], bounds[row + 1])
            if sums[part].any():
                _merge(connection, (step, series, at), flat[part] - row * WIDTH, sums[part])


def _merge(connection: sqlite3.Connection, place: tuple[int, int, int], codes: Ints, changes: Ints) -> None:
    key = "step = ? AND series = ? AND at = ?"
    row = connection.execute(f"SELECT codes, counts FROM cells WHERE {key}", place).fetchone()  # noqa: S608
    dense = np.zeros(WIDTH, dtype=np.int64) if row is None else cells.decode(*row)
    dense[codes] += changes
    left = np.flatnonzero(dense > 0)
    blobs = cells.encode(left, dense[left])
    if not len(left):
        connection.execute(f"DELETE FROM cells WHERE {key}", place)  # noqa: S608
    elif row is None:
        connection.execute("INSERT INTO cells VALUES (?, ?, ?, ?, ?)", (*place, *blobs))
    else:
        connection.execute(f"UPDATE cells SET codes = ?, counts = ? WHERE {key}", (*blobs, *place))  # noqa: S608
