"""A source of whole records that reads the tables of `scorer ship`.

The tables are looked at when the source is asked for its logs, at most once per interval. A thread does it,
so that a storage that does not answer delays no caller for longer than the time limits below. All logs of an
address are read at the same versions of the tables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final

from scorer.errors import LogError
from scorer.log.source.delta_reading import require_packages
from scorer.log.source.records import DecisionEntries
from scorer.log.source.table_index import RowPlace, TableIndex
from scorer.log.source.table_logs import TableLog
from scorer.log.source.table_state import TableFollower

if TYPE_CHECKING:
    from scorer.log.scanning import Entry
    from scorer.log.source.records import RecordLog
    from scorer.log.source.settings import SourceSettings

_INDEX_SECONDS: Final = 5.0
"""Longest time in seconds that one look-up spends on indexing new files of one address."""
_SLICE_SECONDS: Final = 1.0
"""Longest time in seconds that a list of logs spends on it."""


class TableRecords:
    """A source of the servers that ship to tables.

    Args:
        urls: Directories or URLs below which tables are: `[delta] url` of the shippers.
        index: File of the index. It can be deleted at any time and is then built again.
        settings: How the tables are read.
        names: Returns the names of servers by the id with which their shipper ships. A server that is not
            among them is called by this id.
        elsewhere: Returns the logs that are read from elsewhere. A server whose name or log is among them is
            not read from the tables.
        refresh_seconds: Shortest interval of looks for new rows.

    Raises:
        LogError: A package is missing.
    """

    def __init__(
        self,
        urls: Sequence[str],
        index: Path,
        settings: SourceSettings,
        *,
        names: Callable[[], Mapping[str, str]] = dict,
        elsewhere: Callable[[], Sequence[RecordLog]] = tuple,
        refresh_seconds: float = 5.0,
    ) -> None:
        require_packages(urls[0])
        self._index = TableIndex(index)
        self._followers = [
            TableFollower(url.rstrip("/"), settings, self._index, refresh_seconds=refresh_seconds)
            for url in urls
        ]
        self._names, self._elsewhere = names, elsewhere
        self._known: dict[tuple[str, str], TableLog] = {}
        self._lock = Lock()

    @property
    def logs(self) -> Sequence[TableLog]:
        """The logs of the servers that have shipped. Of a server with two addresses, the first one counts."""
        for follower in self._followers:
            if follower.is_due:
                _refresh(follower, _SLICE_SECONDS)
        names, found = self._names(), dict[str, TableLog]()
        others = self._elsewhere()
        taken = {one.name for one in others}
        read = {identity for one in others for identity in one.identities}
        with self._lock:
            for follower in self._followers:
                for server in follower.state.servers:
                    name = names.get(server, server)
                    known = self._known.get((follower.url, server))
                    # A log keeps its pass for as long as its server has the same name.
                    if known is None or known.name != name:
                        known = TableLog(name, server, follower)
                        self._known[follower.url, server] = known
                    # Read twice, the records of a log would count twice.
                    if name not in taken and read.isdisjoint(known.identities):
                        found.setdefault(name, known)
                        read.update(known.identities)
        return list(found.values())

    @property
    def problems(self) -> Sequence[str]:
        """For each address that cannot be read now, one line with the reason."""
        return [one.problem for one in self._followers if one.problem]

    def of_decision(self, decision_id: str) -> DecisionEntries:
        """Return the records that name a decision; see `scorer.log.source.records.RecordSource`."""
        # An address that cannot be read is a problem, and not one that is read later.
        complete = [
            _refresh(one, _INDEX_SECONDS, now=True) or (bool(one.problem) and not one.is_indexing)
            for one in self._followers
        ]
        logs = {(log.url, log.server): log for log in self.logs}
        found: list[tuple[str, Entry]] = []
        problems = list(self.problems)
        for follower in self._followers:
            places: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
            for server, log, table, sequence in self._places(follower, decision_id):
                places[server, log][table].append(sequence)
            for (server, log), sequences in places.items():
                own = logs.get((follower.url, server))
                if own is None:
                    continue
                try:
                    rows = own.entries_at(log, sequences)
                except LogError as error:
                    problems.append(f'server "{own.name}": {error}')
                    continue
                # Other decisions may have the same hash.
                found += ((own.name, entry) for entry in rows if entry.decision_id == decision_id)
        return DecisionEntries(found, all(complete), problems)

    def _places(self, follower: TableFollower, decision_id: str) -> Sequence[RowPlace]:
        try:
            return self._index.places(follower.url, decision_id)
        except LogError:
            # If the index was damaged, its files must be read again.
            for one in self._followers:
                one.failed()
            raise

    def close(self) -> None:
        """Close the index of the files."""
        self._index.close()


def _refresh(follower: TableFollower, seconds: float, *, now: bool = False) -> bool:
    """Refresh a follower and wait for about this long; return whether its state is complete by then.

    If the storage does not answer, the thread ends after the time limit of its requests. A follower that is
    being refreshed is not refreshed again meanwhile.
    """
    done: list[bool] = []
    thread = Thread(
        target=lambda: done.append(follower.refresh(seconds, now=now)), name="tables-refresh", daemon=True
    )
    thread.start()
    thread.join(seconds)
    return done == [True]
