"""Which servers a pass reads: all of a small fleet, and some of a large one in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from scorer.release.fleet import Member

READS_PER_SECOND: Final = 20.0
"""Statuses that are read per second while nothing changes. Each takes about a millisecond of a core."""
SMALL: Final = 10
"""Number of servers that are all read in every pass."""


class Turns:
    """Keeps the reads of a large fleet at a constant rate while nothing changes.

    A pass reads every server that has not been called since a table was recorded, and every server that
    responds but is not in sync. Of the others it reads those that were read the longest time ago.

    Args:
        seconds: Time between two passes.
    """

    def __init__(self, seconds: float) -> None:
        self._portion = max(1, math.ceil(READS_PER_SECOND * seconds))
        self._number = 0
        self._last: dict[str, tuple[int, Any]] = {}

    def due(self, members: Sequence[Member], behind: Sequence[Member], revisions: Any) -> list[Member]:
        """Return the servers that the next pass reads, in the order of the fleet.

        Args:
            members: The present servers.
            behind: Those that respond and are not in sync.
            revisions: The recorded revisions. A server that was read under others is read now.
        """
        self._number += 1
        known = {member.name: self._last.get(member.name, (0, None)) for member in members}
        due = {member.name for member in members if known[member.name][1] != revisions}
        due |= {member.name for member in behind}
        others = sorted((at, name) for name, (at, _) in known.items() if name not in due)
        due |= {name for _, name in others[: len(members) if len(members) <= SMALL else self._portion]}
        self._last = {
            name: (self._number, revisions) if name in due else last for name, last in known.items()
        }
        return [member for member in members if member.name in due]
