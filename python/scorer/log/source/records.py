"""The interface through which whole records are read, whatever stores them.

`scorer.log.source.interface` gives the columns that learning reads. Reports, the decision explorer, metrics
and backtests need more: observations, execution times, reasons, single decisions by their id, and the newest
ones. A `RecordSource` gives these for all servers of a fleet. Its readers join the logs by the decision id,
so that an outcome counts whichever server received it.

`scorer.log.source.indexed` implements the interface for the directories that servers write,
`scorer.log.source.table_records` for the tables that `scorer ship` writes, and `scorer.log.source.mixed` for
both together. An implementation for another store must give:

* one `RecordLog` for each server id, with a name that stays the same; a server that is gone keeps its log;
* the records of one server in the order of their sequences, without those of erased entities, and with the
  `withdrawn` entries of records that an earlier pass may have read;
* the identity of each log and a sequence of each record in it that stay the same, since readers store both as
  their position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from scorer.log.reading import Advance, LogFinding
from scorer.log.scanning import Entry

if TYPE_CHECKING:
    from scorer.log.columns import ColumnBatch
    from scorer.log.search import Stretch
    from scorer.v1.log_pb2 import DecisionRecord

Matches = Callable[["DecisionRecord"], bool]
"""Returns whether a decision is one that a search looks for."""


class RecordPass(Protocol):
    """One pass over the records of a log. It can be iterated over once."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield the records in the order of the log."""

    @property
    def findings(self) -> Sequence[LogFinding]:
        """Faults of the part of the log that was read; complete after the iteration."""


class RecordLog(Protocol):
    """The records of one server."""

    @property
    def name(self) -> str:
        """Name of the server; unique within its source and the same in every run."""

    @property
    def location(self) -> str:
        """Where the log is: a directory or a URL. Another process can open it there."""

    @property
    def identities(self) -> Sequence[str]:
        """Identities of the server's logs as 32 hexadecimal digits, oldest first.

        Empty: there is no record yet, or the log is away. A directory has one log; a table also has the logs
        that the server had before.
        """

    def records(self, identity: str, start: int) -> RecordPass:
        """Begin a pass over one log at a sequence.

        Args:
            identity: One of `identities`.
            start: Sequence of the first record; 0: the oldest one.

        Raises:
            LogError: The log does not exist or cannot be read.
        """

    def columns(
        self, checkpoint: str, advance: Advance | None = None, *, since_us: int = 0, mixed: bool = False
    ) -> Iterator[ColumnBatch]:
        """Yield the decisions and outcomes of a checkpoint as columns; see `scorer.log.columns`.

        Args:
            checkpoint: Name of the checkpoint.
            advance: Called with the bytes or rows read so far and their total.
            since_us: Time before which no decision is needed, in microseconds since the Unix epoch. Older
                ones may be returned.
            mixed: Whether the keys are compared with those of a log that another store has.

        Raises:
            LogError: The log does not exist or cannot be read.
        """

    def newest(self, checkpoint: str, limit: int) -> Sequence[DecisionRecord]:
        """Return the newest decisions of a checkpoint, newest first.

        Args:
            checkpoint: Name of the checkpoint.
            limit: Largest number of decisions; an implementation may return at most 500.

        Raises:
            LogError: The log does not exist or cannot be read.
        """

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
        """Search the log from the newest record to older ones, within a bound; see `scorer.log.search`.

        Args:
            checkpoint: Name of the checkpoint of the decisions.
            matches: Returns whether a decision of the checkpoint matches.
            before: Search only records with a lower sequence; None: from the end of the log.
            begin_us: Skip decisions before this time, in microseconds since the Unix epoch; None: no limit.
            end_us: Skip decisions at or after this time; None: no limit.
            limit: Number of decisions after which the search ends.

        Raises:
            LogError: The log does not exist or cannot be read.
        """


@dataclass(frozen=True, slots=True)
class DecisionEntries:
    """The records that name one decision.

    Attributes:
        entries: Names of logs, and records, for each log in its order.
        is_complete: Whether all logs that could be read were searched to their oldest record.
        problems: For each log that could not be read, one line with its name and the reason.
    """

    entries: Sequence[tuple[str, Entry]]
    is_complete: bool
    problems: Sequence[str]


class RecordSource(Protocol):
    """Where the whole records of a fleet are read from."""

    @property
    def logs(self) -> Sequence[RecordLog]:
        """The logs of the servers at present, those of servers that answer first."""

    @property
    def problems(self) -> Sequence[str]:
        """For each store that cannot be read now as a whole, one line with the reason."""

    def of_decision(self, decision_id: str) -> DecisionEntries:
        """Return the records of all logs that name a decision.

        Raises:
            LogError: The source cannot be searched now.
        """

    def close(self) -> None:
        """Close the files that look-ups have opened."""
