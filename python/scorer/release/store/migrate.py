"""Creates a database's tables, or upgrades them, once, however many processes start together."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from scorer.release.errors import PlatformError
from scorer.release.store.tables import GENESIS, audit_head, metadata
from scorer.release.store.triggers import append_only

if TYPE_CHECKING:
    from sqlalchemy import Connection


def migrate(connection: Connection, database: str, *, as_it_is: bool = False) -> None:
    """Create or upgrade the tables in the caller's writing transaction; a second process finds them current.

    Args:
        connection: Of a `Store.write`.
        database: Its name in messages.
        as_it_is: Change nothing, and reject a database that is not current.

    Raises:
        PlatformError: For a database that a newer program has migrated, or that holds something else.
    """
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory
    from sqlalchemy import insert, inspect, text

    with as_file(files("scorer.release.store") / "migrations") as scripts:
        config = Config()
        config.set_main_option("script_location", str(scripts).replace("%", "%%"))
        config.set_main_option("path_separator", "os")
        config.attributes["connection"] = connection
        directory = ScriptDirectory.from_config(config)
        context = MigrationContext.configure(connection)
        found = context.get_current_revision()
        known = {script.revision for script in directory.walk_revisions()}
        if found is not None and found not in known:
            raise PlatformError(
                f"database {database} has schema {found}, which is newer than this program "
                f"(it knows up to {directory.get_current_head()}); start the scorer that migrated it, "
                "or a newer one"
            )
        if found is None and (tables := inspect(connection).get_table_names()):
            raise PlatformError(
                f"database {database} holds tables of something else ({', '.join(sorted(tables)[:3])}, ...); "
                "give the platform an empty database of its own"
            )
        if found == directory.get_current_head():
            return
        if as_it_is:
            raise PlatformError(
                f"database {database} has "
                + (f"schema {found}, older than this program's" if found else "no tables of the platform")
                + "; check the address, or run `scorer platform migrate`"
            )
        if found is not None:
            command.upgrade(config, "head")
            return
        metadata.create_all(connection)
        connection.execute(insert(audit_head).values(id=1, sequence=0, hash=GENESIS))
        for statement in append_only(connection.dialect.name):
            connection.execute(text(statement))
        context.stamp(directory, "head")
