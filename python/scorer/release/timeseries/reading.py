"""Counts of a checkpoint in a window, added up by lane and version."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

import numpy as np

from scorer.release.timeseries import cells
from scorer.release.timeseries.batch import ANSWER, OUTCOME
from scorer.release.timeseries.cells import ROWS, WIDTH
from scorer.release.timeseries.names import bins_of
from scorer.release.timeseries.windows import Window
from scorer.stats.arrays import Floats, Ints
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
        """Decisions or observations, `[points]`."""
        return self.counts[:, ROWS]


@dataclass(frozen=True)
class Outcomes:
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
    outcomes: Sequence[Outcomes]
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
    window: Window,
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
    chosen = [one for one in every if one.role != OUTCOME and _is_meant(one, filters)]
    chosen.sort(key=lambda one: one.bundle)
    kept: list[tuple[float, list[Line]]] = []
    left_out = 0
    for _, group in groupby(chosen, key=lambda one: one.bundle):
        lines = _lines(connection, list(group), window)
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
    outcomes = [
        _outcomes(connection, every, bundle, window, matured_before[kind]) for bundle, kind in shown if kind
    ]
    unknown = [one.id for one in every if one.role == OUTCOME and not one.bundle]
    unplaced = _sums(connection, unknown, window)[0][:, cells.UNPLACED].sum() if unknown else 0
    rows = connection.execute("SELECT name FROM labels WHERE checkpoint = ? ORDER BY id", (checkpoint,))
    return Counts(
        lines=lines,
        outcomes=outcomes,
        unplaced=int(unplaced),
        left_out=left_out,
        labels=[row[0] for row in rows],
        references=_references(connection, [bundle for bundle, _ in shown]),
    )


def _is_meant(one: Series, filters: Filters) -> bool:
    lane = one.lane == filters.lane if filters.lane else one.role == ANSWER
    return lane and filters.server in ("", one.server) and filters.version in ("", one.bundle)


def _lines(connection: sqlite3.Connection, own: list[Series], window: Window) -> list[Line]:
    found = []
    own.sort(key=lambda one: (one.lane, one.kind))
    for (lane, kind), group in groupby(own, key=lambda one: (one.lane, one.kind)):
        of_lane = list(group)
        counts, cell = _sums(connection, [one.id for one in of_lane], window)
        if cell:
            found.append(Line(lane, of_lane[0].bundle, kind, counts))
    return found


def _outcomes(
    connection: sqlite3.Connection, every: Sequence[Series], bundle: str, window: Window, before: int
) -> Outcomes:
    answers = [one.id for one in every if one.bundle == bundle and one.role == ANSWER]
    reports = [one.id for one in every if one.bundle == bundle and one.role == OUTCOME]
    rows, _ = _sums(connection, answers, window)
    found, _ = _sums(connection, reports, window)
    early, _ = _sums(connection, answers, window, before)
    settled, _ = _sums(connection, reports, window, before)
    return Outcomes(
        bundle=bundle,
        rows=rows[:, ROWS],
        reported=found[:, cells.REPORTED],
        positive=found[:, cells.POSITIVE],
        unproven=found[:, cells.UNPROVEN],
        matured=early[:, ROWS],
        matured_positive=settled[:, cells.POSITIVE],
    )


def _sums(
    connection: sqlite3.Connection, series: Sequence[int], window: Window, before: int | None = None
) -> tuple[Floats, int]:
    """Add the cells of some series up, `[points, WIDTH]`, and count them.

    Args:
        connection: The file of the rollups.
        series: Numbers of the series.
        window: The window.
        before: Only cells that end before this time, microseconds.
    """
    query = "SELECT at, codes, counts FROM cells WHERE step = ? AND series = ? AND at >= ? AND at < ?"
    end = window.end if before is None else min(window.end, before - window.cell + 1)
    total = np.zeros((window.points, WIDTH))
    found = 0
    for one in series:
        # One series at a time, so that memory is bounded by one.
        rows = connection.execute(query, (window.cell, one, window.start, end)).fetchall()
        if rows:
            at: Ints = np.array([row[0] for row in rows], dtype=np.int64)
            places = (at - window.start) // window.step
            total += cells.added([row[1:] for row in rows], places, window.points)
            found += len(rows)
    return total, found


def _references(connection: sqlite3.Connection, bundles: Sequence[str]) -> dict[str, ReferenceBins]:
    query = "SELECT edges, counts FROM bins WHERE bundle = ?"
    rows = {bundle: connection.execute(query, (bundle,)).fetchone() for bundle in bundles}
    return {bundle: bins_of(*row) for bundle, row in rows.items() if row is not None}
