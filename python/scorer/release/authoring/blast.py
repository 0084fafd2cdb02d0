"""Blast radius of edited rules: recorded decisions of a checkpoint with the present and the edited rules."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.log.rule_backtest import ACTION_CHANGES, action_changes, amount_band
from scorer.log.tables import eligible, is_action
from scorer.release.errors import InvalidError
from scorer.release.rule_answers import BlastRadius, RuleEffect, RuleShift
from scorer.stats.proportions import wilson

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.models import Feature
    from scorer.bundle.rules import CompiledRules, RuledRows
    from scorer.release.decisions.sampling import SampledDecision

_EXAMPLES: Final = 5
_CONFIDENCE: Final = 0.975
"""One-sided, so that the interval has 95 %."""


@dataclass
class _Shift:
    count: int = 0
    amount: float = 0.0
    bands: Counter[str] = field(default_factory=Counter)
    known: int = 0
    positive: int = 0
    examples: list[str] = field(default_factory=list)


def blast_radius(
    bundle: Bundle,
    features: Sequence[Feature],
    before: CompiledRules,
    after: CompiledRules,
    sample: Sequence[SampledDecision],
    *,
    amount: str,
    outcome: str,
) -> BlastRadius:
    """Decide recorded decisions again with the present and with the edited rules of a bundle.

    Scores are those of the log. Decisions of fallbacks and of bundles with other features are left out.

    Args:
        bundle: The bundle whose rules were edited.
        features: The features of its requests.
        before: Its present rules.
        after: The edited rules.
        sample: The decisions.
        amount: Name of the feature with the amount; empty: none.
        outcome: Kind of the outcome that shows whether a decision was right.

    Raises:
        InvalidError: The bundle has no such amount.
    """
    names = [one.name for one in features]
    if amount and amount not in names:
        raise InvalidError(f'amount: the bundle has no feature "{amount[:100]}"; name one of its numbers')
    usable = [one for one in sample if not one.record.fallback_source]
    fallbacks = len(sample) - len(usable)
    fitting = [one for one in usable if _fits(one, names, bundle)]
    found = _decided(bundle, before, after, fitting)
    shifts: dict[tuple[str, str], _Shift] = {}
    changed_by: Counter[str] = Counter()
    hits: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for at, one in enumerate(fitting):
        fired = [
            [rules.rules[number].id for number in ruled.applied[at]]
            for rules, ruled in ((before, found.before), (after, found.after))
        ]
        for counter, ids in zip(hits, fired, strict=True):
            counter.update(ids)
        shift = shifts.setdefault(found.pairs[at], _Shift())
        if found.pairs[at][0] != found.pairs[at][1]:
            changed_by.update(set(fired[0]) ^ set(fired[1]))
        _count(shift, one, _amount(one, names, amount), outcome)
    rows = sorted(shifts.items(), key=lambda item: (item[0][0] == item[0][1], -item[1].count))
    changed = sum(shift.count for pair, shift in rows if pair[0] != pair[1])
    bounds = wilson(changed, len(fitting), _CONFIDENCE) if fitting else None
    rules = dict.fromkeys([*(one.id for one in after.rules), *(one.id for one in before.rules)])
    return BlastRadius(
        kind=bundle.kind,
        decisions=len(fitting),
        changed=changed,
        share=changed / len(fitting) if fitting else None,
        low=None if bounds is None else bounds.low,
        high=None if bounds is None else bounds.high,
        shifts=tuple(_shift(pair, shift) for pair, shift in rows),
        rules=tuple(RuleEffect(rule, hits[0][rule], hits[1][rule], changed_by[rule]) for rule in rules),
        fallbacks=fallbacks,
        others=len(usable) - len(fitting),
        withheld=sum(bool(one.record.withheld) for one in fitting),
        unknown=sum(found.after.unknown),
        errors=sum(found.after.errors),
    )


@dataclass(frozen=True)
class _Decided:
    before: RuledRows
    after: RuledRows
    pairs: list[tuple[str, str]]


def _fits(one: SampledDecision, names: Sequence[str], bundle: Bundle) -> bool:
    if one.schema is None or is_action(one.record) != (bundle.kind == "action"):
        return False
    if bundle.kind == "action" and len(one.record.pmf) != len(bundle.actions):
        return False
    return [own.name for own in one.schema.features] == list(names) and len(one.record.features) == len(names)


def _decided(
    bundle: Bundle, before: CompiledRules, after: CompiledRules, sample: Sequence[SampledDecision]
) -> _Decided:
    width = len(sample[0].record.features) if sample else 0
    rows = np.asarray([one.record.features for one in sample], np.float32).reshape(len(sample), width)
    is_score = bundle.kind == "score"
    scores = np.asarray([one.record.score if is_score else math.nan for one in sample], np.float64)
    seconds = [one.record.decided_at_us // 1_000_000 for one in sample]
    ids = [one.record.decision_id for one in sample]
    first, second = (
        rules.evaluate(rows, scores=scores, seconds=seconds, ids=ids) for rules in (before, after)
    )
    if is_score:
        pairs = [
            (bundle.labels[int(one)], bundle.labels[int(other)])
            for one, other in zip(first.bands, second.bands, strict=True)
        ]
        return _Decided(first, second, pairs)
    asked: Any = np.asarray([eligible(one.record) for one in sample], bool).reshape(len(sample), -1)
    chosen = np.asarray([one.record.action_index for one in sample], np.int64)
    if not sample:
        return _Decided(first, second, [])
    codes = action_changes(asked & first.allowed, asked & second.allowed, chosen)
    return _Decided(first, second, [(ACTION_CHANGES[0], ACTION_CHANGES[int(code)]) for code in codes])


def _amount(one: SampledDecision, names: Sequence[str], amount: str) -> float:
    if not amount:
        return math.nan
    at = names.index(amount)
    return math.nan if at in one.record.withheld else float(one.record.features[at])


def _count(shift: _Shift, one: SampledDecision, amount: float, outcome: str) -> None:
    shift.count += 1
    if not math.isnan(amount):
        shift.amount += amount
        shift.bands[amount_band(amount)] += 1
    if outcome in one.outcomes:
        shift.known += 1
        shift.positive += one.outcomes[outcome] > 0
    if len(shift.examples) < _EXAMPLES:
        shift.examples.append(one.record.decision_id)


def _shift(pair: tuple[str, str], shift: _Shift) -> RuleShift:
    bounds = wilson(shift.positive, shift.known, _CONFIDENCE) if shift.known else None
    return RuleShift(
        before=pair[0],
        after=pair[1],
        changed=pair[0] != pair[1],
        count=shift.count,
        amount=round(shift.amount, 2),
        bands=dict(shift.bands),
        known=shift.known,
        positive=shift.positive,
        rate=shift.positive / shift.known if shift.known else None,
        low=None if bounds is None else bounds.low,
        high=None if bounds is None else bounds.high,
        examples=tuple(shift.examples),
    )
