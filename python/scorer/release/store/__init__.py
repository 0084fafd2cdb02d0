"""The database: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import Connection


class Store:
    """Tables and transactions; made current by alembic when it is opened."""

    def __init__(self, url: str) -> None:
        raise NotImplementedError

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A consistent view; nothing can be written."""
        raise NotImplementedError
        yield

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: all of it or nothing; one writer at a time, on either engine."""
        raise NotImplementedError
        yield

    def close(self) -> None:
        """Lets go of the connections."""
        raise NotImplementedError
