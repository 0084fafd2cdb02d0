"""Whole records of the logs in local directories, found by decision id through an index."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from scorer.errors import LogError
from scorer.log.index import DecisionIndex
from scorer.log.search import Stretch, search
from scorer.log.segments import entries_at
from scorer.log.source.directories import LogDirectory
from scorer.log.source.records import DecisionEntries, Matches
from scorer.log.tail import Tail

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord

_INDEX_SECONDS = 5.0
"""Longest time in seconds that one look-up spends on indexing new records of one log."""


class IndexedLogs:
    """A source of local directories, which may change while it is used.

    Args:
        directories: Returns the present directories by the name of their server.
        index: File of the index. It can be deleted at any time and is then built again.
    """

    def __init__(self, directories: Callable[[], Mapping[str, Path]], index: Path) -> None:
        self._directories = directories
        self._index = DecisionIndex(index)
        self._known: dict[tuple[str, Path], RecordDirectory] = {}
        self._lock = Lock()

    @property
    def logs(self) -> Sequence[RecordDirectory]:
        """The logs in the present directories."""
        places = [(name, path.resolve()) for name, path in self._directories().items()]
        with self._lock:
            # A log keeps its newest decisions in memory for as long as it is among the directories.
            self._known = {
                place: self._known.get(place) or RecordDirectory(*place, Tail(place[1])) for place in places
            }
            return list(self._known.values())

    @property
    def problems(self) -> Sequence[str]:
        """None: each directory is read on its own."""
        return ()

    def of_decision(self, decision_id: str) -> DecisionEntries:
        """Return the records that name a decision; see `scorer.log.source.records.RecordSource`."""
        logs = {log.path: log.name for log in self.logs}
        is_complete, problems = self._update(logs)
        places = self._index.places(decision_id)
        if places is None:
            is_complete, problems = self._update(logs)
            places = self._index.places(decision_id) or {}
        entries = [
            (logs[path], entry)
            for path, sequences in places.items()
            if path in logs
            for entry in entries_at(path, sequences)
            # Other decisions may have the same hash.
            if entry.decision_id == decision_id
        ]
        return DecisionEntries(entries, is_complete, problems)

    def close(self) -> None:
        """Close the index of all logs."""
        self._index.close()

    def _update(self, logs: Mapping[Path, str]) -> tuple[bool, list[str]]:
        is_complete, problems = True, []
        for path, name in logs.items():
            try:
                is_complete &= self._index.update(path, seconds=_INDEX_SECONDS)
            except LogError as error:
                problems.append(f'server "{name}": {error}')
        return is_complete, problems


@dataclass(frozen=True)
class RecordDirectory(LogDirectory):
    """The log of one server in a local directory; see `scorer.log.source.records.RecordLog`.

    Attributes:
        tail: The newest decisions, in memory.
    """

    tail: Tail

    def newest(self, checkpoint: str, limit: int) -> list[DecisionRecord]:
        """Return the newest decisions of a checkpoint, newest first, at most `scorer.log.tail.KEPT`."""
        return self.tail.newest(checkpoint, limit)

    def search(
        self,
        checkpoint: str,
        matches: Matches,
        *,
        before: int | None,
        begin_us: int | None,
        end_us: int | None,
        limit: int,
    ) -> Stretch:
        """Search the log from the newest record to older ones."""
        return search(
            self.path,
            lambda record: record.checkpoint == checkpoint and matches(record),
            before=before,
            begin_us=begin_us,
            end_us=end_us,
            limit=limit,
        )
