"""Changes planted in payments: those of the handbook, or payments simulated by the same method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from examples.datasets import HANDBOOK, present
from examples.fraud.features import FEATURES
from loadtests.drifts.measure import FIRST, MATURES, REPORTS, FoundDelays, Planted, trips
from loadtests.drifts.worlds import DAY
from loadtests.zoo.payments import Payments, handbook, simulated
from scorer.drift.binning import MISSING, VALUES, bins_of
from scorer.drift.detection import LeastChange
from scorer.drift.settings import DetectionSettings
from scorer.drift.trigger import alert_hours
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

_WARM_UP_DAYS: Final = 37
_HOUR_MS: Final = 3_600_000
_AMOUNT: Final = FEATURES.index("amount")
_SPREAD: Final = 0.5
"""Standard deviation of the logarithm of the delay of a report."""

Change = Callable[[Rows32, Ints, Bools], Rows32]


@dataclass(frozen=True)
class PaymentChange:
    """A change of the rows from an hour on.

    Attributes:
        kind: The change and its stated delay.
        column: Feature that changes.
        change: Returns the new values of the feature, of all values, hours, and whether they are later.
    """

    kind: Planted
    column: int
    change: Change


def _grown(values: Rows32, hours: Ints, later: Bools) -> Rows32:
    begin = int(hours[later].min(initial=np.iinfo(np.int64).max))
    share = np.clip((hours - begin) / (14 * DAY), 0, 1)
    return (values * (1 + share)).astype(np.float32)


CHANGES: Final = (
    PaymentChange(
        Planted("sudden: amounts grow by half", DAY),
        _AMOUNT,
        lambda values, _, later: np.where(later, values * 1.5, values).astype(np.float32),
    ),
    PaymentChange(Planted("gradual: amounts double in 14 days", 10 * DAY), _AMOUNT, _grown),
    PaymentChange(
        Planted("seasonal: amounts double at night", 3 * DAY),
        _AMOUNT,
        lambda values, hours, later: np.where(later & (hours % DAY < 6), values * 2, values).astype(
            np.float32
        ),
    ),
    PaymentChange(
        Planted("broken feature: terminal counts are 0", 12),
        FEATURES.index("terminal_count_7d"),
        lambda values, _, later: np.where(later, 0, values).astype(np.float32),
    ),
    PaymentChange(
        Planted("broken feature: missing", 12),
        FEATURES.index("customer_mean_amount_7d"),
        lambda values, _, later: np.where(later, np.nan, values).astype(np.float32),
    ),
)
SCENARIO: Final = Planted("new fraud scenario: 0.8 % of payments", MATURES + 3 * DAY)
LATE: Final = Planted("delay of labels doubled", REPORTS + 3 * DAY)


class PaymentStream:
    """The payments by hour, after the days in which the windows of features are not complete.

    Args:
        payments: The payments.
        settings: The settings of the detection.
    """

    def __init__(self, payments: Payments, settings: DetectionSettings) -> None:
        hour = payments.at_ms // _HOUR_MS
        first = (hour[0] // DAY + _WARM_UP_DAYS) * DAY
        kept = hour >= first
        self.name, self._settings = payments.name, settings
        self.hours = (hour[kept] - first).astype(np.int64)
        self.rows, self.fraud = payments.rows[kept], payments.fraud[kept]
        self.length = int(self.hours[-1]) + 1
        early = self.hours < 7 * DAY
        self._bins = [bins_of(name, self.rows[early, at]) for at, name in enumerate(FEATURES)]
        self._quantities = 2 * len(FEATURES) + 2

    @property
    def begins(self) -> Ints:
        """Hours at which changes are planted: every third day, as long as they could be found in time."""
        return np.arange(FIRST + DAY + 7, self.length - MATURES - 4 * DAY, 3 * DAY)

    def false_alerts(self) -> tuple[int, float]:
        """Return the alerts of the unchanged payments, and the number of months of 30 days."""
        looks, distribution = self._feature_trips(range(len(FEATURES)), self.rows)
        shifted = [distribution]
        for delay in (MATURES, REPORTS):
            own_looks, own = self._label_trips(self.fraud, self._delays(1.0, 0), delay)
            padded = np.zeros((len(looks), 1), dtype=bool)
            padded[len(looks) - len(own_looks) :] = own
            shifted.append(padded)
        names = [str(at) for at in range(sum(one.shape[1] for one in shifted))]
        found = alert_hours(looks, np.hstack(shifted), names, self._settings.cool_down_hours)
        return len(found), len(looks) / (30 * DAY)

    def feature(self, change: PaymentChange) -> FoundDelays:
        """Plant a change of a feature at each of `begins`."""
        delays = []
        for begin in self.begins.tolist():
            later = self.hours >= begin
            rows = self.rows[:, [change.column]].copy()
            rows[:, 0] = change.change(rows[:, 0], self.hours, later)
            delays.append(_first(*self._feature_trips([change.column], rows), begin))
        return FoundDelays(change.kind, tuple(delays))

    def scenario(self) -> FoundDelays:
        """Plant frauds among other payments at each of `begins`."""
        delays = []
        for begin in self.begins.tolist():
            new = np.random.default_rng(begin).random(len(self.fraud)) < 0.008
            fraud = self.fraud | (new & (self.hours >= begin))
            delays.append(_first(*self._label_trips(fraud, self._delays(1.0, 0), MATURES), begin))
        return FoundDelays(SCENARIO, tuple(delays))

    def late_labels(self) -> FoundDelays:
        """Double the delay of labels at each of `begins`."""
        delays = []
        for begin in self.begins.tolist():
            found = self._label_trips(self.fraud, self._delays(2.0, begin), REPORTS)
            delays.append(_first(*found, begin))
        return FoundDelays(LATE, tuple(delays))

    def _delays(self, factor: float, begin: int) -> Floats:
        """Return the delay of each report in hours: lognormal with the median `REPORTS`."""
        delay = REPORTS * np.exp(np.random.default_rng(1).normal(0, _SPREAD, len(self.hours)))
        return np.where(self.hours >= begin, delay * factor, delay)

    def _label_trips(self, fraud: Bools, delays: Floats, within: int) -> tuple[Ints, Bools]:
        """Judge the share of payments whose fraud is reported within some hours, when these have passed."""
        length = self.length + within
        hits = np.bincount(self.hours[fraud & (delays <= within)] + within, minlength=length)
        rows = np.bincount(self.hours + within, minlength=length)
        counts = np.stack([hits, rows - hits], axis=-1)[: self.length, None].astype(np.float64)
        rate = LeastChange(0.0, self._settings.least_ratio)
        return trips(counts, self._settings, rate=rate, quantities=self._quantities, begin=FIRST + within)

    def _feature_trips(self, columns: range | list[int], rows: Rows32) -> tuple[Ints, Bools]:
        shape = (self.length, len(columns), VALUES + 1)
        flat = np.zeros(shape)
        for place, column in enumerate(columns):
            codes = self._bins[column].codes(rows[:, place])
            found = np.bincount(self.hours * (VALUES + 1) + codes, minlength=shape[0] * shape[2])
            flat[:, place] = found.reshape(shape[0], shape[2])
        looks, shifted = trips(flat[..., :MISSING], self._settings, quantities=self._quantities)
        missing = np.stack([flat[..., MISSING], flat[..., :MISSING].sum(axis=-1)], axis=-1)
        rate = LeastChange(self._settings.least_rate)
        _, lacking = trips(missing, self._settings, rate=rate, quantities=self._quantities)
        return looks, shifted | lacking


def payment_stream(settings: DetectionSettings, *, customers: int = 5_000, days: int = 120) -> PaymentStream:
    """Return the handbook's payments if they are present, else simulated ones.

    Args:
        settings: The settings of the detection.
        customers: Number of customers of simulated payments.
        days: Days of simulated payments.
    """
    file = present(HANDBOOK)
    payments = simulated(customers=customers, days=days) if file is None else handbook(file)
    return PaymentStream(payments, settings)


def _first(looks: Ints, shifted: Bools, begin: int) -> float:
    after = looks[shifted.any(axis=1) & (looks > begin)]
    return float(after[0] - begin) if len(after) else float("inf")
