"""Whether the candidate harms a part of the traffic: an issuer country, a merchant."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from scorer.bundle import Feature
from scorer.learn.errors import DataError
from scorer.learn.gate.estimate import PolicyComparison
from scorer.learn.gate.settings import GateSettings
from scorer.learn.gate.verdict import SegmentVerdict, ValueInterval
from scorer.learn.levels import level_name
from scorer.stats.means import effective_sample_size
from scorer.stats.sequences import anytime_mean


def judge_segments(
    found: PolicyComparison, features: Sequence[Feature], gate: GateSettings
) -> tuple[SegmentVerdict, ...]:
    """Every value of every configured column that has decisions.

    With m segments that have `segment_rows` decisions, worth `bound_effective`, each is bounded at alpha / m,
    so that all bounds hold together. A segment is *harmed* where its upper bound is below 0 and its estimate
    below minus the margin; *safe* where its lower bound is above minus the margin; else *inconclusive*.

    Raises:
        DataError: a configured column is not one of the schema, or a number.
    """
    groups = []
    difference, weights = found.difference(), found.weights(found.candidate)
    for name in gate.segments:
        at = next((i for i, feature in enumerate(features) if feature.name == name), None)
        if at is None:
            known = ", ".join(feature.name for feature in features)
            raise DataError(f'gate.segments: "{name}" is no column of the schema; there are {known}')
        feature = features[at]
        if feature.type == "number":
            raise DataError(f'gate.segments: "{name}" is a number; use categories and flags')
        column = found.settled.context[:, at]
        for code in np.unique(column):
            own = np.isnan(column) if math.isnan(code) else column == code
            # Few large weights, or none by luck, make a spread look small: such a bound accuses wrongly.
            told = (
                own.sum() >= gate.segment_rows and effective_sample_size(weights[own]) >= gate.bound_effective
            )
            groups.append((name, level_name(feature.categories, float(code)), difference[own], told))
    tested = sum(told for *_, told in groups)
    return tuple(
        _judge(name, value, values, gate, tested if told else 0) for name, value, values, told in groups
    )


def _judge(column: str, value: str, values: np.ndarray, gate: GateSettings, tested: int) -> SegmentVerdict:
    if not tested:
        interval = ValueInterval(value=float(values.mean()), low=None, high=None, rows=len(values))
        return SegmentVerdict(column=column, value=value, difference=interval, state="inconclusive")
    found = anytime_mean(values, gate.alpha / tested)
    interval = ValueInterval(value=found.value, low=found.low, high=found.high, rows=found.rows)
    if found.high < 0 and found.value < -gate.segment_margin:
        return SegmentVerdict(column=column, value=value, difference=interval, state="harmed")
    safe = found.low > -gate.segment_margin
    return SegmentVerdict(
        column=column, value=value, difference=interval, state="safe" if safe else "inconclusive"
    )
