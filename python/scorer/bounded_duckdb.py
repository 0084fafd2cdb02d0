"""A database of DuckDB with bounded memory, which writes the rest to a temporary directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


@contextmanager
def bounded_duckdb(
    memory_bytes: int,
    *,
    directory: Path | None = None,
    tables_on_disk: bool = False,
    threads: int | None = None,
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database, and remove its files at the end.

    Args:
        memory_bytes: Largest memory of the database in bytes.
        directory: Parent of the temporary directory; None for that of the system.
        tables_on_disk: Whether tables are in a file too. Otherwise only the work of queries is.
        threads: Number of threads; None for one per processor.
    """
    import duckdb

    with TemporaryDirectory(prefix="scorer-duckdb-", dir=directory) as path:
        config: dict[str, Any] = {"memory_limit": f"{memory_bytes >> 20}MiB", "temp_directory": path}
        if threads is not None:
            config["threads"] = threads
        file = str(Path(path) / "tables.duckdb") if tables_on_disk else ":memory:"
        connection = duckdb.connect(file, config=config)
        try:
            yield connection
        finally:
            connection.close()
