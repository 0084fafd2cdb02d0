"""Matching of a batch of log records with the records that are remembered of the same decisions."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from scorer.release.timeseries import cells
from scorer.release.timeseries.batch import NewReport, RollupBatch
from scorer.release.timeseries.cells import EXEC, LOAD, SCORE
from scorer.release.timeseries.contributions import (
    NO_CODE,
    CountDeltas,
    Decided,
    LedgerReport,
    contribution,
    order,
    single_decisions,
)
from scorer.release.timeseries.names import NONE, Names
from scorer.stats.arrays import Ints


class BatchMatch:
    """One batch within its transaction.

    Args:
        connection: The writer's transaction.
        names: Numbers of series and labels.
        log: Number of the log.
        following: Sequence of the first record that is not counted yet; earlier ones are left out.
        batch: The records.
    """

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
        deltas = CountDeltas()
        decided, reported = self._known()
        fresh: dict[int, list[Decided]] = defaultdict(list)
        for one in self._decisions:
            fresh[one.key].append(one)
        involved = {*decided, *reported, *self._withdrawn, *(one.key for one in self._reports)}
        involved |= {key for key, rows in fresh.items() if len(rows) > 1}
        single = [rows[0] for key, rows in fresh.items() if key not in involved]
        deltas.extend(single_decisions(single))
        self._insert_decisions(single)
        by_key: dict[int, list[LedgerReport]] = defaultdict(list)
        for report in self._reports:
            by_key[report.key].append(report)
        for key in sorted(involved):
            before = decided.get(key, []), reported.get(key, [])
            deltas.add(contribution(*before), -1)
            after = self._after(key, before[0] + fresh.get(key, []), before[1] + by_key.get(key, []))
            deltas.add(contribution(*after), 1)
            self._keep(key, before, after)
        return deltas.all()

    def _after(
        self, key: int, decisions: list[Decided], reports: list[LedgerReport]
    ) -> tuple[list[Decided], list[LedgerReport]]:
        gone = self._withdrawn.get(key, set())
        decisions = [one for one in decisions if one.log != self._log or one.sequence not in gone]
        reports = [one for one in reports if one.log != self._log or one.sequence not in gone]
        if decisions:
            counted = min(decisions, key=order)
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
        labels = [names.label(one.series.checkpoint, one.label) if one.label else NO_CODE for one in rows]
        bundles = np.array([one.series.bundle for one in rows], dtype=object)
        scores = np.array([one.score for one in rows], dtype=np.float64)
        places = np.full(len(rows), NO_CODE, dtype=np.int64)
        for digest in sorted(set(bundles)):
            reference = names.bins(digest)
            if reference is not None:
                own = np.flatnonzero((bundles == digest) & np.isfinite(scores))
                places[own] = SCORE + reference.places(scores[own])
        times = [
            np.where([one.error for one in rows], NO_CODE, base + cells.time_bins(us)).tolist()
            for base, us in ((EXEC, [one.exec_us for one in rows]), (LOAD, [one.load_us for one in rows]))
        ]
        flags = [cells.ERRORS if one.error else cells.FALLBACKS if one.fallback else NO_CODE for one in rows]
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
