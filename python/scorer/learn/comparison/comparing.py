"""Weeks, totals, paired differences and the best version of each week, from the rows of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final

import numpy as np

from scorer.learn.comparison.measures import (
    ACTION_METRICS,
    LOWER_IS_BETTER,
    NOT_RANKED,
    SCORE_METRICS,
    MeasuredPart,
    Share,
    draws_of,
)
from scorer.learn.comparison.results import Basis, BestOfWeek, MetricValue, PairedDifference, VersionWeek
from scorer.learn.comparison.rows import Advance, ComparedRows, Prepared
from scorer.learn.comparison.settings import ComparisonSettings
from scorer.learn.comparison.versions import VersionFacts
from scorer.stats.arrays import Bools
from scorer.stats.blocks import Draws

_CONFIDENCE: Final = 0.975
"""One-sided confidence of each bound of a 95 % interval."""
_FAILING: Final = 0.05
"""Share of a week's decisions without a score from which on a version is left out of the week."""

Metrics = Mapping[str, Draws]


@dataclass
class ComparedVersions:
    """What `compare_rows` returns; see `results.Comparison` for the fields."""

    metrics: tuple[str, ...]
    values: list[VersionWeek] = field(default_factory=list)
    pairs: list[PairedDifference] = field(default_factory=list)
    best: list[BestOfWeek] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)


def compare_rows(
    prepared: Prepared,
    versions: Sequence[VersionFacts],
    settings: ComparisonSettings,
    *,
    advance: Advance = lambda _step, _share: None,
) -> ComparedVersions:
    """Compare versions in each settled week and over all of them.

    A version is left out of a week if it has no score for more than 5 % of the week's decisions. Otherwise
    the decisions that a version of the week has no score for are left out for all, so that all versions are
    compared on the same ones.

    Args:
        prepared: The decisions.
        versions: The versions, in the order of the rows' values.
        settings: Limits and the cost matrix.
        advance: Called with the progress.
    """
    names = SCORE_METRICS if prepared.kind == "score" else ACTION_METRICS
    return _Comparing(prepared, versions, settings, names, advance).compared()


class _Comparing:
    def __init__(
        self,
        prepared: Prepared,
        versions: Sequence[VersionFacts],
        settings: ComparisonSettings,
        names: tuple[str, ...],
        advance: Advance,
    ) -> None:
        self._prepared, self._versions, self._settings = prepared, versions, settings
        self._rows, self._advance = prepared.rows, advance
        self._known = np.isfinite(prepared.rows.values)
        self._covered = np.zeros((len(versions), len(prepared.weeks)), bool)
        self._found = ComparedVersions(names)

    def compared(self) -> ComparedVersions:
        rows = self._rows
        common = np.zeros(len(rows), bool)
        settled = [at for at, week in enumerate(self._prepared.weeks) if week.settled]
        for done, week in enumerate(settled):
            of = np.flatnonzero(rows.week == week)
            common[of] = self._week(week, of, self._part("weeks", done, len(settled)))
        served = [(at, week) for at in range(len(self._versions)) for week in (*settled, None)]
        for done, (at, each) in enumerate(served):
            of_weeks = np.isin(rows.week, settled if each is None else [each])
            self._served(at, each, of_weeks, self._part("served", done, len(served)))
        self._totals(common, settled)
        names = {name for one in self._found.values for name in one.metrics}
        self._found.metrics = tuple(name for name in self._found.metrics if name in names)
        return self._found

    def _part(self, step: str, done: int, whole: int) -> Share:
        """Report that one of the equal parts of a step begins. Return a function that reports its share."""

        def advance(share: float) -> None:
            self._advance(step, (done + share) / whole)

        advance(0.0)
        return advance

    def _of_version(self, advance: Share, at: int) -> Share:
        return lambda share: advance((at + share) / len(self._versions))

    def _week(self, week: int, of: np.ndarray, advance: Share) -> Bools:
        """Compare the versions in a week. Return which of its decisions all of them have a score for."""
        known = self._known[:, of]
        share = known.mean(axis=1) if len(of) else np.zeros(len(self._versions))
        self._covered[:, week] = (share >= 1 - _FAILING) & (share > 0)
        own = np.flatnonzero(self._covered[:, week])
        kept = known[own].all(axis=0) if len(own) else np.zeros(len(of), bool)
        if not kept.any():
            # Each version may miss other decisions, so that no decision is left for all of them.
            self._covered[:, week] = False
        if len(own) and not kept.all():
            name = "without a score of one of the versions"
            self._found.left_out[name] = self._found.left_out.get(name, 0) + int((~kept).sum())
        part = MeasuredPart.of(self._rows.take(of[kept]), self._settings) if kept.any() else None
        found: dict[int, Metrics] = {}
        for at, facts in enumerate(self._versions):
            if self._covered[at, week] and part is not None:
                draws, reason = draws_of(
                    self._prepared.kind, part, at, served=False, advance=self._of_version(advance, at)
                )
                found[at] = draws
                self._add(at, week, "backtest", part.rows, draws, reason)
            else:
                self._add(at, week, "backtest", None, {}, self._why(facts, at, week, float(share[at])))
        for metric in self._found.metrics:
            self._best(week, metric, found)
        return np.asarray(kept, bool)

    def _why(self, facts: VersionFacts, at: int, week: int, share: float) -> str:
        if facts.refused:
            return facts.refused
        reason = self._prepared.missing.get((at, week))
        return reason or f"it has a score for {share:.1%} of the decisions"

    def _served(self, at: int, week: int | None, of: Bools, advance: Share) -> None:
        own = self._rows.take(of & (self._rows.served == at))
        if not len(own):
            self._add(at, week, "served", None, {}, "it served no decision")
            return
        if self._prepared.kind == "score":
            scored = np.isfinite(own.values[at])
            if not scored.any():
                self._add(at, week, "served", own, {}, "its own decisions cannot be scored")
                return
            own = own.take(scored)
        part = MeasuredPart.of(own, self._settings)
        draws, reason = draws_of(self._prepared.kind, part, at, served=True, advance=advance)
        self._add(at, week, "served", own, draws, reason)

    def _totals(self, common: Bools, settled: Sequence[int]) -> None:
        """Add the backtest over all weeks of each version, and the paired differences."""
        cache: dict[tuple[bytes, int], Metrics] = {}
        parts: dict[bytes, MeasuredPart] = {}

        def draws(weeks: Bools, at: int, advance: Share) -> tuple[Metrics, MeasuredPart, str]:
            key = weeks.tobytes()
            if key not in parts:
                parts[key] = MeasuredPart.of(self._rows.take(common & weeks[self._rows.week]), self._settings)
            found, reason = draws_of(self._prepared.kind, parts[key], at, served=False, advance=advance)
            cache[key, at] = found
            return found, parts[key], reason

        for at, facts in enumerate(self._versions):
            advance = self._part("totals", at, len(self._versions))
            weeks = self._covered[at]
            if not weeks.any():
                why = self._why(facts, at, settled[0], 0.0) if settled else "no week is settled"
                self._add(at, None, "backtest", None, {}, facts.refused or why)
                continue
            metrics, part, reason = draws(weeks, at, advance)
            self._add(at, None, "backtest", part.rows, metrics, reason)
        pairs = list(combinations(range(len(self._versions)), 2))
        for done, (left, right) in enumerate(pairs):
            advance = self._part("pairs", done, len(pairs))
            weeks = self._covered[left] & self._covered[right]
            if not weeks.any():
                continue
            key = weeks.tobytes()
            pair = [
                cache[key, at] if (key, at) in cache else draws(weeks, at, advance)[0] for at in (left, right)
            ]
            for metric in self._found.metrics:
                if metric in NOT_RANKED or any(metric not in one for one in pair):
                    continue
                difference = _value(pair[0][metric].minus(pair[1][metric]))
                if difference is not None:
                    rows = len(parts[key].rows)
                    self._found.pairs.append(
                        PairedDifference(left, right, metric, int(weeks.sum()), rows, difference)
                    )

    def _best(self, week: int, metric: str, found: Mapping[int, Metrics]) -> None:
        own = {
            at: one[metric] for at, one in found.items() if metric in one and math.isfinite(one[metric].value)
        }
        if not own or metric in NOT_RANKED:
            return
        sign = 1 if metric in LOWER_IS_BETTER else -1
        order = sorted(own, key=lambda at: (sign * own[at].value, at))
        lead = _value(own[order[0]].minus(own[order[1]])) if len(order) > 1 else None
        clear = lead is not None and (_is_above(lead.low) or _is_above(_negative(lead.high)))
        runner_up = order[1] if len(order) > 1 else None
        self._found.best.append(BestOfWeek(week, metric, order[0], runner_up, lead, clear))

    def _add(
        self,
        at: int,
        week: int | None,
        basis: Basis,
        rows: ComparedRows | None,
        draws: Metrics,
        reason: str,
    ) -> None:
        values = {name: _value(one) for name, one in draws.items()}
        self._found.values.append(
            VersionWeek(
                at,
                week,
                basis,
                0 if rows is None else len(rows),
                0 if rows is None else int((rows.outcome > 0).sum()),
                {name: one for name, one in values.items() if one is not None},
                reason,
            )
        )


def _value(draws: Draws) -> MetricValue | None:
    if not math.isfinite(draws.value):
        return None
    low, high = draws.replicated().bounds(_CONFIDENCE)
    known = math.isfinite(low) and math.isfinite(high)
    return MetricValue(draws.value, float(low) if known else None, float(high) if known else None)


def _is_above(bound: float | None) -> bool:
    return bound is not None and bound > 0


def _negative(bound: float | None) -> float | None:
    return None if bound is None else -bound
