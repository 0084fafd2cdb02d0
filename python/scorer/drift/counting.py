"""Counting of log records by hour, each exactly once.

A batch of records and the position in the log that it reaches are one transaction. Of several records of one
decision, the first that is read counts, for as long as the decision is remembered. The contribution of an
outcome is subtracted when a report with a higher precedence replaces it.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from pydantic import ValidationError

from scorer.bundle.models import Feature, ReferenceFile, SchemaFile
from scorer.drift.binning import MISSING, UNSEEN, WIDTH, FeatureBins, bins_of
from scorer.drift.state import add
from scorer.errors import ScorerError
from scorer.ids import decision_key, digest_text
from scorer.log.proof import is_proven, precedence_of
from scorer.log.scanning import WITHDRAWN, Entry
from scorer.stats.arrays import Ints, Rows32
from scorer.stats.distances import ReferenceBins, reference_bins

if TYPE_CHECKING:
    from scorer.drift.settings import DriftSettings
    from scorer.v1.log_pb2 import DecisionRecord, OutcomeRecord

HOUR_US: Final = 3_600_000_000
DELAYS: Final = (1, 6, 24, 72, 168, 336, 720, 1440, 2160)
"""Ends of the bins of delays of outcomes, hours; later ones are in the last bin."""
SCORES: Final = 16
FALLBACK: Final = SCORES
LABEL: Final = 32
LABELS: Final = 64
STATE_WIDTH: Final = LABEL + LABELS
OUTCOME_WIDTH: Final = (len(DELAYS) + 1) * 2 * SCORES
SEGMENT_COUNTS: Final = 3
"""Counts of a segment: its rows, those with a score in the highest bin, those with a positive outcome."""
ANSWER, OBSERVE = "answer", "observe"
_NO_SCORE: Final = -1
_UNREPORTED: Final = -1
_MOST_SEGMENTS: Final = 1_024
_KEPT: Final = 64


@dataclass(frozen=True)
class CheckpointPlan:
    """What is counted of a checkpoint.

    Attributes:
        outcomes: Kind of outcome by kind of bundle, `score` and `action`.
        include_unproven: Whether an unproven outcome counts.
        segments: Names of the features whose categories are segments.
        matured_hours: By kind of bundle, hours after which the outcome of a decision is final.
    """

    outcomes: Mapping[str, str]
    include_unproven: bool = False
    segments: tuple[str, ...] = ()
    matured_hours: Mapping[str, float] | None = None


class BundleFacts:
    """Features and reference scores of bundles by digest, kept; None for a bundle that cannot be read now.

    Args:
        local: Returns the directory of a bundle by its digest.
    """

    def __init__(self, local: Callable[[str], Path]) -> None:
        self._local = local
        self._features: dict[str, tuple[Feature, ...]] = {}
        self._scores: dict[str, ReferenceBins] = {}

    def features(self, digest: str) -> tuple[Feature, ...] | None:
        """Return the features of a bundle's schema."""
        if digest not in self._features:
            text = self._read(digest, "schema.json")
            if text is None:
                return None
            _keep(self._features, digest, tuple(SchemaFile.model_validate_json(text).features))
        return self._features[digest]

    def scores(self, digest: str) -> ReferenceBins | None:
        """Return the bins of a bundle's reference of scores, with its counts."""
        if digest not in self._scores:
            text = self._read(digest, "reference.json")
            if text is None:
                return None
            validation = ReferenceFile.model_validate_json(text).validation
            _keep(self._scores, digest, reference_bins(validation.counts, validation.edges))
        return self._scores[digest]

    def _read(self, digest: str, name: str) -> bytes | None:
        try:
            return (self._local(digest) / name).read_bytes()
        except (ScorerError, OSError, KeyError, ValidationError):
            return None


def _keep(known: dict[str, Any], digest: str, value: Any) -> None:
    while len(known) >= _KEPT:
        known.pop(next(iter(known)))
    known[digest] = value


class _Row(NamedTuple):
    key: int
    series: int
    at: int
    score: int
    label: int
    is_fallback: bool
    bundle: str
    record: Any


class _Changes:
    """Changes of counts of one kind of cell."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int]] = []
        self._blocks: list[tuple[Ints, Ints, Ints]] = []

    def one(self, series: int, hour: int, code: int, sign: int = 1) -> None:
        self._rows.append((series, hour, code, sign))

    def many(self, series: Ints, hours: Ints, codes: Ints) -> None:
        self._blocks.append((series, hours, codes))

    def apply(self, connection: sqlite3.Connection, kind: str) -> None:
        rows = np.array(self._rows, dtype=np.int64).reshape(-1, 4).T
        parts = [tuple(rows)] + [(*block, np.ones(len(block[0]), np.int64)) for block in self._blocks]
        add(connection, kind, *(np.concatenate(column) for column in zip(*parts, strict=True)))


class BatchCount:
    """Counts one batch of records of a log within a transaction.

    Args:
        connection: The writer's transaction.
        plans: What is counted, by checkpoint; records of other checkpoints are left out.
        bundles: Features and reference scores of bundles.
        settings: Limits.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        plans: Mapping[str, CheckpointPlan],
        bundles: BundleFacts,
        settings: DriftSettings,
    ) -> None:
        self._connection, self._plans, self._bundles = connection, plans, bundles
        self._settings = settings
        self._series: dict[tuple[str, ...], int] = {}
        self._names: dict[tuple[str, str, str], int | None] = {}
        self._checkpoints: dict[int, str] = {}
        self._states, self._outcomes = _Changes(), _Changes()
        self._features, self._segments = _Changes(), _Changes()

    def count(self, entries: Sequence[Entry]) -> None:
        """Count the records in their order."""
        rows: list[_Row] = []
        for entry in entries:
            if (entry.checkpoint or "") not in self._plans:
                continue
            if entry.kind in {"decision", "observation"}:
                row = self._row(entry)
                if row is not None:
                    rows.append(row)
                continue
            if entry.kind in {"outcome", WITHDRAWN} and rows:
                self._decide(rows)
                rows = []
            if entry.kind == "outcome":
                self._report(entry.record)
            elif entry.kind == WITHDRAWN:
                self._withdraw(entry.record)
        self._decide(rows)
        self._begin_features()
        for kind, changes in (
            ("s", self._states),
            ("o", self._outcomes),
            ("f", self._features),
            ("g", self._segments),
        ):
            changes.apply(self._connection, kind)
        for table in ("decisions", "reports"):
            self._connection.execute(
                f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?",  # noqa: S608
                (self._settings.remembered,),
            )

    # --- decisions ---

    def _row(self, entry: Entry) -> _Row | None:
        is_observed = entry.kind == "observation"
        own: DecisionRecord = entry.record.decision if is_observed else entry.record
        if is_observed and entry.record.error:
            return None
        bundle, is_action = digest_text(own.bundle), bool(own.pmf or own.action)
        at = (entry.record.answered_at_us or own.decided_at_us) if is_observed else own.decided_at_us
        role = OBSERVE if is_observed else ANSWER
        name = (own.checkpoint, own.lane, role, bundle, "action" if is_action else "score")
        score = own.expected_reward if is_action else own.score
        is_fallback = bool(own.fallback_reason or own.fallback_source)
        reference = None if is_fallback or not np.isfinite(score) else self._bundles.scores(bundle)
        place = _NO_SCORE if reference is None else int(reference.places(np.array([score]))[0])
        label = own.action if is_action else own.decision
        return _Row(
            key=_key(own.checkpoint, own.lane if is_observed else "", own.decision_id),
            series=self._series_of(name, at),
            at=at,
            score=min(place, SCORES - 1),
            label=self._label(own.checkpoint, label) if label else -1,
            is_fallback=is_fallback,
            bundle=bundle,
            record=own,
        )

    def _decide(self, rows: Sequence[_Row]) -> None:
        """Count decisions, except those that are remembered already."""
        fresh: dict[int, _Row] = {}
        for row in rows:
            if row.key in fresh:
                continue
            query = "SELECT 1 FROM decisions WHERE key = ?"
            if self._connection.execute(query, (row.key,)).fetchone() is None:
                fresh[row.key] = row
        groups: dict[tuple[str, str], list[_Row]] = defaultdict(list)
        for row in fresh.values():
            hour = row.at // HOUR_US
            if row.score >= 0:
                self._states.one(row.series, hour, row.score)
            if row.is_fallback:
                self._states.one(row.series, hour, FALLBACK)
            if row.label >= 0:
                self._states.one(row.series, hour, LABEL + row.label)
            groups[row.record.checkpoint, row.bundle].append(row)
        segments: dict[int, list[int]] = {}
        for (checkpoint, bundle), own in groups.items():
            segments |= self._count_features(checkpoint, bundle, own)
        for row in fresh.values():
            places = segments.get(row.key, [])
            self._connection.execute(
                "INSERT INTO decisions (key, series, at, score, segments, rank, positive, delay) "
                "VALUES (?, ?, ?, ?, ?, ?, 0, 0)",
                (
                    row.key,
                    row.series,
                    row.at,
                    row.score,
                    np.array(places, "<u2").tobytes(),
                    _UNREPORTED,
                ),
            )
            waiting = self._connection.execute(
                "SELECT rank, positive, received FROM reports WHERE key = ?", (row.key,)
            ).fetchone()
            if waiting is not None:
                self._connection.execute("DELETE FROM reports WHERE key = ?", (row.key,))
                self._outcome(row.key, *waiting)

    def _count_features(self, checkpoint: str, bundle: str, rows: Sequence[_Row]) -> dict[int, list[int]]:
        """Count the features of decisions of a bundle; return the segments of each decision by its key."""
        schema = self._bundles.features(bundle)
        if schema is None:
            return {}
        whole = [row for row in rows if len(row.record.features) == len(schema)]
        if not whole:
            return {}
        known = self._bins(checkpoint)
        if any(one.name not in known for one in schema):
            blobs = [
                (checkpoint, bundle, row.series, row.at // HOUR_US, _values(row.record).tobytes())
                for row in whole
            ]
            self._connection.executemany("INSERT INTO early VALUES (?, ?, ?, ?, ?)", blobs)
            return {}
        values = np.stack([_values(row.record) for row in whole])
        series = np.array([row.series for row in whole])
        hours = np.array([row.at // HOUR_US for row in whole])
        self._feature_codes(known, schema, values, series, hours)
        found: dict[int, list[int]] = {row.key: [] for row in whole}
        for name in self._plans[checkpoint].segments:
            at = next((at for at, one in enumerate(schema) if one.name == name), None)
            if at is None:
                continue
            bins = known[name][1]
            for row, code in zip(whole, bins.codes(values[:, at]).tolist(), strict=True):
                text = "missing" if code == MISSING else bins.label(code)
                place = self._name(checkpoint, "segment", f"{name}={text}", _MOST_SEGMENTS)
                if place is not None:
                    found[row.key].append(place)
                    self._segment(row.series, row.at // HOUR_US, place, 0)
                    reference = self._bundles.scores(row.bundle)
                    if reference is not None and row.score == len(reference.counts) - 1:
                        self._segment(row.series, row.at // HOUR_US, place, 1)
        return found

    def _feature_codes(
        self,
        known: Mapping[str, tuple[int, FeatureBins]],
        schema: Sequence[Feature],
        values: Rows32,
        series: Ints,
        hours: Ints,
    ) -> None:
        for at, feature in enumerate(schema):
            number, bins = known[feature.name]
            # A value that the log withholds is infinite here. It is neither present nor missing.
            there = np.flatnonzero(~np.isinf(values[:, at]))
            own = values[there, at]
            self._features.many(series[there], hours[there], number * WIDTH + bins.codes(own))
            new = there[bins.unseen(own)]
            self._features.many(series[new], hours[new], np.full(len(new), number * WIDTH + UNSEEN))

    def _begin_features(self) -> None:
        """Determine the bins of new features once there are enough rows, and count these rows."""
        query = "SELECT checkpoint, bundle, count(*) FROM early GROUP BY checkpoint, bundle"
        for checkpoint, bundle, count in self._connection.execute(query).fetchall():
            schema, known = self._bundles.features(bundle), self._bins(checkpoint)
            if schema is None:
                continue
            missing = [one.name for one in schema if one.name not in known]
            if missing and count < self._settings.reference_rows:
                continue
            place = checkpoint, bundle
            rows = self._connection.execute(
                "SELECT series, hour, features FROM early WHERE checkpoint = ? AND bundle = ? ORDER BY rowid",
                place,
            ).fetchall()
            values = np.stack([np.frombuffer(row[2], np.float32) for row in rows])
            for at, feature in enumerate(schema):
                if feature.name in known:
                    continue
                column = np.where(np.isinf(values[:, at]), np.nan, values[:, at]).astype(np.float32)
                text = json.dumps(_bins_text(bins_of(feature.name, column, feature.categories)))
                self._connection.execute(
                    "INSERT INTO features (checkpoint, name, bins) VALUES (?, ?, ?)",
                    (checkpoint, feature.name, text),
                )
            series, hours = (np.array([row[at] for row in rows]) for at in (0, 1))
            self._feature_codes(self._bins(checkpoint), schema, values, series, hours)
            self._connection.execute("DELETE FROM early WHERE checkpoint = ? AND bundle = ?", place)

    # --- outcomes ---

    def _report(self, record: OutcomeRecord) -> None:
        plan = self._plans[record.checkpoint]
        if record.kind not in plan.outcomes.values():
            return
        if not plan.include_unproven and not is_proven(record.proof):
            return
        key = _key(record.checkpoint, "", record.decision_id)
        rank, positive = precedence_of(record.proof, record.revision), int(record.value > 0.5)
        found = "SELECT 1 FROM decisions WHERE key = ?"
        if self._connection.execute(found, (key,)).fetchone() is not None:
            self._outcome(key, rank, positive, record.received_at_us)
            return
        self._connection.execute(
            "INSERT INTO reports (key, rank, positive, received) VALUES (?, ?, ?, ?) ON CONFLICT (key) DO "
            "UPDATE SET rank = excluded.rank, positive = excluded.positive, received = excluded.received "
            "WHERE excluded.rank > rank",
            (key, rank, positive, record.received_at_us),
        )

    def _outcome(self, key: int, rank: int, positive: int, received: int) -> None:
        """Count the outcome of a remembered decision, in place of an earlier one with a lower rank."""
        query = "SELECT series, at, score, segments, rank, positive, delay FROM decisions WHERE key = ?"
        row = self._connection.execute(query, (key,)).fetchone()
        if row is None or rank <= row[4]:
            return
        series, at, score, segments, before = row[:5]
        if before != _UNREPORTED:
            self._count_outcome(series, at, score, segments, row[5], row[6], -1)
        delay = int(np.searchsorted(DELAYS, max(received - at, 0) / HOUR_US, side="left"))
        self._count_outcome(series, at, score, segments, positive, delay, 1)
        self._connection.execute(
            "UPDATE decisions SET rank = ?, positive = ?, delay = ? WHERE key = ?",
            (rank, positive, delay, key),
        )

    def _count_outcome(
        self, series: int, at: int, score: int, segments: bytes, positive: int, delay: int, sign: int
    ) -> None:
        hour = at // HOUR_US
        # A decision without a score is counted with those in the lowest bin.
        code = (delay * 2 + positive) * SCORES + max(score, 0)
        self._outcomes.one(series, hour, code, sign)
        if positive:
            for place in np.frombuffer(segments, "<u2").tolist():
                self._segment(series, hour, place, 2, sign)

    def _withdraw(self, record: Any) -> None:
        """Forget a withdrawn decision, or outcome. What was counted of the decision itself stays."""
        key = _key(record.checkpoint, "", record.decision_id)
        query = "SELECT series, at, score, segments, rank, positive, delay FROM decisions WHERE key = ?"
        row = self._connection.execute(query, (key,)).fetchone()
        self._connection.execute("DELETE FROM reports WHERE key = ?", (key,))
        if row is None:
            return
        if row[4] != _UNREPORTED:
            self._count_outcome(row[0], row[1], row[2], row[3], row[5], row[6], -1)
            self._connection.execute("UPDATE decisions SET rank = ? WHERE key = ?", (_UNREPORTED, key))

    # --- names ---

    def _segment(self, series: int, hour: int, place: int, count: int, sign: int = 1) -> None:
        self._segments.one(series, hour, place * SEGMENT_COUNTS + count, sign)

    def _bins(self, checkpoint: str) -> dict[str, tuple[int, FeatureBins]]:
        return feature_bins(self._connection, checkpoint)

    def _series_of(self, name: tuple[str, str, str, str, str], at: int) -> int:
        if name not in self._series:
            self._connection.execute(
                "INSERT INTO series (checkpoint, lane, role, bundle, kind, since) VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                (*name, at // HOUR_US),
            )
            (self._series[name],) = self._connection.execute(
                "SELECT id FROM series WHERE checkpoint = ? AND lane = ? AND role = ? AND bundle = ? AND "
                "kind = ?",
                name,
            ).fetchone()
        return self._series[name]

    def _label(self, checkpoint: str, text: str) -> int:
        place = self._name(checkpoint, "label", text, LABELS - 1)
        return LABELS - 1 if place is None else place

    def _name(self, checkpoint: str, what: str, text: str, most: int) -> int | None:
        """Return the place of a name among those of its kind; None beyond the largest number of names."""
        place = checkpoint, what, text
        if place not in self._names:
            names = listed(self._connection, checkpoint, what)
            if text not in names and len(names) < most:
                self._connection.execute("INSERT INTO names (checkpoint, what, name) VALUES (?, ?, ?)", place)
                names.append(text)
            self._names[place] = names.index(text) if text in names else None
        return self._names[place]


def listed(connection: sqlite3.Connection, checkpoint: str, what: str) -> list[str]:
    """Return the labels or segments of a checkpoint in the order of their codes."""
    query = "SELECT name FROM names WHERE checkpoint = ? AND what = ? ORDER BY id"
    return [str(row[0]) for row in connection.execute(query, (checkpoint, what))]


def feature_bins(connection: sqlite3.Connection, checkpoint: str) -> dict[str, tuple[int, FeatureBins]]:
    """Return the number and the bins of each feature of a checkpoint by its name."""
    query = "SELECT id, name, bins FROM features WHERE checkpoint = ? ORDER BY id"
    found = {}
    for number, name, text in connection.execute(query, (checkpoint,)):
        edges, levels, seen = json.loads(text)
        found[name] = number, FeatureBins(name, tuple(edges), tuple(levels), tuple(seen))
    return found


def _bins_text(bins: FeatureBins) -> list[Any]:
    return [list(bins.edges), list(bins.levels), list(bins.seen)]


def _values(record: DecisionRecord) -> Rows32:
    """Return the features of a decision; infinite for a value that the log withholds."""
    values = np.array(record.features, dtype=np.float32)
    values[np.isinf(values)] = np.nan
    if record.withheld:
        places = [at for at in record.withheld if at < len(values)]
        values[[at for at in places if np.isnan(values[at])]] = np.inf
    return values


def _key(checkpoint: str, lane: str, decision_id: str) -> int:
    return decision_key(f"{checkpoint}\0{lane}\0{decision_id}", signed=True)
