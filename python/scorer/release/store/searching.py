"""Search for a part of a text, on both engines."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, cast, func, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement


class Position(FunctionElement[int]):
    """Position of the second text in the first one, from 1; 0: it is not there. Case matters.

    It takes a third of the time of LIKE, which decodes each character.
    """

    type = Integer()
    inherit_cache = True
    name = "position"


@compiles(Position, "sqlite")
def _in_sqlite(element: Position, compiler: SQLCompiler, **more: Any) -> str:
    return f"instr({compiler.process(element.clauses, **more)})"


@compiles(Position, "postgresql")
def _in_postgresql(element: Position, compiler: SQLCompiler, **more: Any) -> str:
    return f"strpos({compiler.process(element.clauses, **more)})"


def contains(text: str, *columns: ColumnElement[Any]) -> ColumnElement[bool]:
    """Return the condition that one of some columns contains a text, regardless of the case of ASCII letters.

    Args:
        text: The text.
        columns: Columns that are not NULL, or that need not be found where they are.
    """
    whole: ColumnElement[str] = func.coalesce(cast(columns[0], Text), "")
    for column in columns[1:]:
        # A line break, so that nothing is found across two columns.
        whole = whole.concat(literal("\n")).concat(func.coalesce(cast(column, Text), ""))
    return Position(func.lower(whole), text.lower()) > 0
