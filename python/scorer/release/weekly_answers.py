"""What the service layer returns about versions compared over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from scorer.figure import Figure


@dataclass(frozen=True, slots=True)
class ComparedVersion:
    """One version of a comparison, with what its lineage states."""

    digest: str
    name: str
    created: str
    """When it was built, ISO 8601; empty if the bundle was not found."""
    algorithm: str
    data: str
    """Digest of the training data."""
    parameters: Mapping[str, str]
    refused: str
    """Why it is not compared; empty if it is."""


@dataclass(frozen=True, slots=True)
class ComparedWeek:
    """One week of the compared decisions."""

    begin: str
    """Its Monday, such as 2026-03-02."""
    decisions: int
    """Number of decisions, without declined ones that have no label."""
    labelled: int
    """Of these, with a label that counts."""
    positive: int
    """Of these, positive."""
    declined: int
    maturity: float
    """Mean share of the labels of its decisions that have come."""
    settled: bool
    reason: str
    """Why it is not compared; empty if it is."""


@dataclass(frozen=True, slots=True)
class ComparedMetric:
    """A value with its 95 % interval."""

    value: float
    low: float | None
    """Null: not known."""
    high: float | None


@dataclass(frozen=True, slots=True)
class ComparedValues:
    """The metrics of a version in one week, or in all settled weeks."""

    digest: str
    week: str | None
    """Monday of the week; null: all settled weeks that the version was compared in."""
    basis: str
    """`served`: on the decisions that it served; `backtest`: on all decisions."""
    rows: int
    positive: int
    metrics: Mapping[str, ComparedMetric]
    reason: str
    """Why values are missing."""


@dataclass(frozen=True, slots=True)
class ComparedPair:
    """The difference of two versions on the same decisions of the backtest, left minus right."""

    left: str
    right: str
    metric: str
    weeks: int
    rows: int
    difference: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class BestVersion:
    """The version that would have been best in a week, by a metric of the backtest."""

    week: str
    metric: str
    digest: str
    runner_up: str | None
    """Digest of the second best; null: there is none."""
    lead: float | None
    """Best minus runner-up."""
    low: float | None
    high: float | None
    clear: bool
    """Whether the paired interval of the lead excludes 0."""


@dataclass(frozen=True, slots=True)
class WeeklyResult:
    """The result of a comparison over time."""

    kind: str
    """`score` or `action`."""
    metrics: tuple[str, ...]
    """Names of the metrics, the main one first."""
    groups: tuple[str, ...]
    """What lines can be drawn for."""
    versions: tuple[ComparedVersion, ...]
    weeks: tuple[ComparedWeek, ...]
    values: tuple[ComparedValues, ...]
    pairs: tuple[ComparedPair, ...]
    best: tuple[BestVersion, ...]
    left_out: Mapping[str, int]
    """Number of decisions and reports that are not used, by reason."""
    notes: tuple[str, ...]
    figures: tuple[Figure, ...]
    """Charts of one metric."""


@dataclass(frozen=True, slots=True)
class WeeklyComparison:
    """A comparison of versions over time: its state, and its result once it is done."""

    id: str
    checkpoint: str
    state: str
    """`waiting`, `running`, `done` or `failed`."""
    step: str
    """What a running comparison does."""
    share: float
    """Share of the step that is done."""
    error: str
    """Why it has failed."""
    as_of: datetime
    """The moment; later records are not used."""
    versions: tuple[str, ...]
    """Digests, from the oldest to the newest."""
    result: WeeklyResult | None
