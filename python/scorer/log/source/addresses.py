"""Sources by their addresses: directories of servers, and tables of `scorer ship`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from scorer.errors import LogError
from scorer.log.reading import Advance
from scorer.log.source.delta import DeltaSource
from scorer.log.source.directories import log_directories
from scorer.log.source.interface import DecisionSource, LogPass, ReadPosition, ServerLog, SourceQuery
from scorer.log.source.settings import SourceSettings

TABLE: Final = "delta:"
"""Begin of an address of shipped tables: `delta:` and the directory or URL below which they are."""


def decision_source(
    addresses: Sequence[str | Path], base: Path | None = None, settings: SourceSettings | None = None
) -> DecisionSource:
    """Return the source that reads these logs and tables.

    Args:
        addresses: Directories that servers write, which need not exist, and addresses of shipped tables.
        base: Directory that relative paths start from; default: the working directory.
        settings: How tables are read; default: the defaults.

    Raises:
        LogError: There is no address, one is given twice, or a package is missing.
    """
    texts = [str(one) for one in addresses]
    directories = [one for one in texts if not one.startswith(TABLE)]
    tables = [_table_url(one, base) for one in texts if one.startswith(TABLE)]
    for url in tables:
        if tables.count(url) > 1:
            raise LogError(f'table "{url}" is given twice; name each table once')
    sources: list[DecisionSource] = [log_directories(directories, base)] if directories or not tables else []
    sources += [DeltaSource(url, settings or SourceSettings()) for url in tables]
    return sources[0] if len(sources) == 1 else SeveralSources(tuple(sources))


def _table_url(address: str, base: Path | None) -> str:
    url = address.removeprefix(TABLE).rstrip("/")
    if not url:
        raise LogError(
            f'log "{address}" names no table; write "{TABLE}" and the directory or URL that [delta] url of '
            "`scorer ship` names"
        )
    return url if "://" in url else str((base or Path()) / Path(url).expanduser())


@dataclass(frozen=True)
class SeveralSources:
    """The logs of several sources.

    Attributes:
        sources: The sources.
    """

    sources: tuple[DecisionSource, ...]

    @cached_property
    def logs(self) -> Sequence[ServerLog]:
        """All logs. Tables that cannot be read are one log that cannot be read."""
        found: list[ServerLog] = []
        for source in self.sources:
            try:
                found += source.logs
            except LogError as error:
                found.append(_Unreadable(getattr(source, "url", "source"), str(error)))
        return found


@dataclass(frozen=True)
class _Unreadable:
    """A table that cannot be read, as a log.

    Attributes:
        name: Address of the table.
        error: Why it cannot be read.
    """

    name: str
    error: str

    @property
    def erasures(self) -> str:
        raise LogError(self.error)

    def read(
        self, query: SourceQuery, after: ReadPosition | None = None, advance: Advance | None = None
    ) -> LogPass:
        raise LogError(self.error)
