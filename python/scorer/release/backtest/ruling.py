"""The rules of both bundles on logged decisions: which decisions they change, and by which rule.

Both bundles decide each row with their own scores and rules, at the time and with the id of the logged
decision. The result of a row is three numbers, so that rows that are recorded twice, withdrawn or thinned out
are left out later.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.ids import eligible_actions
from scorer.log.rule_backtest import (
    ACTION_CHANGES,
    SELECTED,
    RuleBacktest,
    RuleChange,
    action_changes,
    amount_band,
)
from scorer.release.gates.measured import Measured, nothing
from scorer.stats.arrays import Bools, Floats, Ints, Rows32
from scorer.stats.blocks import Blocks

if TYPE_CHECKING:
    from scorer.bundle import Bundle, Scores
    from scorer.bundle.rules import RuledRows
    from scorer.log.columns import DecisionColumns, Ragged
    from scorer.release.backtest.rows import Scored

CHANGED: Final = "backtest_decisions_changed"
LOST: Final = "backtest_approvals_lost"
NOTHING_LEFT: Final = "backtest_nothing_left"
METRICS: Final = (CHANGED, LOST, NOTHING_LEFT)
"""Metrics of gates that need no outcomes."""
_EXAMPLES: Final = 5
_MOST_SIGNATURES: Final = 100_000
"""Combinations of rules with an effect that are told apart."""
_NO_SCORE: Final = "no score"
_NOTHING: Final = ACTION_CHANGES.index("nothing left")
_SURE: Final = 0.95


@dataclass(frozen=True)
class RuleEffects:
    """What the rules of the candidate change.

    Attributes:
        report: Decisions by what both bundles decide, and the rules with an effect.
        measured: Values by the name of the gates' metric.
        metrics: Values for display, by name: `live`, `candidate`, `difference`, `low`, `high`.
        uncounted: Decisions whose rules are not in the report, because their combinations are too many.
        unlimited: Rules of both bundles that have a daily budget, which does not apply here.
    """

    report: RuleBacktest
    measured: dict[str, Measured]
    metrics: dict[str, dict[str, float | None]] = field(default_factory=dict)
    uncounted: int = 0
    unlimited: tuple[str, ...] = ()


class RuleSides:
    """Decides rows with the rules of both bundles.

    Args:
        candidate: The candidate.
        live: The live bundle.
    """

    def __init__(self, candidate: Bundle, live: Bundle) -> None:
        self._bundles = candidate, live
        labels = [*live.labels, *candidate.labels]
        self._labels = list(dict.fromkeys(labels)) if live.kind == "score" else list(ACTION_CHANGES)
        self._signatures: dict[tuple[Any, ...], int] = {}

    @property
    def given(self) -> bool:
        """Whether a bundle has rules."""
        return any(bundle.rules is not None for bundle in self._bundles)

    def of_scores(
        self, decisions: DecisionColumns, rows: tuple[Rows32, Rows32], found: tuple[Scores, Scores]
    ) -> dict[str, Floats]:
        """Decide the scores of the candidate and of the live bundle.

        Args:
            decisions: The decisions, `[n]`.
            rows: Their rows in the schema of each bundle.
            found: Their scores.

        Returns:
            The codes of `before`, `after` and `rules`, `[n]` each.
        """
        ruled = [
            self._ruled(bundle, decisions, own, scores.scores)
            for bundle, own, scores in zip(self._bundles, rows, found, strict=True)
        ]
        after, before = (
            self._codes(bundle, scores, result)
            for bundle, scores, result in zip(self._bundles, found, ruled, strict=True)
        )
        return {"before": before, "after": after, "rules": self._signed(ruled, len(decisions))}

    def of_actions(
        self, decisions: DecisionColumns, at: Ints, rows: tuple[Rows32, Rows32]
    ) -> tuple[tuple[Bools, Bools], dict[str, Floats]]:
        """Restrict the actions of some decisions.

        Args:
            decisions: The decisions.
            at: Positions of those to restrict.
            rows: All rows in the schema of each bundle.

        Returns:
            The actions that the request and the rules of each bundle allow, `[n, actions]` each, and the
            codes as of `of_scores`.
        """
        own = decisions.take(at)
        actions = len(self._bundles[1].actions)
        requested = action_masks(own.requested, actions)
        none = np.full(len(at), np.nan)
        ruled = [
            self._ruled(bundle, own, side[at], none) for bundle, side in zip(self._bundles, rows, strict=True)
        ]
        after, before = (requested if result is None else requested & result.allowed for result in ruled)
        codes = action_changes(before, after, own.action.astype(np.int64)).astype(np.float64)
        return (after, before), {
            "before": np.zeros(len(at)),
            "after": codes,
            "rules": self._signed(ruled, len(at)),
        }

    def effects(self, rows: Scored, outcome: Floats, known: Bools, kind: str, approve: str) -> RuleEffects:
        """Report which decisions change, and measure the gates of rules.

        Args:
            rows: The decisions with the codes of both bundles.
            outcome: The outcome of each, `[n]`.
            known: Whether it is known, `[n]`.
            kind: Kind of the outcome.
            approve: Label that lets a payment pass.
        """
        report = RuleBacktest(self._ids(0), decisions=len(rows))
        if not len(rows):
            return RuleEffects(report, dict.fromkeys(METRICS, nothing("no decision of the window is usable")))
        before, after = (rows.values[name].astype(np.int64) for name in ("before", "after"))
        pairs, of = np.unique(np.stack([before, after]), axis=1, return_inverse=True)
        for place, (one, other) in enumerate(pairs.T.tolist()):
            at = np.flatnonzero(of.ravel() == place)
            change = self._change(rows, at, one, other)
            _count_outcomes(change, at, outcome, known, kind)
            report.changes[(change.before, change.after)] = change
        codes = rows.values["rules"].astype(np.int64)
        counted = codes >= 0
        self._count_rules(report, codes[counted], (before != after)[counted])
        uncounted = int((~counted).sum())
        with_budget = {
            rule.id for bundle in self._bundles if bundle.rules for rule in bundle.rules.rules if rule.budget
        }
        return RuleEffects(
            report, *self._measure(rows, before, after, approve), uncounted, tuple(sorted(with_budget))
        )

    # --- inside ---

    def _ids(self, side: int) -> list[str]:
        rules = self._bundles[side].rules
        return [] if rules is None else [rule.id for rule in rules.rules]

    @staticmethod
    def _ruled(bundle: Bundle, decisions: DecisionColumns, rows: Rows32, scores: Floats) -> RuledRows | None:
        if bundle.rules is None or not len(decisions):
            return None
        return bundle.rules.evaluate(
            rows, scores=scores, seconds=decisions.at // 1_000_000, ids=decisions.id.texts()
        )

    def _codes(self, bundle: Bundle, found: Scores, ruled: RuledRows | None) -> Floats:
        """Return codes of the decisions; one more than there are labels where there is no score."""
        places = np.array([self._labels.index(label) for label in bundle.labels], np.int64)
        bands = np.minimum((found if ruled is None else ruled).bands.astype(np.int64), len(places) - 1)
        return np.where(np.isfinite(found.scores), places[bands], len(self._labels)).astype(np.float64)

    def _signed(self, ruled: list[RuledRows | None], count: int) -> Floats:
        """Return a code of each row for its rules with an effect and its conditions without value."""
        own, live = ruled
        if own is None and live is None:
            return np.full(count, float(self._code(((), (), 0, 0, 0))))
        empty: list[list[int]] = [[]] * count
        fired = zip(own.applied if own else empty, live.applied if live else empty, strict=True)
        zeros = [0] * count
        without = zip(
            own.unknown if own else zeros,
            own.errors if own else zeros,
            own.conflicts if own else zeros,
            strict=True,
        )
        keys = (
            (tuple(one), tuple(other), *counts) for (one, other), counts in zip(fired, without, strict=True)
        )
        return np.fromiter((self._code(key) for key in keys), np.float64, count)

    def _code(self, key: tuple[Any, ...]) -> int:
        """Return the number of a combination; -1 if there are too many."""
        known = self._signatures
        return known.get(key, -1) if len(known) == _MOST_SIGNATURES else known.setdefault(key, len(known))

    def _label(self, code: int) -> str:
        return self._labels[code] if code < len(self._labels) else _NO_SCORE

    def _change(self, rows: Scored, at: Ints, before: int, after: int) -> RuleChange:
        change = RuleChange(self._label(before), self._label(after), len(at))
        amount = rows.amount[at].astype(np.float64)
        if np.isfinite(rows.amount).any():
            change.amount = float(np.nansum(amount))
            values, counts = np.unique(amount, return_counts=True)
            for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                change.bands[amount_band(value)] += count
        change.examples = rows.id.take(at[:_EXAMPLES]).texts()
        return change

    def _count_rules(self, report: RuleBacktest, codes: Ints, changed: Bools) -> None:
        own, live = self._ids(0), self._ids(1)
        signatures = list(self._signatures)
        size = len(signatures)
        counts = np.bincount(codes, minlength=size)
        changes = np.bincount(codes[changed], minlength=size)
        for place in np.flatnonzero(counts).tolist():
            first, second, unknown, errors, conflicts = signatures[place]
            count = int(counts[place])
            names, before = [own[at] for at in first], [live[at] for at in second]
            report.hits.update(dict.fromkeys(names, count))
            report.hits_before.update(dict.fromkeys(before, count))
            if changes[place]:
                report.changed_by.update(dict.fromkeys({*names, *before}, int(changes[place])))
            report.unknown += unknown * count
            report.errors += errors * count
            report.conflicts += conflicts * count

    def _measure(
        self, rows: Scored, before: Ints, after: Ints, approve: str
    ) -> tuple[dict[str, Measured], dict[str, dict[str, float | None]]]:
        blocks, one = Blocks(rows.at), np.ones(len(rows))
        measured, metrics = {}, {}

        def add(name: str, of: Bools, among: Floats, words: str) -> None:
            found = blocks.ratio(of.astype(np.float64), among)
            total = int(among.sum())
            low, high = found.bounds(_SURE)
            measured[name] = Measured(
                found.value, total, found.bounds, remark=f"{int(of.sum()):,} of {total:,} {words}"
            )
            bounds = {
                key: float(value) if np.isfinite(value) else None
                for key, value in (("low", low), ("high", high))
            }
            metrics[name.removeprefix("backtest_")] = {
                "live": 0.0,
                "candidate": found.value,
                "difference": found.value,
                **bounds,
            }

        add(CHANGED, before != after, one, "decisions would be other ones")
        if self._labels[0] == SELECTED:
            add(NOTHING_LEFT, after == _NOTHING, one, "decisions would have no action left")
            return measured, metrics
        place = self._labels.index(approve) if approve in self._labels else 0
        approved = before == place
        if approved.any():
            lost = approved & (after != place)
            add(LOST, lost, approved.astype(np.float64), "approvals would be lost")
        else:
            measured[LOST] = nothing("live approves none of these decisions", len(rows))
        return measured, metrics


def action_masks(masks: Ragged, count: int) -> Bools:
    """Return logged masks of actions, `[n, count]`. Each distinct mask is decoded once."""
    ends = np.cumsum(masks.counts)
    whole = masks.values.tobytes()
    parts = [whole[end - size : end] for end, size in zip(ends, masks.counts, strict=True)]
    known = {mask: eligible_actions(mask, count) for mask in set(parts)}
    return np.stack([known[mask] for mask in parts])


def _count_outcomes(change: RuleChange, at: Ints, outcome: Floats, known: Bools, kind: str) -> None:
    """Count the decisions of a change whose outcome is known, and the positive ones."""
    reported = at[known[at]]
    if len(reported):
        change.known = Counter({kind: len(reported)})
        change.outcomes = Counter({kind: int((outcome[reported] > 0).sum())})
