"""Logs by their locations, which a process passes to another one, and what that one needs to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from scorer.errors import LogError
from scorer.log.source.addresses import TABLE
from scorer.log.source.directories import log_directories
from scorer.log.source.settings import SourceSettings

if TYPE_CHECKING:
    from scorer.log.source.directories import LogDirectory
    from scorer.log.source.interface import DecisionSource, ServerLog
    from scorer.log.source.table_logs import TableLog

_VARIABLE: Final = "SCORER_TABLE_ACCESS"


@dataclass(frozen=True)
class TableAccess:
    """How a process reads shipped tables. Credentials are passed in its environment and not in a file.

    Attributes:
        index: File of the index, which the processes share.
        settings: How the tables are read.
    """

    index: Path
    settings: SourceSettings

    def variables(self) -> dict[str, str]:
        """Return the variables of the environment of a child process."""
        return {_VARIABLE: json.dumps({"index": str(self.index), "settings": self.settings.model_dump()})}

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> TableAccess | None:
        """Return what the environment of this process has; None: its parent reads no tables."""
        if _VARIABLE not in environment:
            return None
        found = json.loads(environment[_VARIABLE])
        return cls(Path(found["index"]), SourceSettings.model_construct(**found["settings"]))


def logs_at(
    locations: Sequence[str], access: TableAccess | None, seconds: float
) -> tuple[list[LogDirectory | TableLog], bool]:
    """Return the logs at locations, and whether directories and tables are among them.

    Args:
        locations: Values of `RecordLog.location`.
        access: How tables are read.
        seconds: Longest time to wait until all files of a table are indexed.

    Raises:
        LogError: A table cannot be read within the time.
    """
    directories = [one for one in locations if not one.startswith(TABLE)]
    found: dict[str, LogDirectory | TableLog] = {}
    if directories:
        found |= zip(directories, log_directories(directories).logs, strict=True)
    if len(directories) < len(locations):
        found |= _tables([one for one in locations if one.startswith(TABLE)], access, seconds)
    return [found[one] for one in locations], bool(directories) and len(directories) < len(locations)


def source_at(locations: Sequence[str], access: TableAccess | None) -> DecisionSource:
    """Return the logs at locations as a source of Arrow tables.

    Args:
        locations: Values of `RecordLog.location`.
        access: How tables are read.

    Raises:
        LogError: There is no location, or a location is a table and `access` is None.
    """
    directories = [one for one in locations if not one.startswith(TABLE)]
    logs: list[ServerLog] = list(log_directories(directories).logs) if directories else []
    servers: dict[str, set[str]] = {}
    for one in locations:
        if one.startswith(TABLE):
            url, _, server = one.removeprefix(TABLE).rpartition("#")
            servers.setdefault(url, set()).add(server)
    if servers and access is None:
        raise LogError(
            f'log "{next(iter(servers))}" is a table; only a process of a platform with [tables] reads it'
        )
    for url, names in servers.items():
        from scorer.log.source.delta import DeltaSource

        assert access is not None  # noqa: S101 - checked above
        logs += [log for log in DeltaSource(url, access.settings).logs if log.name in names]
    if not logs:
        raise LogError("no decision log is within reach; give the servers a log, or ship their records")
    return _Logs(tuple(logs))


@dataclass(frozen=True)
class _Logs:
    logs: tuple[ServerLog, ...]


def _tables(locations: Sequence[str], access: TableAccess | None, seconds: float) -> dict[str, TableLog]:
    from scorer.log.source.table_index import TableIndex
    from scorer.log.source.table_logs import TableLog
    from scorer.log.source.table_state import TableFollower

    if access is None:
        raise LogError(
            f'log "{locations[0]}" is a table; only a process of a platform with [tables] reads it'
        )
    index, followers = TableIndex(access.index), dict[str, TableFollower]()
    found = {}
    for one in locations:
        url, _, server = one.removeprefix(TABLE).rpartition("#")
        if url not in followers:
            followers[url] = TableFollower(url, access.settings, index, refresh_seconds=0.0)
            if not followers[url].refresh(seconds, now=True):
                raise LogError(followers[url].problem)
        found[one] = TableLog(server, server, followers[url])
    index.close()
    return found
