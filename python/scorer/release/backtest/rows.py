"""Reading decision logs into the rows of a backtest: labelled decisions with the scores of both bundles.

Logs are read in batches, and each batch is scored by the engine of the server. A row needs some tens of
bytes. If there are more than `most` rows, every second (fourth, ...) decision is kept, by a hash of its id.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from scorer.bundle import Bundle
from scorer.bundle.models import Feature
from scorer.log.columns import ColumnBatch, Columns, DecisionColumns, Ragged, feature_rows
from scorer.log.proof import may_count, precedence
from scorer.log.source.locations import TableAccess, logs_at
from scorer.release.backtest.job import BacktestProgress, Job
from scorer.release.backtest.layout import Layout, schema_of
from scorer.release.backtest.ruling import RuleEffects, RuleSides
from scorer.release.segments.settings import NO_PLAN, SegmentPlan
from scorer.release.segments.split import Codes, SegmentSplit
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

_EVERY: Final = 1.0
"""Interval of progress reports in seconds."""

ReportProgress = Callable[[BacktestProgress], None]


@dataclass(frozen=True)
class Scored(Columns):
    """Decisions of the window, `[n]` each.

    Attributes:
        key: Hash of the decision's id.
        sequence: Number of its record.
        log: Position of its log.
        at: When it was decided, microseconds.
        passed: Whether the payment was let through, so that fraud could happen.
        values: What the bundles computed, by name.
        segments: `[n, s]` codes of the features that rows are split by; -1: missing.
        amount: Of the payment; NaN where there is no such feature.
        id: The decision's id.
    """

    key: npt.NDArray[np.uint64]
    sequence: npt.NDArray[np.uint64]
    log: npt.NDArray[np.int32]
    at: Ints
    passed: Bools
    values: dict[str, Floats]
    segments: Codes
    amount: npt.NDArray[np.float32]
    id: Ragged


@dataclass(frozen=True)
class Labelled:
    """Decisions of the window with their outcome.

    Attributes:
        rows: The decisions.
        outcome: `[n]` the reported outcome; 0 if none was reported before the decision matured.
        segments: Names and levels of the features that define segments.
        labels: Labels of the live bundle, from the lowest band on.
        left_out: Number of skipped decisions by reason.
        lacking: Features of the candidate that no logged row has.
        notes: Other remarks, in sentences.
        plan: How rows are split.
        rules: What the rules of both bundles make of all decisions of the window, also without an outcome.
    """

    rows: Scored
    outcome: Floats
    segments: Sequence[tuple[str, Sequence[str]]]
    labels: Sequence[str]
    left_out: dict[str, int] = field(default_factory=dict)
    lacking: Sequence[str] = ()
    notes: Sequence[str] = ()
    plan: SegmentPlan = NO_PLAN
    rules: RuleEffects | None = None


class Evaluator:
    """Evaluates both bundles on logged rows.

    The values of score bundles are `live`, `candidate`, `live_band` and so on.
    """

    def __init__(self, job: Job) -> None:
        self.candidate = Bundle.load(job.candidate)
        self.live = Bundle.load(job.live)
        self.kind = self.live.kind
        self.rules = RuleSides(self.candidate, self.live)
        self._wanted = schema_of(Path(job.candidate)), schema_of(Path(job.live))
        paths = [Path(job.live), Path(job.candidate), *map(Path, job.others)]
        self._known: dict[int, list[Feature]] = {}
        for path in paths:
            bundle = self.live if str(path) == job.live else None
            fingerprint = (bundle or Bundle.load(path)).schema_fingerprint
            self._known.setdefault(fingerprint, schema_of(path))
        self.layouts = {
            fingerprint: tuple(Layout(logged, wanted) for wanted in self._wanted)
            for fingerprint, logged in self._known.items()
        }
        live = self._wanted[1]
        self.split = SegmentSplit(live, job.segments)
        self._amount = next((at for at, one in enumerate(live) if one.name == job.amount), None)

    def width(self, fingerprint: int) -> int:
        """Return the number of features of a schema, by its fingerprint."""
        return len(self._known[fingerprint])

    def rows(self, fingerprint: int, logged: Rows32) -> tuple[Rows32, Rows32]:
        """Return logged rows in the schema of the candidate and in that of the live bundle."""
        own, live = self.layouts[fingerprint]
        return own(logged), live(logged)

    def amounts(self, live: Rows32) -> npt.NDArray[np.float32]:
        """Return the amount of each row."""
        if self._amount is None:
            return np.full(len(live), np.nan, np.float32)
        return live[:, self._amount].copy()

    @property
    def lacking(self) -> list[str]:
        """Features of the candidate that the live bundle does not log."""
        return self.layouts[self.live.schema_fingerprint][0].lacking


Evaluate = Callable[[Evaluator, DecisionColumns, Rows32, Rows32], tuple[Bools, dict[str, Floats]]]
"""Function from decisions and their rows in both schemas to which are usable, and the values of these."""


def scores(
    own: Evaluator, decisions: DecisionColumns, candidate: Rows32, live: Rows32
) -> tuple[Bools, dict[str, Floats]]:
    """Compute scores and bands of both bundles, and what their rules make of them."""
    one, other = own.candidate.score(candidate), own.live.score(live)
    values = {
        "candidate": one.scores,
        "live": other.scores,
        "candidate_band": one.bands.astype(np.float64),
        "live_band": other.bands.astype(np.float64),
        **own.rules.of_scores(decisions, (candidate, live), (one, other)),
    }
    return np.isfinite(other.scores), values


class Reading:
    """Reads the logs of a job.

    Args:
        job: The job.
        evaluation: The bundles.
        evaluate: Function that computes the values of each batch.
        report: Called with the progress, about once per second.
    """

    def __init__(self, job: Job, evaluation: Evaluator, evaluate: Evaluate, report: ReportProgress) -> None:
        self._job, self._evaluation, self._evaluate, self._report = job, evaluation, evaluate, report
        self._thin = 1
        self._kept: list[Scored] = []
        self._count = 0
        self._reports: list[tuple[npt.NDArray[Any], ...]] = []
        self._withdrawn: dict[int, list[npt.NDArray[np.uint64]]] = defaultdict(list)
        self._left_out: dict[str, int] = defaultdict(int)
        self._reported_at = 0.0
        self._stop_at = time.monotonic() + job.seconds
        self._ran_out = False

    def read(self) -> Labelled:
        """Read every log and join the outcomes."""
        logs, is_mixed = logs_at(list(self._job.logs.values()), TableAccess.of(os.environ), self._job.seconds)
        for place, log in enumerate(logs):
            share = [0.0]

            def advance(done: int, whole: int, share: list[float] = share) -> None:
                share[0] = done / whole if whole else 1.0

            for batch in log.columns(self._job.checkpoint, advance, since_us=self._job.begin, mixed=is_mixed):
                self._take(place, batch)
                self._progress((place + share[0]) / len(logs))
                if time.monotonic() > self._stop_at:
                    self._ran_out = True
                    break
        return self._joined()

    # --- inside ---

    def _take(self, log: int, batch: ColumnBatch) -> None:
        if len(batch.withdrawn):
            self._withdrawn[log].append(batch.withdrawn)
        self._outcomes(log, batch)
        decisions = batch.decisions
        job = self._job
        within = (decisions.at >= job.begin) & (decisions.at < job.end)
        within &= decisions.key % np.uint64(self._thin) == 0
        for fingerprint in np.unique(decisions.fingerprint[within]):
            own = decisions.take(within & (decisions.fingerprint == fingerprint))
            self._score(log, int(fingerprint), own, batch)
        while self._count > job.most:
            self._thin_out()

    def _score(self, log: int, fingerprint: int, decisions: DecisionColumns, batch: ColumnBatch) -> None:
        known = self._evaluation.layouts.get(fingerprint)
        if known is None:
            self._left_out["made with other features than these bundles know"] += len(decisions)
            return
        width = self._evaluation.width(fingerprint)
        whole = decisions.features.counts == width
        if not whole.all():
            self._left_out["logged without features"] += int((~whole).sum())
            decisions = decisions.take(whole)
        if not len(decisions):
            return
        logged = feature_rows(decisions, width)
        own, live = self._evaluation.rows(fingerprint, logged)
        usable, values = self._evaluate(self._evaluation, decisions, own, live)
        passes = np.array([label == self._job.approve for label in batch.labels] or [False])
        found = Scored(
            key=decisions.key,
            sequence=decisions.sequence,
            log=np.full(len(decisions), log, np.int32),
            at=decisions.at,
            passed=passes[decisions.label],
            values=values,
            segments=self._evaluation.split.codes(live),
            amount=self._evaluation.amounts(live),
            id=decisions.id,
        )
        if not usable.all():
            self._left_out["not usable"] += int((~usable).sum())
            found = found.take(usable)
        self._kept.append(found)
        self._count += len(found)

    def _outcomes(self, log: int, batch: ColumnBatch) -> None:
        reports = batch.outcomes
        if self._job.outcome not in batch.kinds:
            return
        wanted = reports.kind == batch.kinds.index(self._job.outcome)
        wanted &= reports.key % np.uint64(self._thin) == 0
        own = reports.take(wanted)
        if len(own):
            logs = np.full(len(own), log, np.int32)
            self._reports.append((own.key, own.value, own.revision, own.proof, own.sequence, logs))

    def _thin_out(self) -> None:
        """Keep half of the decisions, and of their reports."""
        self._thin *= 2
        thin = np.uint64(self._thin)
        self._kept = [one.take(one.key % thin == 0) for one in self._kept]
        self._reports = [tuple(column[one[0] % thin == 0] for column in one) for one in self._reports]
        self._count = sum(map(len, self._kept))

    def _progress(self, share: float) -> None:
        now = time.monotonic()
        if now - self._reported_at >= _EVERY:
            self._reported_at = now
            self._report(BacktestProgress(share, self._count * self._thin))

    def _joined(self) -> Labelled:
        rows = _concatenated(self._kept, len(self._evaluation.split.names))
        rows = rows.take(~self._is_withdrawn(rows.log, rows.sequence))
        self._kept = []
        # If a decision was recorded twice, the first record counts.
        order = np.lexsort((rows.sequence, rows.log, rows.at, rows.key))
        _, first = np.unique(rows.key[order], return_index=True)
        rows = rows.take(np.sort(order[first]))
        values, reported = self._of(rows)
        rules = self._evaluation.rules.effects(rows, values, reported, self._job.outcome, self._job.approve)
        # The outcome of a payment that was declined cannot be known.
        unknown = ~reported & ~rows.passed if self._evaluation.kind == "score" else np.zeros(len(rows), bool)
        if unknown.any():
            self._left_out["stopped by a review or a decline, and without an outcome"] += int(unknown.sum())
        notes = [f"{note[0].upper()}{note[1:]}." for note in self._evaluation.split.notes]
        if self._thin > 1:
            notes.append(f"One in {self._thin} decisions of the window is used.")
        if self._ran_out:
            notes.append(
                f"The logs were not read to their end: {self._job.seconds / 60:g} minutes were over."
            )
        return Labelled(
            rows.take(~unknown),
            values[~unknown],
            self._evaluation.split.levels,
            list(self._evaluation.live.labels),
            {reason: count * self._thin for reason, count in self._left_out.items()},
            self._evaluation.lacking,
            notes,
            self._job.segments,
            rules,
        )

    def _is_withdrawn(self, logs: npt.NDArray[np.int32], sequences: npt.NDArray[np.uint64]) -> Bools:
        """Return which records, by their log and sequence, are withdrawn."""
        gone = np.zeros(len(logs), dtype=bool)
        for log, withdrawn in self._withdrawn.items():
            own = np.flatnonzero(logs == log)
            gone[own] = np.isin(sequences[own], np.concatenate(withdrawn))
        return gone

    def _of(self, rows: Scored) -> tuple[Floats, Bools]:
        """Return the outcome of each row, and whether one was reported."""
        values, reported = np.zeros(len(rows)), np.zeros(len(rows), dtype=bool)
        if not self._reports:
            return values, reported
        key, value, revision, proof, sequence, log = (
            np.concatenate(column) for column in zip(*self._reports, strict=True)
        )
        counts = may_count(proof, self._job.unproven)
        if excluded := int((~counts).sum()):
            self._left_out["outcomes that nothing proves"] += excluded
        counts &= ~self._is_withdrawn(log, sequence)
        order = np.lexsort((sequence, -precedence(proof, revision), key))
        order = order[counts[order]]
        of, first = np.unique(key[order], return_index=True)
        if not len(of):
            return values, reported
        at = np.minimum(np.searchsorted(of, rows.key), len(of) - 1)
        reported = of[at] == rows.key
        values[reported] = value[order][first][at][reported]
        return values, reported


def _concatenated(parts: Sequence[Scored], segments: int) -> Scored:
    if not parts:
        nothing = np.zeros(0, np.uint64)
        return Scored(
            nothing,
            nothing,
            np.zeros(0, np.int32),
            np.zeros(0, np.int64),
            np.zeros(0, bool),
            {},
            np.zeros((0, segments), np.int32),
            np.zeros(0, np.float32),
            Ragged(np.zeros(0, np.uint8), np.zeros(0, np.int64)),
        )
    plain = {
        one.name: np.concatenate([getattr(part, one.name) for part in parts])
        for one in fields(Scored)
        if one.name not in ("values", "id")
    }
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    ids = Ragged(
        np.concatenate([part.id.values for part in parts]), np.concatenate([part.id.counts for part in parts])
    )
    return Scored(**plain, values=values, id=ids)
