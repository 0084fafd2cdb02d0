"""The quantities of a lane, as counts of hours, from the state of drift detection."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from scorer.drift.binning import MISSING, UNSEEN, VALUES, WIDTH
from scorer.drift.counting import (
    DELAYS,
    FALLBACK,
    LABEL,
    LABELS,
    OUTCOME_WIDTH,
    SCORES,
    SEGMENT_COUNTS,
    STATE_WIDTH,
    BundleFacts,
    CheckpointPlan,
    feature_bins,
    listed,
)
from scorer.drift.detection import LeastChange
from scorer.drift.settings import DetectionSettings
from scorer.drift.state import dense
from scorer.stats.arrays import Floats

MOST_SEGMENTS: Final = 64
"""Number of segments of a lane that are judged; those with the most rows."""
_DEFAULT_MATURES: Final = {"score": 168.0, "action": 1.0}


class LaneName(NamedTuple):
    """One lane of a checkpoint."""

    checkpoint: str
    lane: str
    role: str
    """`answer` or `observe`."""


@dataclass(frozen=True)
class QuantityGroup:
    """Quantities of one kind with the same bins.

    Attributes:
        kind: `feature`, `missing`, `unseen`, `score`, `decision`, `fallback`, `outcome`, `reported`,
            `segment_score` or `segment_outcome`.
        names: Name of each quantity, `F`.
        counts: `[H, F, B]` counts of the hours. For a rate, hits and misses.
        rate: Size that a change of a rate must have; None: the quantities are distributions.
        label: Returns what a bin of a quantity stands for, by their positions.
        reference: `[F, B]` counts that the last week is compared with, if they are not those of earlier weeks
            of the lane.
    """

    kind: str
    names: tuple[str, ...]
    counts: Floats
    rate: LeastChange | None
    label: Callable[[int, int], str]
    reference: Floats | None = None

    def title(self, place: int) -> str:
        """Return the name of a quantity that is unique within the lane."""
        name = self.names[place]
        return f"{self.kind}:{name}" if name else self.kind


@dataclass(frozen=True)
class ScoreOutcomes:
    """Scores and outcomes of the newest bundle of a lane, `[H, S]` each.

    Attributes:
        bundle: Digest of the bundle.
        rows: Decisions with a score.
        positives: Those whose outcome was positive within the hours of maturity.
        matures: Hours of maturity.
        flagged: First bin of the tenth of the reference with the highest scores.
    """

    bundle: str
    rows: Floats
    positives: Floats
    matures: int
    flagged: int


@dataclass(frozen=True)
class LaneCounts:
    """The counts of a lane in a range of hours.

    Attributes:
        begin: First hour, since the Unix epoch.
        groups: The quantities.
        scores: Scores and outcomes; None if no score was counted.
    """

    begin: int
    groups: tuple[QuantityGroup, ...]
    scores: ScoreOutcomes | None

    @property
    def number(self) -> int:
        """Number of quantities, with AUC and calibration."""
        return sum(len(group.names) for group in self.groups) + 2


def lanes(connection: sqlite3.Connection) -> list[tuple[LaneName, int]]:
    """Return all lanes that were counted, and the hour of their first decision."""
    query = "SELECT checkpoint, lane, role, min(since) FROM series GROUP BY 1, 2, 3 ORDER BY 1, 3, 2"
    return [(LaneName(*row[:3]), row[3]) for row in connection.execute(query)]


def matures_of(plan: CheckpointPlan, kind: str) -> int:
    """Return the hours of maturity of a kind of bundle, rounded up to the end of a bin of delays."""
    wanted = (plan.matured_hours or _DEFAULT_MATURES).get(kind, _DEFAULT_MATURES["score"])
    return next((end for end in DELAYS if end >= wanted), DELAYS[-1])


def load(
    connection: sqlite3.Connection,
    lane: LaneName,
    begin: int,
    end: int,
    plan: CheckpointPlan,
    bundles: BundleFacts,
    settings: DetectionSettings,
) -> LaneCounts | None:
    """Return the counts of a lane; None if nothing was counted in the hours.

    Args:
        connection: A snapshot of the state.
        lane: The lane.
        begin: First hour since the Unix epoch.
        end: Hour after the last one.
        plan: Maturity of the checkpoint's outcomes.
        bundles: Reference scores of bundles.
        settings: Least changes of rates.
    """
    query = "SELECT id, bundle, kind FROM series WHERE checkpoint = ? AND lane = ? AND role = ? ORDER BY id"
    series = connection.execute(query, lane).fetchall()
    # Outcomes are counted with a lag, so decisions before the first hour belong to the first outcomes.
    first = begin - DELAYS[-1]
    states = [dense(connection, one[0], "s", first, end, STATE_WIDTH) for one in series]
    skip = begin - first
    rows = [state[:, LABEL:].sum(axis=1) for state in states]
    if not series or not any(own[skip:].any() for own in rows):
        return None
    newest = max(range(len(series)), key=lambda at: (_last(rows[at]), at))
    kind = series[newest][2]
    whole = np.sum(states, axis=0)[skip:]
    outcomes = [dense(connection, one[0], "o", first, end, OUTCOME_WIDTH) for one in series]
    matures = matures_of(plan, kind)
    groups = [
        *_features(connection, lane.checkpoint, [one[0] for one in series], begin, end, settings),
        _labels(connection, lane.checkpoint, whole),
        _rate("fallback", whole[:, FALLBACK], whole[:, LABEL:].sum(axis=1), LeastChange(settings.least_rate)),
    ]
    facts = bundles.scores(series[newest][1])
    scores = None
    if facts is not None:
        own = states[newest][:, :SCORES]
        reference = np.zeros((1, SCORES))
        reference[0, : len(facts.counts)] = facts.counts
        groups.append(_scores(own[skip:], facts.edges, reference))
        positives = _by_delay(outcomes[newest])[:, : DELAYS.index(matures) + 1, 1].sum(axis=1)
        scores = ScoreOutcomes(
            series[newest][1], own[skip:], positives[skip:], matures, max(len(facts.counts) - 1, 0)
        )
    if lane.role == "answer":
        groups += _outcomes(np.sum(outcomes, axis=0), np.sum(rows, axis=0), skip, matures, settings)
    numbers = [one[0] for one in series]
    groups += _segments(connection, lane, numbers, begin, end, matures, settings)
    return LaneCounts(begin, tuple(group for group in groups if group.names), scores)


def _features(
    connection: sqlite3.Connection,
    checkpoint: str,
    series: Sequence[int],
    begin: int,
    end: int,
    settings: DetectionSettings,
) -> list[QuantityGroup]:
    known = feature_bins(connection, checkpoint)
    if not known:
        return []
    width = (max(number for number, _ in known.values()) + 1) * WIDTH
    whole = np.zeros((end - begin, width))
    for one in series:
        whole += dense(connection, one, "f", begin, end, width)
    by_feature = whole.reshape(end - begin, -1, WIDTH)
    places = [number for number, _ in known.values()]
    own = by_feature[:, places]
    present = own[..., :VALUES].sum(axis=-1)
    bins = [one for _, one in known.values()]
    names = tuple(known)
    change = LeastChange(settings.least_rate)
    missing = np.stack([own[..., MISSING], present], axis=-1)
    unseen = np.stack([own[..., UNSEEN], np.maximum(present - own[..., UNSEEN], 0)], axis=-1)
    return [
        QuantityGroup("feature", names, own[..., :VALUES], None, lambda at, code: bins[at].label(code)),
        QuantityGroup("missing", names, missing, change, _hit),
        QuantityGroup("unseen", names, unseen, change, _hit),
    ]


def _labels(connection: sqlite3.Connection, checkpoint: str, states: Floats) -> QuantityGroup:
    names = listed(connection, checkpoint, "label")
    counts = states[:, None, LABEL : LABEL + LABELS]
    return QuantityGroup(
        "decision", ("",), counts, None, lambda _, code: names[code] if code < len(names) else "other"
    )


def _scores(counts: Floats, edges: Floats, reference: Floats) -> QuantityGroup:
    ends = ["lowest", *(f"{edge:.4g}" for edge in edges), "highest"]

    def label(_: int, code: int) -> str:
        return f"{ends[code]} to {ends[code + 1]}" if code + 1 < len(ends) else "above"

    return QuantityGroup("score", ("",), counts[:, None], None, label, reference)


def _outcomes(
    outcomes: Floats, rows: Floats, skip: int, matures: int, settings: DetectionSettings
) -> list[QuantityGroup]:
    """Return the rates of positive outcomes and of reports, of decisions whose hours have passed."""
    by_delay = _by_delay(outcomes).sum(axis=-1)
    change = LeastChange(0.0, settings.least_ratio)
    positive = by_delay[:, : DELAYS.index(matures) + 1, 1].sum(axis=1)
    found = [_rate("outcome", _later(positive, matures, skip), _later(rows, matures, skip), change)]
    reported = by_delay.sum(axis=2)
    # The usual half of the reports is that of the older half of the decisions.
    usual = np.cumsum(reported[: len(reported) // 2].sum(axis=0))
    if usual[-1] > 0:
        half = DELAYS[min(int(np.searchsorted(usual, usual[-1] / 2)), len(DELAYS) - 1)]
        early = reported[:, : DELAYS.index(half) + 1].sum(axis=1)
        found.append(_rate("reported", _later(early, half, skip), _later(rows, half, skip), change))
    return found


def _segments(
    connection: sqlite3.Connection,
    lane: LaneName,
    series: Sequence[int],
    begin: int,
    end: int,
    matures: int,
    settings: DetectionSettings,
) -> list[QuantityGroup]:
    names = listed(connection, lane.checkpoint, "segment")
    if not names:
        return []
    first = begin - matures
    whole = np.zeros((end - first, len(names) * SEGMENT_COUNTS))
    for one in series:
        whole += dense(connection, one, "g", first, end, len(names) * SEGMENT_COUNTS)
    own = whole.reshape(end - first, len(names), SEGMENT_COUNTS)
    most = np.sort(np.argsort(-own[..., 0].sum(axis=0), kind="stable")[:MOST_SEGMENTS])
    chosen, own = tuple(names[at] for at in most.tolist()), own[:, most]
    change = LeastChange(0.0, settings.least_ratio)
    now = own[matures:]
    high = np.stack([now[..., 1], np.maximum(now[..., 0] - now[..., 1], 0)], axis=-1)
    groups = [QuantityGroup("segment_score", chosen, high, change, _hit)]
    if lane.role == "answer":
        then = own[: end - begin]
        positive = np.stack([then[..., 2], np.maximum(then[..., 0] - then[..., 2], 0)], axis=-1)
        groups.append(QuantityGroup("segment_outcome", chosen, positive, change, _hit))
    return groups


def _by_delay(outcomes: Floats) -> Floats:
    """Return outcomes by hour, bin of delay, whether they are positive, and bin of the score."""
    return outcomes.reshape(len(outcomes), len(DELAYS) + 1, 2, SCORES)


def _later(values: Floats, hours: int, skip: int) -> Floats:
    """Return the values of decisions at the hour when they are a number of hours old, from `skip` on."""
    return values[skip - hours : len(values) - hours]


def _rate(kind: str, hits: Floats, rows: Floats, change: LeastChange) -> QuantityGroup:
    counts = np.stack([hits, np.maximum(rows - hits, 0)], axis=-1)[:, None]
    return QuantityGroup(kind, ("",), counts, change, _hit)


def _hit(_: int, code: int) -> str:
    return "rate" if code == 0 else "rest"


def _last(rows: Floats) -> int:
    found = np.flatnonzero(rows)
    return int(found[-1]) if len(found) else -1
