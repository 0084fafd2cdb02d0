"""The texts that a search over change requests looks in: one short text of each, in a table of its own.

A search for a part of a text reads every text, so the texts are short and apart from the other columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, delete, select

from scorer.release.store import tables as t
from scorer.release.store.rows import upsert
from scorer.release.store.searching import Position

DESCRIBED: Final = 300
"""Characters of a description that are searched."""


def text_of(change: str, values: Mapping[str, Any]) -> str:
    """Return what is searched of a change request: its names, and the beginning of its description."""
    names = values["title"], change, values["bundle_name"], values["bundle"]
    return "\n".join((*names, values["description"][:DESCRIBED])).lower()


def keep(connection: Connection, change: str, values: Mapping[str, Any]) -> None:
    """Write the text of a change request.

    Args:
        connection: Connection of the transaction that writes the change request.
        change: Id of the change request.
        values: Its `title`, `bundle_name`, `bundle` and `description`.
    """
    number = connection.execute(_number_of(change)).scalar_one()
    upsert(connection, t.change_texts, {"number": number}, text=text_of(change, values))


def remove(connection: Connection, change: str) -> None:
    """Delete the text of a change request."""
    number = _number_of(change).scalar_subquery()
    connection.execute(delete(t.change_texts).where(t.change_texts.c.number == number))


def matches(text: str) -> ColumnElement[bool]:
    """Return the condition that the text of a change request contains a text, regardless of case."""
    own = t.change_texts.c
    # The sum keeps the database from reading the change requests first and each one's text by its number.
    return (t.changes.c.number == own.number + 0) & (Position(own.text, text.lower()) > 0)


def _number_of(change: str) -> Any:
    return select(t.changes.c.number).where(t.changes.c.id == change)
