"""Where the platform reads the records of its servers: directories of logs, and shipped tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from scorer.log.segments import log_identity
from scorer.log.source.indexed import IndexedLogs

if TYPE_CHECKING:
    from scorer.log.source.locations import TableAccess
    from scorer.log.source.records import RecordSource
    from scorer.release.fleet.calls import Fleet
    from scorer.release.settings import PlatformFile


def record_source(settings: PlatformFile, fleet: Fleet) -> RecordSource:
    """Return the source of the records of all servers.

    Args:
        settings: The settings of the platform.
        fleet: The servers.

    Raises:
        LogError: A package that reads tables is missing.
    """
    own = settings.platform
    directories = IndexedLogs(lambda: log_directories(fleet, own.logs), own.data_dir / "decisions.sqlite")
    access = table_access(settings)
    if access is None:
        return directories
    from scorer.log.source.mixed import MixedRecords
    from scorer.log.source.table_records import TableRecords

    tables = TableRecords(
        settings.tables.urls,
        access.index,
        access.settings,
        names=lambda: {one.shipped_as: one.name for one in settings.fleet if one.shipped_as is not None},
        elsewhere=lambda: directories.logs,
        refresh_seconds=settings.tables.refresh_seconds,
    )
    return MixedRecords(
        (directories, tables), lambda: {one.name for one in fleet.members if one.role != "live"}
    )


def table_access(settings: PlatformFile) -> TableAccess | None:
    """Return how the platform's processes read shipped tables; None: the settings name no table."""
    tables = settings.tables
    if not tables.urls:
        return None
    from scorer.log.source.locations import TableAccess
    from scorer.log.source.settings import SourceSettings

    how = {name: getattr(tables, name) for name in SourceSettings.model_fields}
    # The values of options have been read from the environment already.
    return TableAccess(settings.platform.data_dir / "tables.sqlite", SourceSettings.model_construct(**how))


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
