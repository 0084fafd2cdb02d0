"""Numbers of series and labels, and the bins of references, as the file of the rollups keeps them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from scorer.bundle.models import ReferenceFile
from scorer.errors import ScorerError
from scorer.ids import SCHEME
from scorer.release.timeseries.batch import OUTCOME, SeriesName
from scorer.release.timeseries.cells import LABEL, LABELS, OTHER_LABELS, SCORE_BINS
from scorer.stats.distances import ReferenceBins, reference_bins

_RETRY_SECONDS: Final = 300.0
NONE: Final = 0
"""Number of no series."""


class References:
    """The merged bins of the bundles' references, which the gates' `score_psi` is defined by.

    Args:
        local: Returns the directory of a bundle by its digest.
    """

    def __init__(self, local: Callable[[str], Path]) -> None:
        self._local = local
        self._known: dict[str, ReferenceBins] = {}
        self._failed: dict[str, float] = {}

    def of(self, digest: str) -> ReferenceBins | None:
        """Return the bins of a bundle; None if it cannot be read now, which is tried again later."""
        found = self._known.get(digest)
        if found is not None or time.monotonic() - self._failed.get(digest, -_RETRY_SECONDS) < _RETRY_SECONDS:
            return found
        try:
            text = (self._local(digest) / "reference.json").read_bytes()
            validation = ReferenceFile.model_validate_json(text).validation
            found = reference_bins(validation.counts, validation.edges)
        except (ScorerError, OSError, KeyError, ValidationError):
            self._failed[digest] = time.monotonic()
            return None
        if len(found.counts) > SCORE_BINS:
            self._failed[digest] = float("inf")
            return None
        self._known[digest] = found
        return found


class Names:
    """Looks numbers up in a transaction of the writer, and adds those that are missing."""

    def __init__(self, connection: sqlite3.Connection, references: References) -> None:
        self._connection = connection
        self._references = references
        self._series: dict[SeriesName, int] = {}
        self._names: dict[int, SeriesName] = {}
        self._labels: dict[tuple[str, str], int] = {}

    def series(self, name: SeriesName, at: int) -> int:
        """Return the number of a series, whose first row is at a time in microseconds."""
        if (known := self._series.get(name)) is not None:
            return known
        self._connection.execute(
            "INSERT OR IGNORE INTO series (checkpoint, server, lane, role, bundle, kind, since) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (*name, at),
        )
        (found,) = self._connection.execute(
            "SELECT id FROM series WHERE checkpoint = ? AND server = ? AND lane = ? AND role = ? "
            "AND bundle = ? AND kind = ?",
            name,
        ).fetchone()
        self._series[name] = found
        self._names[found] = name
        return int(found)

    def outcomes_of(self, series: int, at: int) -> tuple[int, str]:
        """Return the series of outcomes of the version whose decisions are in a series, and its kind."""
        if series not in self._names:
            row = self._connection.execute(
                "SELECT checkpoint, server, lane, role, bundle, kind FROM series WHERE id = ?", (series,)
            ).fetchone()
            self._names[series] = SeriesName(*row)
        name = self._names[series]
        outcomes = SeriesName(name.checkpoint, "", "", OUTCOME, name.bundle, name.kind)
        return self.series(outcomes, at), name.kind

    def unknown(self, checkpoint: str, at: int) -> int:
        """Return the series of a checkpoint's outcomes whose version is not known."""
        return self.series(SeriesName(checkpoint, "", "", OUTCOME, "", ""), at)

    def by_token(self, checkpoint: str, prefix: str, kind: str, at: int) -> int:
        """Return the series of outcomes of the version that a decision token names; `NONE` if unknown."""
        row = self._connection.execute(
            "SELECT bundle FROM series WHERE checkpoint = ? AND bundle BETWEEN ? AND ? AND kind = ? LIMIT 1",
            (checkpoint, f"{SCHEME}{prefix}", f"{SCHEME}{prefix}g", kind),
        ).fetchone()
        return NONE if row is None else self.series(SeriesName(checkpoint, "", "", OUTCOME, row[0], kind), at)

    def label(self, checkpoint: str, text: str) -> int:
        """Return the code of a decision or action; all beyond the first `LABELS` have one code."""
        if (known := self._labels.get((checkpoint, text))) is not None:
            return known
        query = "SELECT id FROM labels WHERE checkpoint = ? AND name = ?"
        row = self._connection.execute(query, (checkpoint, text)).fetchone()
        if row is None:
            count = "SELECT count(*) FROM labels WHERE checkpoint = ?"
            (number,) = self._connection.execute(count, (checkpoint,)).fetchone()
            if number < LABELS:
                self._connection.execute("INSERT INTO labels VALUES (?, ?, ?)", (checkpoint, number, text))
            row = (number,)
        code = LABEL + row[0] if row[0] < LABELS else OTHER_LABELS
        self._labels[checkpoint, text] = code
        return code

    def bins(self, digest: str) -> ReferenceBins | None:
        """Return the bins of a bundle's reference, kept in the file from the first time on."""
        query = "SELECT edges, counts FROM bins WHERE bundle = ?"
        row = self._connection.execute(query, (digest,)).fetchone()
        if row is not None:
            return bins_of(*row)
        found = self._references.of(digest)
        if found is not None:
            values = digest, json.dumps(found.edges.tolist()), json.dumps(found.counts.tolist())
            self._connection.execute("INSERT INTO bins VALUES (?, ?, ?)", values)
        return found


def bins_of(edges: str, counts: str) -> ReferenceBins:
    """Return the bins of a row of the table `bins`."""
    import numpy as np

    return ReferenceBins(np.array(json.loads(edges), np.float64), np.array(json.loads(counts), np.float64))
