"""The shipped tables of one address, all of one moment: their files, positions and servers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from scorer.errors import LogError
from scorer.log.shipped.position import REGISTERS, ShipPosition
from scorer.log.shipped.schema import DECISIONS, EVENTS, OUTCOMES, PARTITION, SCHEMAS, VERSION
from scorer.log.shipped.storage import (
    FINAL,
    PREFIX,
    one_line,
    register,
    schema_version,
    storage_options,
)
from scorer.log.source.table_storage import table_storage

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    from deltalake import DeltaTable

    from scorer.log.source.settings import SourceSettings

READ: Final = (DECISIONS, OUTCOMES, EVENTS)
"""The tables with rows of a source. Decisions are opened first: what is below a position in that table is in
every table."""

_LOG: Final = "_delta_log"
_FEATURES: Final = {"timestampNtz", "vacuumProtocolCheck"}
"""Features of the Delta protocol that do not change how files are read."""
_KEEPS_ROWS: Final = {
    "CREATE TABLE",
    "ADD COLUMN",
    "OPTIMIZE",
    "VACUUM START",
    "VACUUM END",
    "SET TBLPROPERTIES",
    "ADD FEATURE",
}
"""Operations that leave the rows as they are. A WRITE does if its mode is Append."""


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table.

    Attributes:
        path: Path below the table.
        checkpoint: Name of the checkpoint; None: of records without one.
        hour: The hour, for example ``2026-11-01T09``.
        servers: First and last server id in the file, in alphabetical order; None: not known.
        size: Size in bytes.
    """

    path: str
    checkpoint: str | None
    hour: str
    servers: tuple[str, str] | None
    size: int

    def may_have(self, server: str) -> bool:
        """Return whether the file may have rows of a server."""
        return self.servers is None or self.servers[0] <= server <= self.servers[1]


class ShippedTable:
    """One version of one table.

    Args:
        url: Address of the table.
        name: Its name, such as "decisions".
        settings: How it is read.
        table: The opened table; None: the newest version is opened.

    Raises:
        LogError: The table is missing, cannot be read, is another program's, or has a newer schema.
    """

    def __init__(
        self, url: str, name: str, settings: SourceSettings, table: DeltaTable | None = None
    ) -> None:
        self.url, self.name = url, name
        self._settings = settings
        self._options = storage_options(url, settings.options, settings.timeout_seconds)
        self._table = table or self._open(None)
        with reading(url):
            metadata, protocol = self._table.metadata(), self._table.protocol()
        version = schema_version(metadata.configuration)
        if version is None or metadata.partition_columns != PARTITION:
            raise LogError(
                f'table "{url}" is not one of scorer ship; name the url that [delta] url of it names'
            )
        if version > VERSION:
            raise LogError(
                f'table "{url}" has schema version {version}, which a newer version of scorer wrote; this '
                f"one reads {VERSION}: upgrade scorer on this host"
            )
        features = set(protocol.reader_features or ()) - _FEATURES
        if features or protocol.min_reader_version == 2:
            names = ", ".join(sorted(features)) or "columnMapping"
            raise LogError(
                f'table "{url}" has the reader features {names}, which another program has set and which '
                "scorer does not read; write the rows to a table without them"
            )

    @property
    def version(self) -> int:
        """The version that is read."""
        return int(self._table.version())

    def newer(self) -> ShippedTable:
        """Return the newest version, which reads only the commits since this one.

        Of this object, only `dataset` may be used afterwards.

        Raises:
            LogError: As of the constructor.
        """
        version = self.version
        with reading(self.url):
            self._table.update_incremental()
        if self.version == version:
            return self
        return ShippedTable(self.url, self.name, self._settings, self._table)

    def position(self, server: str) -> ShipPosition | None:
        """Return the position of a server: the end of its rows."""
        with reading(self.url):
            values = {name: self._table.transaction_version(register(server, name)) for name in REGISTERS}
        try:
            return ShipPosition.of(values)
        except ValueError:
            raise LogError(
                f'table "{self.url}" has an incomplete position of server "{server}"; restore the table'
            ) from None

    @cached_property
    def files(self) -> Sequence[DataFile]:
        """All files of the version."""
        return self._files(self._table)

    def files_since(self, version: int) -> Sequence[DataFile]:
        """Return the files that an earlier version does not have; all if that version cannot be read."""
        if version == self.version:
            return ()
        if version < 0:
            return self.files
        try:
            earlier = {one.path for one in self._files(self._open(version))}
        except LogError:
            return self.files
        return [one for one in self.files if one.path not in earlier]

    def keeps_rows_since(self, version: int) -> bool:
        """Return whether no row was removed since an earlier version.

        If the table's log does not reach back so far, that is not known, and the answer is False.
        """
        commits = self.version - version
        if commits < 0:
            return False
        if not commits:
            return True
        with reading(self.url):
            found = self._table.history(limit=commits)
        since = [one for one in found if one["version"] > version]
        return len(since) == commits and all(_keeps_rows(one) for one in since)

    def servers(self) -> set[str]:
        """Return the ids of all servers that have shipped to the table."""
        last = f"/{register('', REGISTERS[-1]).rsplit('/', 1)[1]}"
        with reading(self.url):
            ids = set(self._transactions())
        return {one[len(PREFIX) : -len(last)] for one in ids if one.startswith(PREFIX) and one.endswith(last)}

    def dataset(self, files: Sequence[DataFile]) -> ds.Dataset:
        """Return the rows of some files, with all columns of the table."""
        import pyarrow.dataset as ds

        schema = SCHEMAS[self.name]
        form = ds.ParquetFileFormat()
        fragments = [
            form.make_fragment(one.path, self.filesystem, partition_expression=_partition(one))
            for one in files
        ]
        return ds.FileSystemDataset(fragments, schema, form, self.filesystem)

    def _open(self, version: int | None) -> DeltaTable:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with reading(self.url):
            try:
                return DeltaTable(self.url, version=version, storage_options=self._options or None)
            except TableNotFoundError:
                raise LogError(
                    f'table "{self.url}" does not exist; name the url that [delta] url of `scorer ship` '
                    "names, and ship to it first"
                ) from None

    def _files(self, table: DeltaTable) -> Sequence[DataFile]:
        import pyarrow as pa

        with reading(self.url):
            rows = pa.table(table.get_add_actions(flatten=True))
        return [] if not len(rows) else list(_data_files(rows))

    @cached_property
    def filesystem(self) -> Any:
        """The storage of the table, with paths below the table."""
        return table_storage(self._table.table_uri, self._options, self._settings.timeout_seconds)

    def _transactions(self) -> Iterator[str]:
        """Yield the ids of the transactions in the table's log, which deltalake returns only by their id."""
        import pyarrow.fs as pa_fs
        import pyarrow.parquet as pq

        names = [one.base_name for one in self.filesystem.get_file_info(pa_fs.FileSelector(_LOG))]
        checkpoints = [one for one in names if one.endswith(".parquet") and ".checkpoint" in one]
        newest = max((one[:20] for one in checkpoints), default="")
        for name in checkpoints:
            if name.startswith(newest):
                with self.filesystem.open_input_file(f"{_LOG}/{name}") as file:
                    column = pq.read_table(file, columns=["txn"])["txn"].drop_null()
                yield from (one["appId"] for one in column.to_pylist())
        for name in names:
            if name.endswith(".json") and len(name) == 25 and name[:20] > newest:
                with self.filesystem.open_input_stream(f"{_LOG}/{name}") as file:
                    lines = file.read().decode().splitlines()
                yield from (json.loads(one)["txn"]["appId"] for one in lines if one.startswith('{"txn"'))


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Convert errors of deltalake, DuckDB and the storage to one-line errors of the log.

    Args:
        url: Address of the table.
    """
    import duckdb
    import pyarrow as pa
    from deltalake.exceptions import DeltaError, DeltaProtocolError

    try:
        yield
    except DeltaProtocolError as error:
        raise LogError(
            f'table "{url}" cannot be read by this version of scorer: {one_line(error)}; upgrade scorer'
        ) from None
    except FileNotFoundError as error:
        raise LogError(
            f'table "{url}": a file is missing: {one_line(error)}; if it was removed while it was read, '
            "raise [delta] keep_hours of `scorer ship`, otherwise restore it"
        ) from None
    except (OSError, DeltaError, ValueError, pa.ArrowException, duckdb.Error) as error:
        remedy = "check the url and the credentials"
        if not any(part in str(error) for part in FINAL):
            remedy = "check the storage, or restore the file"
        raise LogError(f'table "{url}" cannot be read: {one_line(error)}; {remedy}') from None


def _keeps_rows(commit: Mapping[str, Any]) -> bool:
    if commit["operation"] == "WRITE":
        return bool(commit["operationParameters"].get("mode") == "Append")
    return commit["operation"] in _KEEPS_ROWS


def _partition(file: DataFile) -> ds.Expression:
    import pyarrow.compute as pc

    checkpoint = pc.field("checkpoint")
    own = checkpoint.is_null() if file.checkpoint is None else checkpoint == file.checkpoint
    return own & (pc.field("hour") == file.hour)


def _data_files(rows: pa.Table) -> Iterator[DataFile]:
    def column(name: str) -> list[Any]:
        return rows[name].to_pylist() if name in rows.column_names else [None] * len(rows)

    names = ("path", "partition.checkpoint", "partition.hour", "min.server", "max.server", "size_bytes")
    for path, checkpoint, hour, first, last, size in zip(*map(column, names), strict=True):
        servers = None if first is None or last is None else (first, last)
        yield DataFile(path, checkpoint, hour, servers, int(size))
