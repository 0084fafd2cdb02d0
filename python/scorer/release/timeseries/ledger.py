"""Rollups of the decision logs, in which every record is counted exactly once.

This holds for repeated batches, kills, withdrawn records and corrected outcomes. Each batch is one
transaction with the new counts and the position in the log that they reach. The contribution of a decision
is a function of its known records, so a batch that adds a record subtracts the previous contribution and adds
the new one.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from scorer.release.errors import UnreachableError
from scorer.release.timeseries import expiry
from scorer.release.timeseries.adding import add
from scorer.release.timeseries.batch import OutcomeRule, RollupBatch
from scorer.release.timeseries.file import RollupFile
from scorer.release.timeseries.firings import add_firings
from scorer.release.timeseries.matching import BatchMatch
from scorer.release.timeseries.names import Names, References


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
        """Count the records of a range of a log that are not counted yet.

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
                deltas = BatchMatch(connection, names, number, following, batch).deltas()
                add(connection, deltas, expiry.spans(self._now()))
                add_firings(connection, number, following, batch.begun, batch.firings, batch.withdrawals)
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
