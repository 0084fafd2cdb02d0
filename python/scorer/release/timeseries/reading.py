"""Counts of a checkpoint in a window, added up by lane and version."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from scorer.release.timeseries import cells
from scorer.release.timeseries.batch import ANSWER, OUTCOME
from scorer.release.timeseries.cells import EXEC, ROWS, WIDTH
from scorer.release.timeseries.expiry import DAY, HOUR
from scorer.release.timeseries.file import has_days
from scorer.release.timeseries.names import bins_of
from scorer.release.timeseries.windows import MetricsWindow
from scorer.stats.arrays import Floats
from scorer.stats.distances import ReferenceBins

MOST_VERSIONS: Final = 8
"""Versions that are shown at once: those with the most decisions."""


@dataclass(frozen=True)
class Filters:
    """Which series are meant; empty: all.

    Attributes:
        server: Name of a server.
        lane: Name of a lane; empty: all lanes that answer.
        version: Digest of a bundle.
    """

    server: str = ""
    lane: str = ""
    version: str = ""


@dataclass(frozen=True)
class Series:
    """One row of the table of series."""

    id: int
    server: str
    lane: str
    role: str
    bundle: str
    kind: str
    since: int


@dataclass(frozen=True)
class Line:
    """The counts of one lane and version, `[points, WIDTH]`."""

    lane: str
    bundle: str
    kind: str
    counts: Floats

    @property
    def rows(self) -> Floats:
        """Numbers of decisions or of observations, `[points]`."""
        return self.counts[:, ROWS]


@dataclass(frozen=True)
class VersionOutcomes:
    """What became of the decisions of one version, `[points]` each.

    `matured` and `matured_positive` are of the cells that ended before the time of maturity.
    """

    bundle: str
    rows: Floats
    reported: Floats
    positive: Floats
    unproven: Floats
    matured: Floats
    matured_positive: Floats


@dataclass(frozen=True)
class Counts:
    """Everything that the figures are made of."""

    lines: Sequence[Line]
    outcomes: Sequence[VersionOutcomes]
    unplaced: int
    """Decisions of the window by the report of their outcome, whose version is not known."""
    left_out: int
    """Versions beyond `MOST_VERSIONS`."""
    labels: Sequence[str]
    references: dict[str, ReferenceBins]


def series_of(connection: sqlite3.Connection, checkpoint: str) -> list[Series]:
    """Return every series of a checkpoint, the oldest first."""
    query = "SELECT id, server, lane, role, bundle, kind, since FROM series WHERE checkpoint = ? ORDER BY id"
    return [Series(*row) for row in connection.execute(query, (checkpoint,))]


def read(
    connection: sqlite3.Connection,
    checkpoint: str,
    every: Sequence[Series],
    window: MetricsWindow,
    filters: Filters,
    matured_before: dict[str, int],
) -> Counts:
    """Read the counts of a window.

    Args:
        connection: The file of the rollups.
        checkpoint: Name of the checkpoint.
        every: Its series.
        window: The window.
        filters: Which series are meant. Outcomes are counted by version alone.
        matured_before: By kind of bundle, decisions before this time have their final outcome, microseconds.
    """
    found = _Cells(connection, window, matured_before)
    chosen = [one for one in every if one.role != OUTCOME and _is_meant(one, filters)]
    chosen.sort(key=lambda one: one.bundle)
    kept: list[tuple[float, list[Line]]] = []
    left_out = 0
    for _, group in groupby(chosen, key=lambda one: one.bundle):
        lines = found.lines(list(group))
        if not lines:
            continue
        kept.append((sum(float(line.rows.sum()) for line in lines), lines))
        if len(kept) > MOST_VERSIONS:
            # Removed while reading, so that memory is bounded whatever the number of versions.
            kept.remove(min(kept, key=lambda one: one[0]))
            left_out += 1
    lines = [line for _, own in kept for line in own]
    since = {one.bundle: one.since for one in reversed(every) if one.role != OUTCOME}
    lines.sort(key=lambda line: (since[line.bundle], line.bundle, line.lane))
    shown = list(dict.fromkeys((line.bundle, line.kind) for line in lines))
    outcomes = [_outcomes(found, every, bundle) for bundle, _ in shown]
    unknown, _ = found.first([one for one in every if one.role == OUTCOME and not one.bundle])
    rows = connection.execute("SELECT name FROM labels WHERE checkpoint = ? ORDER BY id", (checkpoint,))
    return Counts(
        lines=lines,
        outcomes=outcomes,
        unplaced=int(unknown[:, cells.UNPLACED].sum()),
        left_out=left_out,
        labels=[row[0] for row in rows],
        references=_references(connection, [bundle for bundle, _ in shown]),
    )


def _is_meant(one: Series, filters: Filters) -> bool:
    lane = one.lane == filters.lane if filters.lane else one.role == ANSWER
    return lane and filters.server in ("", one.server) and filters.version in ("", one.bundle)


class _Cells:
    """The cells of a window. Each series is read once, and all but its first codes added up at once.

    Args:
        connection: The file of the rollups.
        window: The window.
        matured_before: By kind of bundle, the time of maturity, microseconds.
    """

    def __init__(
        self, connection: sqlite3.Connection, window: MetricsWindow, matured_before: dict[str, int]
    ) -> None:
        self._connection, self._window, self._before = connection, window, matured_before
        self._spans = _spans(window, matured_before.values() if has_days(connection) else None)
        self._first: dict[int, tuple[Floats, Floats]] = {}

    def lines(self, own: list[Series]) -> list[Line]:
        """Return the lines of the series of one version."""
        found = []
        own.sort(key=lambda one: (one.lane, one.kind))
        for (lane, kind), group in groupby(own, key=lambda one: (one.lane, one.kind)):
            of_lane = list(group)
            total = np.zeros((self._window.points, WIDTH))
            count = sum(self._add(one, total) for one in of_lane)
            if count:
                found.append(Line(lane, of_lane[0].bundle, kind, total))
        return found

    def first(self, series: Sequence[Series]) -> tuple[Floats, Floats]:
        """Return the sums of the codes below `EXEC`, `[points, EXEC]`, of all cells and of matured ones."""
        every, matured = np.zeros((2, self._window.points, EXEC))
        for one in series:
            if one.id not in self._first:
                self._add(one, None)
            if one.id in self._first:
                every, matured = every + self._first[one.id][0], matured + self._first[one.id][1]
        return every, matured

    def _add(self, one: Series, total: Floats | None) -> int:
        window = self._window
        place = "step = ? AND series = ? AND at >= ? AND at < ?"
        query = f"SELECT at + step, at, codes, counts FROM cells WHERE {place}"  # noqa: S608 - a constant
        # One series at a time, so that memory is bounded by one.
        rows = [
            row
            for step, begin, end in self._spans
            for row in self._connection.execute(query, (step, one.id, begin, end))
        ]
        if not rows:
            return 0
        ends, starts = (np.array([row[place] for row in rows], dtype=np.int64) for place in (0, 1))
        places = (starts - window.start) // window.step
        blobs = [row[2:] for row in rows]
        if total is not None:
            total += cells.added(blobs, places, window.points, WIDTH)
        is_matured = ends <= self._before.get(one.kind, 0)
        early = [blob for blob, is_early in zip(blobs, is_matured, strict=True) if is_early]
        self._first[one.id] = (
            cells.added(blobs, places, window.points, EXEC),
            cells.added(early, places[is_matured], window.points, EXEC),
        )
        return len(rows)


def _spans(window: MetricsWindow, matured: Iterable[int] | None) -> list[tuple[int, int, int]]:
    """Return the length, start and end of the cells that are read, microseconds.

    Where a point is a day, cells of days are read. Of a day that contains the end of the window or a time of
    maturity, cells of hours are read, so that the result is the same as from hours alone.

    Args:
        window: The window.
        matured: Times of maturity, microseconds; None: the file has no cells of days.
    """
    if matured is None or window.step % DAY:
        return [(window.cell, window.start, window.end)]
    found, start = [], window.start
    for at in sorted({window.end, *matured}):
        day = at // DAY * DAY
        if at == day or not start <= day < window.end:
            continue
        found += [(DAY, start, day), (HOUR, day, min(day + DAY, window.end))]
        start = day + DAY
    return [*found, (DAY, start, window.end)]


def _outcomes(read_cells: _Cells, every: Sequence[Series], bundle: str) -> VersionOutcomes:
    rows, early = read_cells.first([one for one in every if one.bundle == bundle and one.role == ANSWER])
    found, settled = read_cells.first([one for one in every if one.bundle == bundle and one.role == OUTCOME])
    return VersionOutcomes(
        bundle=bundle,
        rows=rows[:, ROWS],
        reported=found[:, cells.REPORTED],
        positive=found[:, cells.POSITIVE],
        unproven=found[:, cells.UNPROVEN],
        matured=early[:, ROWS],
        matured_positive=settled[:, cells.POSITIVE],
    )


def _references(connection: sqlite3.Connection, bundles: Sequence[str]) -> dict[str, ReferenceBins]:
    query = "SELECT edges, counts FROM bins WHERE bundle = ?"
    rows = {bundle: connection.execute(query, (bundle,)).fetchone() for bundle in bundles}
    return {bundle: bins_of(*row) for bundle, row in rows.items() if row is not None}
