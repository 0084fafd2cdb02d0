"""Creation and upgrade of a database's tables, safe when several processes start at the same time."""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import TYPE_CHECKING

from scorer.release.errors import PlatformError
from scorer.release.store.tables import GENESIS, audit_head, metadata
from scorer.release.store.triggers import append_only

if TYPE_CHECKING:
    from sqlalchemy import Connection


def migrate(connection: Connection, database: str, *, as_it_is: bool = False) -> None:
    """Create or upgrade the tables in the caller's transaction; do nothing if they are current.

    Args:
        connection: Connection of a `Store.write`.
        database: Name of the database in messages.
        as_it_is: Whether to change nothing, and reject a database that is not current.

    Raises:
        PlatformError: A newer program has migrated the database, or it contains other tables.
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
                f"database {database} has schema {found}, which is newer than this program's schema "
                f"{directory.get_current_head()}; start the scorer that migrated it, or a newer one"
            )
        if found is None and (tables := inspect(connection).get_table_names()):
            raise PlatformError(
                f"database {database} has tables of another program ({', '.join(sorted(tables)[:3])}, ...); "
                "give the platform an empty database"
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
