"""Conversion of rows to dataclasses, and statements that several modules use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Row, Table, and_, insert, select, update

T = TypeVar("T")


def read(kind: type[T], row: Row[Any], **more: Any) -> T:
    """Convert a row to a dataclass: each field from the column of its name.

    Args:
        kind: The dataclass. A field without a column keeps its default.
        row: The row, whose columns have the types of the fields.
        more: Values of further fields, which take precedence over columns.
    """
    columns = {**row._mapping, **more}
    return kind(**{name: columns[name] for name in _names(cast("Any", kind)) if name in columns})


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def row_of(connection: Connection, table: Table, **key: Any) -> Row[Any] | None:
    """Return the row that has these values, or None."""
    return connection.execute(select(table).filter_by(**key)).one_or_none()


def upsert(connection: Connection, table: Table, key: Mapping[str, Any], **values: Any) -> None:
    """Update the row that has these values, or insert it."""
    matches = and_(*(table.c[name] == value for name, value in key.items()))
    if not connection.execute(update(table).where(matches).values(**values)).rowcount:
        connection.execute(insert(table).values(**key, **values))
