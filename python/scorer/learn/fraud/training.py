"""Training of a candidate: choice of the algorithm, calibration, thresholds, evaluation, and the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from scorer.bundle import IsotonicMap
from scorer.bundle.calibrate import fit_centred_isotonic
from scorer.learn.errors import DataError
from scorer.learn.findings import DataFinding
from scorer.learn.fraud.checks import check_data
from scorer.learn.fraud.learners import FittedScore, fit_baseline, fit_trees
from scorer.learn.fraud.measures import Differences, Judge, Measures
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import DAY_MS, FraudTable
from scorer.learn.fraud.task import ScoreTask
from scorer.learn.fraud.value import Thresholds, best_thresholds, gains
from scorer.learn.fraud.windows import TimeSpan, TrainingWindows, plan_windows, unblocked
from scorer.stats.arrays import Floats, Ints, Rows32
from scorer.stats.precision_recall import RankedScores


@dataclass(frozen=True)
class FraudModel:
    """A trained candidate.

    Attributes:
        task: The checkpoint's task.
        settings: The settings.
        windows: The windows.
        fitted: The final model.
        calibration: Map of its predictions; None: they are used as they are.
        thresholds: Thresholds of review and decline.
        choice: Average precision of each algorithm on the validation window.
        measures: Measures on the test window.
        baseline: Those of the baseline.
        beats: The measures minus those of the baseline, paired.
        findings: Results of the checks of the data.
        late: Number of rows by window whose label was known too late to be used.
        training_rows: `[n, features]` some rows of the final training.
        reference_rows: `[n, features]` some rows of the validation window.
        last_ms: Time of the latest row that the candidate was made from.
        data_digest: Digest of the data.
        counts: Rows and positive labels by window.
        selection: How the features were selected, for the lineage; None: they were not.
    """

    task: ScoreTask
    settings: FraudSettings
    windows: TrainingWindows
    fitted: FittedScore
    calibration: IsotonicMap | None
    thresholds: Thresholds
    choice: Mapping[str, float]
    measures: Measures
    baseline: Measures
    beats: Differences
    findings: tuple[DataFinding, ...]
    late: Mapping[str, int]
    training_rows: Rows32
    reference_rows: Rows32
    last_ms: int
    data_digest: str
    counts: Mapping[str, Mapping[str, int]]
    selection: Mapping[str, Any] | None = None

    def scores(self, rows: Rows32) -> Floats:
        """Return calibrated scores `[n]` of encoded rows `[n, features]`."""
        return calibrated(self.fitted.predict(rows), self.calibration)


SOME: Final = 20_000
"""Rows kept for reference statistics. More do not change the distributions visibly."""


def train_fraud(
    table: FraudTable,
    task: ScoreTask,
    settings: FraudSettings,
    *,
    until_ms: int | None = None,
    selection: Mapping[str, Any] | None = None,
    at: Callable[[str], None] = lambda _: None,
) -> FraudModel:
    """Train, calibrate and evaluate a candidate.

    Args:
        table: The data.
        task: Name and features of the checkpoint.
        settings: `[fraud]` of learn.toml.
        until_ms: End of the test window; None: the end of the data's last day.
        selection: How the features of the task were selected, for the lineage.
        at: Called with the name of each stage when it begins.

    Raises:
        DataError: The data is rejected, a window lacks a class, or the candidate does not beat the baseline.
    """
    at("checking the data")
    table, findings = check_data(table, settings.checks)
    windows = plan_windows(table.time_ms, settings, until_ms)
    parts = _Parts(table, windows, settings)
    at("training on the training window")
    tried: dict[str, FittedScore] = {
        name: fit_trees(name, table, parts.train, settings) for name in settings.algorithms
    }
    outputs: dict[str, Floats] = {
        name: one.predict(table.rows[parts.validation]) for name, one in tried.items()
    }
    label, weight = table.label[parts.validation], table.weight[parts.validation]
    choice: dict[str, float] = {
        name: RankedScores(output, label).average_precision(weight) for name, output in outputs.items()
    }
    best = max(choice, key=lambda name: choice[name])
    calibration, thresholds = _decide(table, parts.validation, outputs[best], windows.validation, settings)
    fitted = tried[best]
    if settings.refit:
        at("training on all days before the test window")
        fitted = fit_trees(best, table, parts.fit, settings)
    at(f"training the baseline ({settings.baseline})")
    # The baseline has the same data, and thresholds and calibration by the same rules.
    early = fit_baseline(table, parts.train, settings)
    base_map, base_thresholds = _decide(
        table, parts.validation, early.predict(table.rows[parts.validation]), windows.validation, settings
    )
    plain = fit_baseline(table, parts.fit, settings) if settings.refit else early
    at("evaluating on the test window")
    judge = Judge(table.take(parts.test), settings)
    own = (calibrated(fitted.predict(judge.table.rows), calibration), thresholds)
    other = (calibrated(plain.predict(judge.table.rows), base_map), base_thresholds)
    beats = judge.differences(own, other)
    _require_better(beats, settings)
    return FraudModel(
        task=task,
        settings=settings,
        windows=windows,
        fitted=fitted,
        calibration=calibration,
        thresholds=thresholds,
        choice=choice,
        measures=judge.measures(*own),
        baseline=judge.measures(*other),
        beats=beats,
        findings=findings,
        late=parts.late,
        training_rows=table.rows[some_rows(parts.fit)],
        reference_rows=table.rows[some_rows(parts.validation)],
        last_ms=int(max(table.time_ms[parts.fit[-1]], table.time_ms[parts.validation[-1]])),
        data_digest=table.digest,
        counts=parts.counts(),
        selection=selection,
    )


def calibrated(outputs: Floats, calibration: IsotonicMap | None) -> Floats:
    """Return the probabilities of a model's outputs, `[n]`."""
    if calibration is None:
        return outputs
    return np.asarray(np.interp(outputs, calibration.x, calibration.y))


class _Parts:
    """Positions of the rows of each window, with labels that were known in time.

    Raises:
        DataError: A window has rows of one class only, or none.
    """

    def __init__(self, table: FraudTable, windows: TrainingWindows, settings: FraudSettings) -> None:
        self._table = table
        self.late: dict[str, int] = {}
        self.train = self._known("train", windows.train, windows.validation.start_ms, settings)
        self.fit = self._known("fit", windows.fit, windows.test.start_ms, settings)
        self.validation = unblocked(table, windows.validation, settings)
        self.validation = self._in_time("validation", self.validation, windows.test.start_ms, settings)
        self.test = unblocked(table, windows.test, settings)
        named = (("training", self.train, windows.train), ("validation", self.validation, windows.validation),
                 ("final training", self.fit, windows.fit), ("test", self.test, windows.test))  # fmt: skip
        for name, rows, span in named:
            positives = int(table.label[rows].sum())
            if not 0 < positives < len(rows):
                raise DataError(
                    f"the {name} window ({span}) has {len(rows):,} rows and {positives:,} positive labels; "
                    "both classes are needed, choose longer windows or check the labels"
                )

    def counts(self) -> dict[str, dict[str, int]]:
        """Return rows and positive labels by window."""
        named = {"train": self.train, "validation": self.validation, "fit": self.fit, "test": self.test}
        return {
            name: {"rows": len(rows), "positive": int(self._table.label[rows].sum())}
            for name, rows in named.items()
        }

    def _known(self, name: str, span: TimeSpan, moment_ms: int, settings: FraudSettings) -> Ints:
        own = span.positions(self._table.time_ms)
        return self._in_time(name, np.arange(own.start, own.stop), moment_ms, settings)

    def _in_time(self, name: str, rows: Ints, moment_ms: int, settings: FraudSettings) -> Ints:
        known = self._table.take(rows).known_by(moment_ms, settings.delay_days)
        self.late[name] = int((~known).sum())
        return rows[known]


def _decide(
    table: FraudTable, rows: Ints, outputs: Floats, window: TimeSpan, settings: FraudSettings
) -> tuple[IsotonicMap | None, Thresholds]:
    """Fit calibration and thresholds on the outputs `[rows]` of a model for held-out rows."""
    label, weight = table.label[rows], table.weight[rows]
    calibration = fit_centred_isotonic(outputs, label, weight) if settings.calibration == "isotonic" else None
    gained = gains(label, table.amount[rows], settings.value)
    days = (window.end_ms - window.start_ms) / DAY_MS
    reviews = settings.value.reviews_per_day * days
    thresholds, _ = best_thresholds(calibrated(outputs, calibration), weight, gained, reviews=reviews)
    return calibration, thresholds


def _require_better(beats: Differences, settings: FraudSettings) -> None:
    found = beats.average_precision
    if not settings.must_beat_baseline or (found.low is not None and found.low > 0):
        return
    low = "unknown" if found.low is None else f"{found.low:+.4f}"
    raise DataError(
        f"the candidate does not beat the baseline ({settings.baseline}) on the test window: average "
        f"precision {found.value:+.4f}, lower bound {low}; use better features or more days, or set "
        "fraud.must_beat_baseline = false"
    )


def some_rows(rows: Ints) -> Ints:
    """Return at most `SOME` of the rows, evenly spread."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), SOME)).astype(np.intp))]
