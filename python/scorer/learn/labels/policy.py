"""The label policy: from the outcomes of decisions to labels with weights.

a kind gives a label                  -> the first kind in the order of the policy decides
no label, or one that has to wait,
and the decision is too young         -> in flight: left out
no label after the wait               -> left out, or negative, or negative with a weight, or both
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from scorer.learn.labels.curves import OTHER, POSITIVE, CurveSegment, MaturityCurve, MaturityCurves
from scorer.learn.labels.histories import Histories
from scorer.learn.labels.segments import APPLIED, RULE
from scorer.learn.labels.settings import LabelSettings, Meaning
from scorer.stats.arrays import Bools, Floats, Ints

LABEL_CURVE: Final = "label"
"""Kind of the curve of the policy's own labels, whatever kind of outcome gives them."""
_HOUR_MS: Final = 3_600_000
_MEANS: Final[dict[Meaning, int]] = {"positive": 1, "negative": 0, "none": -1}
_NONE: Final = -1


class LabelState(IntEnum):
    """What is known about the label of a decision."""

    LABELLED = 0
    """An outcome gives the label."""
    ASSUMED = 1
    """There is no label after the wait, and the policy counts the decision nevertheless."""
    IN_FLIGHT = 2
    """The decision is younger than the wait."""
    UNLABELLED = 3
    """There is no label after the wait, and the policy leaves the decision out."""
    CONTRADICTORY = 4
    """Its outcomes contradict each other, and the policy leaves the decision out."""
    DECLINED = 5
    """The payment was declined, so that no outcome can come."""


@dataclass(frozen=True)
class GivenLabels:
    """The labels that outcomes give, `[n]` each.

    Attributes:
        label: 1 or 0; -1: no outcome gives a label.
        kind: Position in the policy's kinds of the one that decides; -1 without a label.
        first_ms: When the first outcome that gives a label became known, Unix time; 0 without a label.
        known_ms: When the outcome that decides became known; 0 without a label.
        contradicts: Whether another kind gives the other label.
        changed: Whether a revision changed a value that gives a label.
    """

    label: npt.NDArray[np.int8]
    kind: npt.NDArray[np.int8]
    first_ms: Ints
    known_ms: Ints
    contradicts: Bools
    changed: Bools

    def events(self) -> tuple[Ints, Ints, Bools]:
        """Return the first label of each decision as an event for `estimate_curves`."""
        cause = np.where(self.label == 1, POSITIVE, np.where(self.label == 0, OTHER, 0))
        return self.first_ms, cause.astype(np.int64), self.changed


@dataclass(frozen=True)
class WeightedLabels:
    """The labels that training uses, `[n]` each.

    Attributes:
        state: Of `LabelState`.
        label: 1 or 0; -1 where the state is neither labelled nor assumed.
        factor: Number of decisions that the decision stands for: 1, or 1 / share if it was explored.
        later: P(a positive label still comes) of assumed decisions; else 0. Before features are considered.
        age_ms: Age of the decision at the moment.
        given: The labels that outcomes give.
    """

    state: npt.NDArray[np.int8]
    label: npt.NDArray[np.int8]
    factor: Floats
    later: Floats
    age_ms: Ints
    given: GivenLabels

    @property
    def used(self) -> Bools:
        """Whether training uses the decision, `[n]`."""
        return self.state <= LabelState.ASSUMED

    def counts(self) -> dict[str, int]:
        """Return the number of decisions by state, of positive labels, and of contradictions."""
        states = Counter(LabelState(int(one)).name.lower() for one in self.state)
        return {
            **{state.name.lower(): states[state.name.lower()] for state in LabelState},
            "positive": int((self.used & (self.label == 1)).sum()),
            "contradictions": int(self.given.contradicts.sum()),
        }


def given_labels(histories: Histories, settings: LabelSettings) -> GivenLabels:
    """Return the labels that outcomes give, by the precedence of the policy."""
    n, reports = len(histories), histories.reports
    label, kind = np.full(n, _NONE, np.int8), np.full(n, _NONE, np.int8)
    first, known = np.zeros(n, np.int64), np.zeros(n, np.int64)
    contradicts, changed = np.zeros(n, bool), np.zeros(n, bool)
    for place, one in enumerate(settings.kinds):
        if one.kind not in histories.kinds:
            continue
        own = reports.kind == histories.kinds.index(one.kind)
        means = np.where(reports.value >= one.at_least, _MEANS[one.above], _MEANS[one.below])
        at = np.flatnonzero(own & (means != _NONE))
        rows, meant = reports.decision[at], means[at]
        first[rows] = np.where(
            first[rows] == 0, reports.first_ms[at], np.minimum(first[rows], reports.first_ms[at])
        )
        changed[rows] |= reports.changed[at]
        decided = label[rows] != _NONE
        contradicts[rows[decided & (label[rows] != meant)]] = True
        new = rows[~decided]
        label[new], kind[new] = meant[~decided], place
        known[new] = reports.known_ms[at][~decided]
    return GivenLabels(label, kind, first, known, contradicts, changed)


def weigh(
    histories: Histories, given: GivenLabels, settings: LabelSettings, curves: MaturityCurves | None
) -> WeightedLabels:
    """Return what training uses of each decision.

    Args:
        histories: The decisions.
        given: The labels that outcomes give.
        settings: The policy.
        curves: Maturity curves with that of `LABEL_CURVE`; None if the policy needs none.
    """
    age, labelled = histories.age_ms, given.label != _NONE
    wait = np.full(len(age), round(settings.wait_hours * _HOUR_MS), np.int64)
    later = np.zeros(len(age))
    if curves is not None:
        for rows, curve in _curves_of(histories, settings, curves):
            if settings.maturity is not None:
                wait[rows] = curve.age_of(settings.maturity)
            if settings.unlabelled in {"weighted", "modelled"}:
                later[rows] = curve.positive_later(age[rows])
    ripe, declined = age >= wait, is_declined(histories, settings)
    is_label = labelled & (ripe | (settings.early == "count"))
    state = np.where(is_label, LabelState.LABELLED, LabelState.IN_FLIGHT)
    absent = LabelState.UNLABELLED if settings.unlabelled == "exclude" else LabelState.ASSUMED
    state = np.where(~labelled & ripe, absent, state)
    state = np.where(~labelled & declined, LabelState.DECLINED, state)
    if settings.contradictions == "exclude":
        state = np.where(is_label & given.contradicts, LabelState.CONTRADICTORY, state)
    label = np.where(state == LabelState.LABELLED, given.label, _NONE)
    label = np.where(state == LabelState.ASSUMED, 0, label)
    return WeightedLabels(
        state.astype(np.int8),
        label.astype(np.int8),
        explored_factor(histories, settings),
        np.where(state == LabelState.ASSUMED, later, 0.0),
        age,
        given,
    )


def is_declined(histories: Histories, settings: LabelSettings) -> Bools:
    """Return which decisions ended the payment, `[n]`; none if the decisions were not read."""
    if all(one.name != "decision" for one in histories.segments):
        return np.zeros(len(histories), bool)
    return np.isin(histories.values_of("decision").astype(str), settings.declined)


def explored_factor(histories: Histories, settings: LabelSettings) -> Floats:
    """Return the number of decisions that each stands for, `[n]`."""
    factor = np.ones(len(histories))
    for one in settings.explored:
        # The first rule of the list that had an effect gives the factor.
        own = histories.values_of(RULE + one.rule) == APPLIED
        factor[own & (factor == 1.0)] = 1 / one.share
    return factor


def later_given(curve: MaturityCurve, age_ms: Ints, positive: Floats) -> Floats:
    """Return P(a positive label still comes | no label by the age, features), `[n]`.

    By Bayes' rule, if delays depend on the label and not on the features otherwise.

    Args:
        curve: Maturity curve of the labels.
        age_ms: ``[n]`` ages.
        positive: ``[n]`` P(the label is ever positive | features).
    """
    whole = curve.arrives_positive.value
    if not 0 < whole < 1:
        return np.zeros(len(age_ms))
    by_then = curve.reported_positive(age_ms)
    others = np.maximum(curve.reported(age_ms) - by_then, 0.0)
    # P(no label by the age | positive), and the same of all others.
    open_positive = np.clip((whole - by_then) / whole, 0.0, 1.0)
    open_other = np.clip((1 - whole - others) / (1 - whole), 1e-12, 1.0)
    odds = positive * open_positive
    return np.asarray(odds / (odds + (1 - positive) * open_other))


def _curves_of(
    histories: Histories, settings: LabelSettings, curves: MaturityCurves
) -> list[tuple[Ints, MaturityCurve]]:
    """Return the rows of each segment, with the segment's curve."""
    column = next((one for one in histories.segments if one.name == settings.segment), None)
    if column is None:
        return [(np.arange(len(histories)), curves.of(LABEL_CURVE))]
    return [
        (
            np.flatnonzero(column.codes == code),
            curves.of(LABEL_CURVE, CurveSegment(name=column.name, value=value)),
        )
        for code, value in enumerate(column.values)
    ]


def curve_rows(
    histories: Histories, settings: LabelSettings, curves: MaturityCurves
) -> tuple[npt.NDArray[np.int32], list[MaturityCurve]]:
    """Return for each decision the position of its curve, `[n]`, and the curves."""
    place = np.zeros(len(histories), np.int32)
    found = _curves_of(histories, settings, curves)
    for at, (rows, _) in enumerate(found):
        place[rows] = at
    return place, [curve for _, curve in found]


def by_segment(histories: Histories, settings: LabelSettings) -> Histories:
    """Return the histories with the segment of the policy only."""
    own = tuple(one for one in histories.segments if one.name == settings.segment)
    return replace(histories, segments=own)
