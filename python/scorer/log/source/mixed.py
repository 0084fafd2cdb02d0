"""A source of whole records that reads the directories of some servers and the tables of others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from scorer.log.source.records import DecisionEntries

if TYPE_CHECKING:
    from scorer.log.source.records import RecordLog, RecordSource


class MixedRecords:
    """The logs of several sources.

    Args:
        sources: The sources. No log is in two of them.
        last: Returns the names of servers whose logs come last.
    """

    def __init__(self, sources: Sequence[RecordSource], last: Callable[[], Collection[str]]) -> None:
        self._sources, self._last = sources, last

    @property
    def logs(self) -> Sequence[RecordLog]:
        """The logs of all sources."""
        last = self._last()
        logs = [log for source in self._sources for log in source.logs]
        return sorted(logs, key=lambda log: (log.name in last, log.name))

    @property
    def problems(self) -> Sequence[str]:
        """The problems of all sources."""
        return [problem for source in self._sources for problem in source.problems]

    def of_decision(self, decision_id: str) -> DecisionEntries:
        """Return the records that name a decision; see `scorer.log.source.records.RecordSource`."""
        found = [source.of_decision(decision_id) for source in self._sources]
        return DecisionEntries(
            [entry for one in found for entry in one.entries],
            all(one.is_complete for one in found),
            [problem for one in found for problem in one.problems],
        )

    def close(self) -> None:
        """Close the files of all sources."""
        for source in self._sources:
            source.close()
