"""Merging the decisions of several logs into one list, page by page.

A request that its caller sent to two servers is decided by both, with the same id. The list has it once, as
the earlier decision, which is the one that counts.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scorer.release.errors import InvalidError

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import DecisionRecord

_POSITION = re.compile(r"([0-9a-f]{8})\.([0-9]{1,19})")
_MOST = 1_000
"""Largest number of logs that a cursor has positions of."""


class ListedDecision(NamedTuple):
    """A decision of a log."""

    server: str
    sequence: int
    record: DecisionRecord


def merged(rows: Sequence[ListedDecision]) -> list[ListedDecision]:
    """Return the decisions of one checkpoint, newest first, each id once."""
    firsts: dict[str, ListedDecision] = {}
    for row in sorted(rows, key=lambda one: (one.record.decided_at_us, one.server, one.sequence)):
        firsts.setdefault(row.record.decision_id, row)
    return list(firsts.values())[::-1]


def page(rows: Sequence[ListedDecision], limit: int) -> tuple[list[ListedDecision], list[ListedDecision]]:
    """Return the first decisions of the list, and the rows that the next page begins with.

    Args:
        rows: Decisions of one checkpoint, of each log those that follow its position.
        limit: Number of decisions of a page.
    """
    ordered = merged(rows)
    if len(ordered) <= limit:
        return ordered, []
    last = ordered[limit - 1].record.decided_at_us
    shown = {row.record.decision_id for row in ordered[:limit]}
    # Repeated decisions are left out if they are newer than the page's last one, or if the page has their id.
    rest = [row for row in rows if row.record.decision_id not in shown and row.record.decided_at_us <= last]
    return ordered[:limit], rest


def cursor(positions: Mapping[str, int]) -> str:
    """Return the positions of a list as text: for each log, the sequence that was reached."""
    return "-".join(f"{_code(name)}.{at}" for name, at in positions.items())


def positions(cursor: str | None, names: Sequence[str]) -> dict[str, int | None]:
    """Return the position of a cursor in each log.

    Args:
        cursor: Text of `cursor`; None: the list begins.
        names: Names of the present logs.

    Returns:
        For each log, the sequence that was reached. None is the end of the log; 0 is its beginning, also of a
        log that came after the list had begun.

    Raises:
        InvalidError: The cursor is not one of this list.
    """
    if cursor is None:
        return dict.fromkeys(names)
    parts = cursor.split("-", _MOST)
    matches = [_POSITION.fullmatch(part) for part in parts]
    if len(parts) > _MOST or None in matches:
        raise InvalidError(f'"{cursor[:100]}" is not a position in this list; omit the cursor')
    known = {match[1]: int(match[2]) for match in matches if match}
    return {name: known.get(_code(name), 0) for name in names}


def _code(name: str) -> str:
    return f"{zlib.crc32(name.encode()):08x}"
