"""The windows of training, validation and test, in order of time, with the delay of labels between them.

── train ──┬── delay ──┬── validation ──┬── delay ──┬── test ──
── fit ─────────────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from scorer.learn.errors import DataError
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import DAY_MS, FraudTable
from scorer.stats.arrays import Ints


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """A period [start, end) in Unix milliseconds."""

    start_ms: int
    end_ms: int

    def positions(self, time_ms: Ints) -> slice:
        """Return the positions of the rows of the period, for times `[n]` in ascending order."""
        first, end = np.searchsorted(time_ms, [self.start_ms, self.end_ms])
        return slice(int(first), int(end))

    def __str__(self) -> str:
        return f"{_date(self.start_ms)} to {_date(self.end_ms - 1)}"


@dataclass(frozen=True, slots=True)
class TrainingWindows:
    """The windows of one training.

    Attributes:
        train: What chooses the algorithm, calibration and thresholds is trained on this.
        validation: Calibration and thresholds are fitted on this.
        fit: What the final model is trained on.
        test: What the measures are computed on.
    """

    train: TimeSpan
    validation: TimeSpan
    fit: TimeSpan
    test: TimeSpan

    def as_dict(self) -> dict[str, dict[str, int]]:
        """Return the windows as JSON, for the lineage."""
        return {
            name: {"start_ms": span.start_ms, "end_ms": span.end_ms}
            for name, span in (
                ("train", self.train),
                ("validation", self.validation),
                ("fit", self.fit),
                ("test", self.test),
            )
        }


def plan_windows(time_ms: Ints, settings: FraudSettings, until_ms: int | None = None) -> TrainingWindows:
    """Return the windows whose test window ends with the data, or at a moment.

    Args:
        time_ms: `[n]` Unix times of the rows, ascending.
        settings: The lengths.
        until_ms: End of the test window; None: the end of the UTC day of the last row.

    Raises:
        DataError: The data is too short.
    """
    end = until_ms if until_ms is not None else (int(time_ms[-1]) // DAY_MS + 1) * DAY_MS
    delay = round(settings.delay_days * DAY_MS)
    test = TimeSpan(end - round(settings.test_days * DAY_MS), end)
    return _before(test, int(time_ms[0]), delay, settings)


def earlier_windows(
    windows: TrainingWindows, time_ms: Ints, settings: FraudSettings, folds: int
) -> list[TrainingWindows]:
    """Return windows for tuning, the latest first, none of which reads the test window of `windows`.

    The `test` window of each fold is where a trial is evaluated: the first one is the validation window of
    `windows`, and each further one is the period of the same length before it.

    Raises:
        DataError: The data is too short for the folds.
    """
    length = windows.validation.end_ms - windows.validation.start_ms
    delay = round(settings.delay_days * DAY_MS)
    found = []
    for fold in range(folds):
        judged = TimeSpan(
            windows.validation.start_ms - fold * length, windows.validation.end_ms - fold * length
        )
        train = window_before(judged.start_ms - delay, int(time_ms[0]), settings)
        if train.end_ms - train.start_ms < DAY_MS:
            raise DataError(
                f"data: {folds} folds need a day of training before {_date(train.end_ms)}, and the data "
                f"begins on {_date(int(time_ms[0]))}; set tune.folds, or give a longer period"
            )
        found.append(TrainingWindows(train, judged, train, judged))
    return found


def unblocked(table: FraudTable, window: TimeSpan, settings: FraudSettings) -> Ints:
    """Return the positions of a window's rows without those of entities whose cards are blocked by then.

    Args:
        table: All rows, those before the window too.
        window: The window.
        settings: `blocked_days` and `delay_days`.
    """
    own = window.positions(table.time_ms)
    positions = np.arange(own.start, own.stop)
    if not settings.blocked_days or table.entity is None:
        return positions
    delay = round(settings.delay_days * DAY_MS)
    since = window.start_ms - delay - settings.blocked_days * DAY_MS
    first = int(np.searchsorted(table.time_ms, since))
    fraud = np.flatnonzero(table.label[first : own.stop]) + first
    known_ms = table.time_ms[fraud] + delay
    if table.known_ms is not None:
        known_ms = np.where(table.known_ms[fraud] > 0, table.known_ms[fraud], known_ms)
    # The first moment at which each entity is known to be compromised.
    blocked = np.full(int(table.entity.max()) + 1, np.iinfo(np.int64).max)
    np.minimum.at(blocked, table.entity[fraud], known_ms)
    day_start = table.time_ms[positions] // DAY_MS * DAY_MS
    return positions[blocked[table.entity[positions]] >= day_start]


def _before(test: TimeSpan, first_ms: int, delay: int, settings: FraudSettings) -> TrainingWindows:
    validation_end = test.start_ms - delay
    validation = TimeSpan(validation_end - round(settings.validation_days * DAY_MS), validation_end)
    train = window_before(validation.start_ms - delay, first_ms, settings)
    if train.end_ms - train.start_ms < DAY_MS:
        needed = settings.validation_days + settings.test_days + 2 * settings.delay_days + 1
        raise DataError(
            f"data: it begins on {_date(first_ms)}, which leaves no day to train on before "
            f"{_date(train.end_ms)}; {needed:g} days are needed (1 of training, {settings.delay_days:g} of "
            f"delay, {settings.validation_days:g} of validation, {settings.delay_days:g} of delay, "
            f"{settings.test_days:g} of test)"
        )
    fit = window_before(validation.end_ms, first_ms, settings) if settings.refit else train
    return TrainingWindows(train, validation, fit, test)


def window_before(end_ms: int, first_ms: int, settings: FraudSettings) -> TimeSpan:
    """Return the training window that ends at a moment, for data that begins at `first_ms`."""
    start = end_ms - round(settings.train_days * DAY_MS) if settings.train_days else first_ms
    return TimeSpan(max(start, first_ms), end_ms)


def _date(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d")
