"""The Delta tables of a sink: creating and checking them, and the positions in their transaction log."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from scorer.errors import ShipError, SinkUnavailableError
from scorer.log.shipped.position import REGISTERS, ShipPosition
from scorer.log.shipped.schema import DECISIONS, PARTITION, SCHEMAS, VERSION
from scorer.log.shipped.storage import (
    FINAL,
    PREFIX,
    SCHEMA_PROPERTY,
    one_line,
    register,
    schema_version,
    storage_options,
)
from scorer.ship.settings import DeltaSection

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_LEASE: Final = f"{PREFIX}maintenance"
"""Transaction id whose version is the Unix time, in seconds, until which one process maintains a table."""


class ConcurrentCommitError(ShipError):
    """Another commit has set the position of the server since the version that was read."""


class Tables:
    """The tables below one directory or URL.

    Args:
        settings: The settings of the sink.
        server: Id of the server whose positions are read and written.
    """

    def __init__(self, settings: DeltaSection, server: str) -> None:
        self._settings, self._server = settings, server
        self._options = storage_options(settings.url, settings.options, settings.timeout_seconds)

    def url(self, name: str) -> str:
        """Return the address of a table."""
        return f"{self._settings.url.rstrip('/')}/{name}"

    def prepare(self) -> dict[str, ShipPosition | None]:
        """Create the tables that do not exist, check and upgrade the others, and return the position of each.

        Raises:
            ShipError: A table is missing, is another program's, or has a newer schema.
            SinkUnavailableError: The storage does not answer.
        """
        found = {name: self._find(name) for name in SCHEMAS}
        if found[DECISIONS] is not None:
            missing = [name for name, table in found.items() if table is None]
            if missing:
                # The table of decisions is created last, so the others existed.
                raise ShipError(
                    f'table "{self.url(missing[0])}" is missing beside "{self.url(DECISIONS)}"; restore it, '
                    "or ship to "
                    "another url"
                )
        for name, table in found.items():
            if table is None:
                self._create(name)
            else:
                self._upgrade(name, table)
        return {name: self.position(self.load(name)) for name in SCHEMAS}

    def load(self, name: str) -> DeltaTable:
        """Return the newest version of a table, checked.

        Raises:
            ShipError: The table is missing, is another program's, or has a newer schema.
            SinkUnavailableError: The storage does not answer.
        """
        table = self._find(name)
        if table is None:
            raise ShipError(f'table "{self.url(name)}" is gone; restore it, or ship to another url')
        return table

    def position(self, table: DeltaTable) -> ShipPosition | None:
        """Return the position of the server in a version of a table."""
        with _errors(table.table_uri):
            values = {name: table.transaction_version(register(self._server, name)) for name in REGISTERS}
        try:
            return ShipPosition.of(values)
        except ValueError:
            raise ShipError(
                f'table "{table.table_uri}" has an incomplete position of server "{self._server}"; restore '
                "the table"
            ) from None

    def append(self, table: DeltaTable, rows: Any, position: ShipPosition) -> None:
        """Append rows and set the position of the server, in one commit.

        Args:
            table: A version of the table. If another shipper has set the server's position since this
                version, the commit fails.
            rows: The rows; none: only the position is set.
            position: The position after the rows.

        Raises:
            ConcurrentCommitError: Another shipper writes with the server's id, or the commit was made twice.
            SinkUnavailableError: The commit failed. It may have succeeded all the same.
        """
        self._append(table, rows, self._commit(position))

    def lease(self, name: str, seconds: int) -> bool:
        """Reserve the maintenance of a table for this process, by a commit without rows.

        Two compactions that begin at the same version are both committed by deltalake, and every row is then
        there twice. A conflict of two appends with the same transaction id is detected, so one process gets
        the lease.

        Args:
            name: The table.
            seconds: Time after which others may maintain the table if the lease is not given back. The
                process must have ended by then; clocks of servers may differ by less.

        Returns:
            False: another process maintains the table.
        """
        table, now = self.load(name), int(time.time())
        with _errors(table.table_uri):
            until = table.transaction_version(_LEASE)
        if until is not None and until > now:
            return False
        try:
            self._set_lease(table, name, now + seconds)
        except ConcurrentCommitError:
            return False
        return True

    def end_lease(self, name: str) -> None:
        """Give the maintenance of a table back."""
        self._set_lease(self.load(name), name, 0)

    def _set_lease(self, table: DeltaTable, name: str, until: int) -> None:
        from deltalake import CommitProperties, Transaction

        properties = CommitProperties(app_transactions=[Transaction(_LEASE, until)], max_commit_retries=50)
        self._append(table, SCHEMAS[name].empty_table(), properties)

    def _append(self, table: DeltaTable, rows: Any, properties: CommitProperties) -> None:
        from deltalake import PostCommitHookProperties, write_deltalake

        with _errors(table.table_uri):
            write_deltalake(
                table,
                rows,
                mode="append",
                writer_properties=writer_properties(),
                commit_properties=properties,
                # Checkpoints are made by the upkeep.
                post_commithook_properties=PostCommitHookProperties(
                    create_checkpoint=False, cleanup_expired_logs=False
                ),
            )

    def _commit(self, position: ShipPosition) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        registers = [
            Transaction(register(self._server, name), value) for name, value in position.values().items()
        ]
        return CommitProperties(app_transactions=registers, max_commit_retries=50)

    def _find(self, name: str) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with _errors(self.url(name)):
            try:
                table = DeltaTable(self.url(name), storage_options=self._options)
            except TableNotFoundError:
                return None
            metadata = table.metadata()
        _check(self.url(name), metadata.configuration, metadata.partition_columns)
        return table

    def _upgrade(self, name: str, table: DeltaTable) -> None:
        """Add the columns that a table of an earlier version lacks. No file is rewritten; old rows have null.

        The version is set last, so a table that has it has the columns. If another process changes the table
        at the same time, the commit fails as if the storage were busy, and the next attempt finds the change.
        """
        from deltalake.schema import Schema

        with _errors(table.table_uri):
            if schema_version(table.metadata().configuration) == VERSION:
                return
            known = {field.name for field in table.schema().fields}
            missing = [one for one in Schema.from_arrow(SCHEMAS[name]).fields if one.name not in known]
            if missing:
                table.alter.add_columns(missing)
            table.alter.set_table_properties({SCHEMA_PROPERTY: str(VERSION)}, raise_if_not_exists=False)

    def _create(self, name: str) -> None:
        from deltalake import DeltaTable

        with _errors(self.url(name)):
            DeltaTable.create(
                self.url(name),
                SCHEMAS[name],
                # Another server may create it at the same time.
                mode="ignore",
                partition_by=PARTITION,
                name=f"scorer {name}",
                description="Shipped by scorer; docs/log-shipping.md describes the columns.",
                configuration={
                    SCHEMA_PROPERTY: str(VERSION),
                    "delta.appendOnly": "false",
                    "delta.logRetentionDuration": f"interval {self._settings.log_days} days",
                    "delta.deletedFileRetentionDuration": f"interval {self._settings.keep_hours} hours",
                    "delta.checkpointInterval": str(self._settings.compact_commits),
                },
                storage_options=self._options,
                raise_if_key_not_exists=False,
            )


def writer_properties() -> Any:
    """Return the properties of the Parquet files."""
    from deltalake import WriterProperties

    return WriterProperties(compression="ZSTD", compression_level=1, max_row_group_size=65_536)


def _check(url: str, configuration: Mapping[str, str], partition: list[str]) -> None:
    version = schema_version(configuration)
    if version is None or partition != PARTITION:
        raise ShipError(f'table "{url}" is not one of scorer ship; name another url')
    if version > VERSION:
        raise ShipError(
            f'table "{url}" has schema version {version}, which a newer version of scorer wrote; this one '
            "writes "
            f"{VERSION}: upgrade scorer on this host"
        )


@contextmanager
def _errors(url: str) -> Iterator[None]:
    """Convert errors of deltalake and of the storage to errors of the shipper."""
    from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, SchemaMismatchError

    try:
        yield
    except (DeltaProtocolError, SchemaMismatchError) as error:
        raise ShipError(
            f'table "{url}" cannot be written by this version of scorer: {one_line(error)}; upgrade scorer'
        ) from None
    except CommitFailedError as error:
        if "oncurrent transaction" in str(error):
            raise ConcurrentCommitError(
                f'table "{url}": another process ships with the id of this server; give each server an id of '
                "its own"
            ) from None
        raise SinkUnavailableError(f'table "{url}": {one_line(error)}') from None
    except (OSError, DeltaError, ValueError) as error:
        if any(part in str(error) for part in FINAL):
            raise ShipError(f'table "{url}": {one_line(error)}; check the url and the credentials') from None
        raise SinkUnavailableError(f'table "{url}": {one_line(error)}') from None
