"""The directories of the decision logs that this machine can read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.log.segments import log_identity

if TYPE_CHECKING:
    from scorer.release.fleet.calls import Fleet


def log_directories(fleet: Fleet, shared: Path | None = None) -> Mapping[str, Path]:
    """Return the directories of logs by the name of their server, those of servers that answer first.

    Args:
        fleet: The servers. A server's own setting has precedence over the shared directory.
        shared: Directory with a log for each server, in a subdirectory with the server's name. The log of a
            server that is no longer in the fleet is read as well.
    """
    pool = {member.name for member in fleet.members if member.role != "live"}
    found = dict(_subdirectories(shared)) if shared is not None else {}
    found |= {member.name: member.log for member in fleet.members if member.log is not None}
    # The decisions of servers that answer are needed for the observations of the pool.
    return dict(sorted(found.items(), key=lambda one: (one[0] in pool, one[0])))


def _subdirectories(shared: Path) -> list[tuple[str, Path]]:
    try:
        return [(path.name, path) for path in shared.iterdir() if log_identity(path) is not None]
    except OSError:
        # It is not mounted at present, or there is no server yet.
        return []
