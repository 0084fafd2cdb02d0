"""Decision tables in the text of a rule set, with the place of each cell."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any, Final

from scorer.release.rule_answers import TableCell, TableGrid

_TABLES: Final = 200
_CELLS: Final = 20_000
"""Tables and cells beyond which no grid is returned."""
_STRING: Final = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
_HEADER: Final = re.compile(
    r"^[ \t]*\[\[?[ \t]*([A-Za-z0-9_\"'. -]+?)[ \t]*\]\]?[ \t]*(?:#.*)?$", re.MULTILINE
)
_ARRAYS: Final = {
    key: re.compile(rf"^[ \t]*{key}[ \t]*=[ \t]*(?=\[)", re.MULTILINE)
    for key in ("inputs", "outputs", "rows")
}
_Span = tuple[int, int]
"""Begin and end of a part of the text, in characters."""


def table_grids(text: str) -> Sequence[TableGrid]:
    """Return the decision tables of a rule set.

    Args:
        text: The TOML text.

    Returns:
        The tables in their order; empty if the text is not valid TOML, has too many tables or cells, or
        writes a table in a form that a grid cannot replace.
    """
    try:
        written = tomllib.loads(text).get("tables", [])
    except tomllib.TOMLDecodeError:
        return ()
    try:
        if len(written) > _TABLES or sum(len(row) for one in written for row in one["rows"]) > _CELLS:
            return ()
        places = _arrays(text)
        if len(places) != len(written):
            return ()
        return tuple(_grid(text, one, place) for one, place in zip(written, places, strict=True))
    except (KeyError, TypeError, ValueError):
        return ()


def _grid(text: str, table: dict[str, Any], spans: dict[str, _Span]) -> TableGrid:
    for key in ("inputs", "outputs"):
        if tomllib.loads(f"cells = {text[slice(*spans[key])]}")["cells"] != table[key]:
            raise ValueError("the scan of the array differs from the parsed text")
    rows = _split(text, *spans["rows"])
    cells = [[_cell(text, *cell) for cell in _split(text, *row)] for row in rows]
    values = [[tomllib.loads(f"cell = {cell.text}")["cell"] for cell in row] for row in cells]
    if values != table["rows"]:
        raise ValueError("the scan of the array differs from the parsed text")
    return TableGrid(
        id=str(table["id"]),
        hit=str(table.get("hit", "first")),
        inputs=tuple(map(str, table["inputs"])),
        outputs=tuple(map(str, table["outputs"])),
        rows=tuple(map(tuple, cells)),
        inputs_at=spans["inputs"],
        outputs_at=spans["outputs"],
        rows_at=spans["rows"],
    )


def _cell(text: str, begin: int, end: int) -> TableCell:
    before = text[:begin]
    return TableCell(text[begin:end], before.count("\n") + 1, begin - before.rfind("\n"))


def _arrays(text: str) -> list[dict[str, _Span]]:
    """Return begin and end of the arrays of each table."""
    blank = masked(text)
    # A row of an array that stands alone in its line looks like the header of a table, and not like one of
    # an array of tables.
    headers = [one for one in _HEADER.finditer(blank) if one[0].strip().startswith("[[")]
    found = []
    for header, following in zip(headers, [*headers[1:], None], strict=True):
        if header[1] != "tables":
            continue
        end = len(text) if following is None else following.start()
        arrays = {key: pattern.search(blank, header.end(), end) for key, pattern in _ARRAYS.items()}
        spans = {key: (one.end(), _closing(blank, one.end())) for key, one in arrays.items() if one}
        if len(spans) == len(_ARRAYS):
            found.append(spans)
    return found


def masked(text: str) -> str:
    """Return a text of the same length without the content of strings and comments."""
    return _STRING.sub(lambda one: re.sub(r"[^\n]", "_" if one[0][0] != "#" else " ", one[0]), text)


def _closing(blank: str, begin: int) -> int:
    """Return the position after the bracket that closes the one at the beginning."""
    depth = 0
    for at in range(begin, len(blank)):
        depth += (blank[at] in "[{") - (blank[at] in "]}")
        if depth == 0:
            return at + 1
    raise ValueError("the array is not closed")


def _split(text: str, begin: int, end: int) -> list[_Span]:
    """Return begin and end of the elements of an array."""
    blank = masked(text)
    found, depth, start = [], 0, begin + 1
    for at in range(begin + 1, end):
        is_end = at == end - 1
        if is_end or (blank[at] == "," and depth == 0):
            part = blank[start:at]
            if part.strip():
                left = start + len(part) - len(part.lstrip())
                found.append((left, left + len(part.strip())))
            start = at + 1
        depth += (blank[at] in "[{") - (blank[at] in "]}")
    return found
