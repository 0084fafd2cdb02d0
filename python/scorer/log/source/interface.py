"""The interface through which decisions and outcomes are read, whatever stores them.

A source consists of the logs of one or more servers. A reader takes one pass over each log: it names what it
needs (`SourceQuery`) and where its last pass ended (`ReadPosition`), and receives Arrow tables of the schemas
in `scorer.log.source.rows` (`SourceBatch`). No reader depends on how the rows are stored.

`scorer.log.source.directories` implements the interface for the directories that servers write, and
`scorer.log.source.delta` for the tables that `scorer ship` writes. An implementation for another store must
give:

* one `ServerLog` for each server id, with a name that stays the same;
* the rows of one server in the order of their sequences, without those that were withdrawn before the pass
  reached them and without those of erased entities;
* only rows after the given position, if the rows before it are still those that were read; otherwise all rows
  from the first one on, with `continued` False;
* at most `SourceQuery.rows` rows in memory at a time, apart from one unit of its store, such as a row group;
* rows of `SourceQuery.checkpoint` only. It should also leave out what is older than `SourceQuery.since_us` if
  its store can do so without reading the rows, and must then return that time as `LogPass.since_us`.

A row that cannot be read is a finding of the pass. A log that cannot be read at all raises `LogError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

from scorer.log.reading import Advance, LogFinding

if TYPE_CHECKING:
    import pyarrow as pa

    from scorer.log.sealing import ReaderKey

Kind: TypeAlias = Literal["decisions", "outcomes", "deliveries", "withdrawals", "unknown"]
"""Kind of the rows of a batch. Rows of kind "unknown" are of records of a newer version."""

MOST_ROWS = 8_192
"""Default of `SourceQuery.rows`."""


@dataclass(frozen=True, slots=True)
class SourceQuery:
    """The rows that a reader needs.

    Attributes:
        checkpoint: Name of the checkpoint; None: rows of all checkpoints.
        since_us: Time before which no row is needed, in microseconds since the Unix epoch: of decisions the
            time of the decision, of outcomes the time of the report. Older rows may be returned.
        rows: Largest number of rows that a pass holds in memory.
        reader_key: Key that decrypts sensitive features; without it their values are missing.
    """

    checkpoint: str | None = None
    since_us: int = 0
    rows: int = MOST_ROWS
    reader_key: ReaderKey | None = None


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The end of a pass over the log of one server. It can be stored as JSON.

    Attributes:
        log: Identity of the log, which differs if another log takes its place.
        next: Sequence of the first record that was not read.
        mark: Fingerprint of the record before it. It differs if the log was replaced by an older copy of
            itself and has grown since.
    """

    log: str
    next: int
    mark: str


class SourceBatch(NamedTuple):
    """Consecutive rows of one kind and checkpoint.

    Attributes:
        checkpoint: Name of the checkpoint; empty for kind "unknown".
        kind: Kind of the rows.
        rows: The rows, in the schema that `scorer.log.source.rows.SCHEMAS` has for the kind.
    """

    checkpoint: str
    kind: Kind
    rows: pa.Table


class LogPass(Protocol):
    """One pass over the log of one server. It can be iterated over once.

    Only `continued` and `erased` are known before the iteration. All other properties are complete after it.
    """

    def __iter__(self) -> Iterator[SourceBatch]:
        """Yield the rows. The rows of each kind and checkpoint are in the order of the log."""

    @property
    def continued(self) -> bool:
        """Whether the pass begins after the given position. Otherwise it begins with the first record."""

    @property
    def erased(self) -> bool:
        """Whether the pass begins with the first record because rows may have been erased.

        Rows of earlier passes must then not be kept.
        """

    @property
    def position(self) -> ReadPosition:
        """The end of the pass."""

    @property
    def since_us(self) -> int:
        """Time from which on the pass has all rows, in microseconds since the Unix epoch; 0: always."""

    @property
    def first_sequence(self) -> int:
        """Lowest sequence that the log still has; 0 if it has no record."""

    @property
    def segments(self) -> Mapping[str, bool]:
        """Names of the segments that the log still has, and whether each is finished."""

    @property
    def findings(self) -> Sequence[LogFinding]:
        """Faults of the part of the log that was read."""


class ServerLog(Protocol):
    """The log of one server."""

    @property
    def name(self) -> str:
        """Name in findings; unique within its source and the same in every run."""

    @property
    def erasures(self) -> str:
        """A value that changes with each erasure; rows that were read under another one must be read again.

        Raises:
            LogError: The erasures cannot be read.
        """

    def read(
        self, query: SourceQuery, after: ReadPosition | None = None, advance: Advance | None = None
    ) -> LogPass:
        """Begin a pass.

        Args:
            query: The rows that are needed.
            after: The end of an earlier pass with the same query, apart from `since_us` and `rows`; None:
                begin with the first record.
            advance: Called with the bytes read so far and the total bytes.

        Raises:
            LogError: The log does not exist or cannot be read.
        """


class DecisionSource(Protocol):
    """Where decisions and outcomes are read from."""

    @property
    def logs(self) -> Sequence[ServerLog]:
        """The logs of the servers, at least one."""
