"""The columns of one checkpoint in all logs of a source.

Nothing here or in what follows depends on which log a row is in: the same rows in one log or in several give
the same join.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scorer.learn.join.columns import LIGHT, UNKNOWN_RECORD


class LogTables(Protocol):
    """The columns of one checkpoint in one log."""

    def choose_actions(self) -> bool:
        """Return whether any decision names an action."""

    def table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a kind."""

    def decisions(self) -> Iterator[pa.Table]:
        """Yield all columns of the decisions, part by part: the rows of `table`, in the same order."""


class SourceColumns:
    """The columns of one checkpoint in all logs of a source, one log after the other.

    Args:
        logs: The columns of each log.
        names: The name of each log.
        outcome: Kind of the outcome that is the reward.
    """

    def __init__(self, logs: Sequence[LogTables], names: Sequence[str], outcome: str) -> None:
        self._logs = logs
        self._names = names
        self.outcome = outcome

    def choose_actions(self) -> bool:
        """Return whether any decision names an action."""
        return any(log.choose_actions() for log in self._logs)

    def light(self) -> pa.Table:
        """Return the columns of all decisions that determine whether they are used."""
        return self._table("decisions", LIGHT)

    def decisions(self) -> Iterator[pa.Table]:
        """Yield all columns of the decisions, part by part: the rows of `light`, in the same order."""
        for log in self._logs:
            yield from log.decisions()

    def outcomes(self) -> pa.Table:
        """Return all outcomes in the order in which they were reported, with their log's position as `log`.

        Reports of the same microsecond are in an order that does not depend on the logs that they are in.
        """
        tables = [log.table("outcomes") for log in self._logs]
        place = np.repeat(np.arange(len(tables), dtype=np.int32), [len(one) for one in tables])
        table = pa.concat_tables(tables).unify_dictionaries().append_column("log", pa.array(place))
        names = ("source", "token_index", "token_decided_at_ms", "occurred_at_ms", "value", "received_at_us")
        order = np.lexsort([table[name].fill_null(0).to_numpy() for name in names])
        # Most logs are in this order already, and need no copy.
        return table if (order[1:] > order[:-1]).all() else table.take(pa.array(order))

    def deliveries(self) -> pa.Table:
        """Return all marks of replies that did, or did not, reach their caller."""
        return self._table("deliveries")

    def notes(self) -> Iterator[tuple[str, int, list[str]]]:
        """Yield name, number and examples of the findings about single records."""
        for place, log in enumerate(self._logs):
            table, prefix = log.table("notes"), self.name_of(place)
            for name in pc.unique(table["name"]).to_pylist():
                examples = table.filter(pc.equal(table["name"], name))["example"]
                texts = pc.unique(examples).to_pylist()
                if prefix and name == UNKNOWN_RECORD:
                    texts = [f"{prefix}: {text}" for text in texts]
                yield name, len(examples), texts

    def name_of(self, log: int) -> str:
        """Return the name of a log, by its position; empty if it is the only one."""
        return self._names[log] if len(self._names) > 1 else ""

    def newest_us(self, until_us: int) -> list[int | None]:
        """Return the time of the newest decision or outcome of each log up to a moment; None if it has none.

        Args:
            until_us: The moment, in microseconds since the Unix epoch.
        """
        found: list[int | None] = []
        for log in self._logs:
            times = np.concatenate(
                [
                    log.table(kind, ["sequence", name])[name].to_numpy()
                    for kind, name in (("decisions", "decided_at_us"), ("outcomes", "received_at_us"))
                ]
            )
            times = times[times <= until_us]
            found.append(int(times.max()) if len(times) else None)
        return found

    def _table(self, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
        return pa.concat_tables([log.table(kind, columns) for log in self._logs]).unify_dictionaries()
