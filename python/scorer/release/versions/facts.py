"""Facts about versions that are slow to read and never change: lineages, and figures of final reports."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sqlalchemy import Connection, select

from scorer.release.errors import PlatformError, UnreachableError
from scorer.release.store import micros
from scorer.release.store import tables as t
from scorer.release.versions import lineage
from scorer.release.versions.lineage import Facts

if TYPE_CHECKING:
    from scorer.release.bundles import Bundles

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_KEPT = 5000


@dataclass(frozen=True, slots=True)
class ReportFigures:
    """Numbers of a final report."""

    rows: int
    p99_us: float | None


class Kept(Generic[K, V]):
    """The newest values of a function of immutable things, at most 5000."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, and make it if it is not kept."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > _KEPT:
                self._values.popitem(last=False)
        return value


class FactBook:
    """Reads lineages and reports once and keeps what lists show of them.

    Args:
        bundles: Bundles, whose manifests contain the lineages.
    """

    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles
        self._lineages: Kept[str, Facts] = Kept()
        self._reports: Kept[tuple[str, int], ReportFigures] = Kept()

    def lineages(self, digests: Collection[str]) -> Mapping[str, Facts]:
        """Return the metrics and parameters of bundles, by digest.

        Bundles that the registry does not have are absent. So are all further ones once it does not respond:
        a list without their metrics is better than one that waits for each.
        """
        found = {}
        for digest in digests:
            try:
                found[digest] = self._lineages.get(digest, partial(self._read, digest))
            except UnreachableError:
                break
            except PlatformError:
                continue
        return found

    def _read(self, digest: str) -> Facts:
        return lineage.read(self._bundles.manifest(digest).get("lineage") or {})

    def reports(self, connection: Connection, changes: Sequence[str]) -> Mapping[str, ReportFigures]:
        """Return the figures of the final reports of change requests, by change request."""
        r = t.readouts.c
        found: dict[str, ReportFigures] = {}
        for start in range(0, len(changes), 500):
            part = changes[start : start + 500]
            for row in connection.execute(select(r.change, r.at).where(r.change.in_(part))).all():
                # A report that is finished again has another time.
                key = (row.change, micros(row.at))
                found[row.change] = self._reports.get(key, partial(_figures, connection, row.change))
        return found


def _figures(connection: Connection, change: str) -> ReportFigures:
    query = select(t.readouts.c.document).where(t.readouts.c.change == change)
    document: Mapping[str, Any] = connection.execute(query).scalar_one()
    execution = (document.get("summary") or {}).get("execution") or {}
    return ReportFigures(int(document["rows"]), (execution.get("shadow") or {}).get("p99"))
