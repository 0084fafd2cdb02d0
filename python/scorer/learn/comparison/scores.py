"""Rows of a score checkpoint: labels by the label policy, and the scores of every version.

All versions score the same logged features with the engine of the servers. A version that needs a feature
which a decision's bundle did not log has no score for it, whether or not the feature may be missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from scorer.bundle import Bundle, Feature
from scorer.learn.comparison.rows import Advance, ComparedRows, Prepared
from scorer.learn.comparison.settings import ComparisonSettings
from scorer.learn.comparison.versions import OpenVersion
from scorer.learn.comparison.weeks import first_week, week_begin_ms, week_codes, weeks_of
from scorer.learn.errors import DataError
from scorer.learn.join.catalogue import carry_columns
from scorer.learn.labels.applied import label_curves, layouts_of, read_labelled
from scorer.learn.labels.curves import MaturityCurves
from scorer.learn.labels.features import LoggedFeatures
from scorer.learn.labels.histories import Histories
from scorer.learn.labels.policy import (
    LabelState,
    WeightedLabels,
    curve_rows,
    given_labels,
    weigh,
)
from scorer.learn.labels.settings import LabelSettings
from scorer.stats.arrays import Bools, Floats, Ints, Rows32

if TYPE_CHECKING:
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.source.interface import DecisionSource

_NONE: Final = "(none)"


def prepare_scores(
    source: DecisionSource,
    shelf: BundleShelf,
    versions: Sequence[OpenVersion],
    labels: LabelSettings,
    settings: ComparisonSettings,
    *,
    checkpoint: str,
    as_of_ms: int,
    curves: MaturityCurves | None = None,
    advance: Advance = lambda _step, _share: None,
    reader_key: ReaderKey | None = None,
) -> Prepared:
    """Score every version on the decisions whose labels count.

    The logs are read twice. Which decisions are scored depends on reports that come after them, and keeping
    the features of all decisions until then needs memory for each. The first reading keeps some 40 bytes.

    Args:
        source: The logs.
        shelf: The bundles of the decisions and of the versions.
        versions: The versions.
        labels: The label policy. Decisions that it models count as with `unlabelled = "weighted"`, because a
            model of labels would favour versions that agree with it.
        settings: Limits and the cost matrix.
        checkpoint: Name of the checkpoint.
        as_of_ms: The moment, Unix time.
        curves: Maturity curves with one of the kind "label"; None: they are estimated.
        advance: Called with the progress.
        reader_key: Key that decrypts sensitive features.

    Raises:
        LogError: No log can be read.
    """
    notes = []
    if labels.unlabelled == "modelled":
        labels = labels.model_copy(update={"unlabelled": "weighted"})
        notes.append(
            "Labels are not modelled: decisions without a label count as negative with the probability that "
            "no positive label still comes."
        )
    first = first_week(as_of_ms, settings.weeks)
    histories = read_labelled(
        source,
        shelf,
        labels,
        checkpoint=checkpoint,
        as_of_ms=as_of_ms,
        since_ms=week_begin_ms(first),
        advance=_bytes(advance, "labels"),
        reader_key=reader_key,
    )
    # The steps of the policy take about the same time.
    advance("policy", 0.0)
    given = given_labels(histories, labels)
    advance("policy", 0.2)
    maturity = np.zeros(len(histories))
    if curves is None:
        try:
            curves = label_curves(histories, labels)
        except DataError as error:
            # Too short a log for a curve. Without one no week is settled.
            notes.append(f"The maturity of labels is not known: {error}.")
    if curves is not None:
        of_curve, found = curve_rows(histories, labels, curves)
        for at, curve in enumerate(found):
            own = of_curve == at
            maturity[own] = curve.maturity(histories.age_ms[own])
    advance("policy", 0.4)
    weighed = weigh(histories, given, labels, curves)
    advance("policy", 0.6)
    codes = week_codes(histories.time_ms)
    weeks = weeks_of(
        codes,
        first=first,
        count=settings.weeks,
        as_of_ms=as_of_ms,
        open_=weighed.state == LabelState.IN_FLIGHT,
        used=weighed.used,
        positive=weighed.label == 1,
        declined=weighed.state == LabelState.DECLINED,
        maturity=maturity,
        least_maturity=settings.least_maturity,
    )
    advance("policy", 0.8)
    settled = np.array([week.settled for week in weeks], bool)
    place = codes - first
    usable = weighed.used & (place >= 0) & (place < settings.weeks)
    usable[usable] = settled[place[usable]]
    chosen, stands_for = _sampled(histories, weighed, usable, settings.rows)
    if len(histories) and int(usable.sum()) > int(chosen.sum()):
        notes.append(
            f"{int(chosen.sum()):,} of {int(usable.sum()):,} decisions are used; a decision without a "
            f"positive label stands for up to {stands_for.max():.1f}."
        )
    scoring = _Scoring(shelf, histories, versions, settings)
    rows, missing, left_out = scoring.read(
        source, chosen, place, weighed, stands_for, advance=advance, reader_key=reader_key
    )
    states = weighed.counts()
    for name in ("declined", "unlabelled", "contradictory"):
        if states[name]:
            left_out[f"{name} by the label policy"] = states[name]
    for one in histories.findings:
        left_out[one.name] = one.count
    ruled = [one.facts.digest[7:15] for one in versions if _has_rules(shelf, one)]
    if ruled:
        notes.append(f"Backtests use thresholds without the rules of {', '.join(ruled)}.")
    return Prepared("score", rows, weeks, missing, left_out, tuple(notes))


def _has_rules(shelf: BundleShelf, version: OpenVersion) -> bool:
    bundle = None if version.facts.refused else shelf.get(version.facts.digest)
    return bundle is not None and bundle.rules is not None


def _sampled(histories: Histories, weighed: WeightedLabels, usable: Bools, most: int) -> tuple[Bools, Floats]:
    """Return which decisions are used, and how many of them each stands for.

    Positive labels are rare, so they are kept as far as they fill at most half of the rows.
    """
    chosen, weight = usable.copy(), np.ones(len(usable))
    # A hash of the id decides, so that the sample does not depend on the order of the logs.
    draw = (histories.hashes >> np.uint64(11)) / 2.0**53
    left = most
    positive = usable & (weighed.label == 1)
    for part, room in ((positive, most // 2), (usable & ~positive, most)):
        share = min(1.0, min(room, left) / max(int(part.sum()), 1))
        if share < 1:
            chosen[part] = draw[part] < share
            weight[part] = 1 / share
        left -= int((chosen & part).sum())
    return chosen, weight


@dataclass
class _Target:
    """A version with what scoring needs."""

    version: OpenVersion
    bundle: Bundle | None
    stops: Bools


class _Scoring:
    """Scores the chosen decisions with every version."""

    def __init__(
        self,
        shelf: BundleShelf,
        histories: Histories,
        versions: Sequence[OpenVersion],
        settings: ComparisonSettings,
    ) -> None:
        self._histories, self._settings = histories, settings
        self._targets = []
        for one in versions:
            bundle = None if one.facts.refused else shelf.get(one.facts.digest)
            labels = [] if bundle is None else list(bundle.labels)
            stops = np.array([label != settings.approve for label in labels], bool)
            self._targets.append(_Target(one, bundle, stops))
        column = next(one for one in histories.segments if one.name == "bundle")
        self._layouts = layouts_of(histories, shelf)
        position = {one.facts.digest: at for at, one in enumerate(versions)}
        served = np.array([position.get(value, -1) for value in column.values] or [-1], np.int64)
        self._served = served[column.codes] if len(histories) else np.zeros(0, np.int64)

    def read(
        self,
        source: DecisionSource,
        chosen: Bools,
        place: Ints,
        weighed: WeightedLabels,
        stands_for: Floats,
        *,
        advance: Advance,
        reader_key: ReaderKey | None,
    ) -> tuple[ComparedRows, dict[tuple[int, int], str], dict[str, int]]:
        """Return the rows, why versions have no scores by version and week, and what is left out."""
        at = np.flatnonzero(chosen)
        to = np.full(len(chosen), -1, np.int64)
        to[at] = np.arange(len(at))
        scores = np.full((len(self._targets), len(at)), np.nan)
        flags = np.zeros((len(self._targets), len(at)), bool)
        amount, seen = np.full(len(at), np.nan), np.zeros(len(at), bool)
        lacks: dict[tuple[int, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        withheld = 0
        reading = LoggedFeatures(
            source, self._histories, chosen, self._layouts, _bytes(advance, "scores"), reader_key
        )
        for batch in reading:
            of = to[batch.row]
            seen[of] = True
            withheld += len(of) if batch.withheld else 0
            layout = self._layouts[batch.digest]
            amount[of] = _column(batch.context, layout, self._settings.amount)
            for number, target in enumerate(self._targets):
                if target.bundle is None:
                    continue
                wanted = target.version.features
                lacking = sorted({one.name for one in wanted} - {one.name for one in layout})
                if lacking:
                    reason = (
                        f"bundle {batch.digest[7:15]} did not log its feature{'s' * (len(lacking) > 1)} "
                        + ", ".join(lacking[:5])
                    )
                    for week, count in zip(*np.unique(place[batch.row], return_counts=True), strict=True):
                        lacks[number, int(week)][reason] += int(count)
                    continue
                rows, fits = carry_columns(batch.context, layout, wanted)
                found = target.bundle.score(rows[fits])
                scores[number, of[fits]] = found.scores
                flags[number, of[fits]] = target.stops[found.bands]
        left_out = dict(reading.left_out)
        if withheld:
            left_out["with withheld sensitive features, which count as missing"] = withheld
        compared = ComparedRows(
            time_us=self._histories.time_ms[at] * 1000,
            week=place[at],
            outcome=(weighed.label[at] == 1).astype(np.float64),
            weight=(weighed.factor * (1 - weighed.later) * stands_for)[at],
            served=self._served[at],
            stopped=self._stopped(at),
            amount=amount,
            values=scores,
            flags=flags,
            ratios=np.zeros((0, 0)),
        ).take(seen)
        reasons = {key: max(found, key=lambda one: found[one]) for key, found in lacks.items()}
        return compared, reasons, left_out

    def _stopped(self, at: Ints) -> Bools:
        decided = self._histories.values_of("decision")[at].astype(str)
        return np.asarray((decided != self._settings.approve) & (decided != _NONE), bool)


def _column(context: Rows32, layout: Sequence[Feature], name: str) -> Floats:
    for at, one in enumerate(layout):
        if one.name == name and one.type == "number":
            return context[:, at].astype(np.float64)
    return np.full(len(context), np.nan)


def _bytes(advance: Advance, step: str) -> Callable[[int, int], None]:
    return lambda done, whole: advance(step, done / whole if whole else 1.0)
