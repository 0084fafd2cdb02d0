"""Backtest of rules: recorded decisions are decided again with other rules, and the changes are reported."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.errors import LogError
from scorer.ids import eligible_actions
from scorer.log.outcomes import OutcomeJoin
from scorer.log.reading import Advance
from scorer.log.ruled import WITHOUT_RULES, evaluate, requested
from scorer.log.scanning import scan
from scorer.log.sealing import ReaderKey
from scorer.log.tables import is_action

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rules import CompiledRules
    from scorer.v1.log_pb2 import DecisionRecord

AMOUNTS = (10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)
"""Upper limits of the amount bands, excluded."""
SELECTED = "selected"
ACTION_CHANGES = (SELECTED, "fewer choices", "other choices", "not allowed", "nothing left")
"""What rules make of a selection: the same choices, fewer ones, others, not the selected action, none."""
_CHUNK = 4096
_SCORED = ("", "previous", WITHOUT_RULES)
"""Sources whose answer has the model's score."""


@dataclass
class RuleChange:
    """Decisions with the same change, such as from approve to decline."""

    before: str
    after: str
    count: int = 0
    amount: float = 0.0
    """Sum of the amounts, where the decisions have one."""
    bands: Counter[str] = field(default_factory=Counter)
    """Number of decisions by amount band."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Number of decisions with a positive outcome, by its kind."""
    known: Counter[str] = field(default_factory=Counter)
    """Number of decisions whose outcome is known, by its kind."""
    examples: list[str] = field(default_factory=list)
    """Ids of the first decisions."""

    @property
    def changed(self) -> bool:
        """Whether the decision is another one."""
        return self.before != self.after


@dataclass
class RuleBacktest:
    """The result of a backtest of rules."""

    rules: list[str]
    """Ids of the rules."""
    decisions: int = 0
    """Decisions that were decided again."""
    changes: dict[tuple[str, str], RuleChange] = field(default_factory=dict)
    """Decisions by what they were and would be."""
    hits: Counter[str] = field(default_factory=Counter)
    """Decisions on which each rule has an effect."""
    hits_before: Counter[str] = field(default_factory=Counter)
    """Decisions on which each recorded rule had an effect."""
    unknown: int = 0
    """Rules that did not fire because a value is missing, over all decisions."""
    errors: int = 0
    """Rules that did not fire because their condition has no value, over all decisions."""
    conflicts: int = 0
    """Groups whose rules contradicted each other, over all decisions."""
    changed_by: Counter[str] = field(default_factory=Counter)
    """Decisions that would be other ones, by the rules that have or had an effect on them."""
    withheld: int = 0
    """Decisions that were decided again without their sensitive features, which are not in the log."""
    fallbacks: int = 0
    """Decisions of fallbacks, which are left out."""
    others: int = 0
    """Decisions of bundles with another schema, other decisions or actions, which are left out."""

    @property
    def changed(self) -> int:
        """Number of decisions that would be other ones."""
        return sum(change.count for change in self.changes.values() if change.changed)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values, with the most frequent changes first."""
        changes = sorted(self.changes.values(), key=lambda one: -one.count)
        rows = [{**_plain(vars(change)), "changed": change.changed} for change in changes]
        return {**_plain(vars(self)), "changes": rows, "changed": self.changed, "never": self.never}

    @property
    def never(self) -> list[str]:
        """The rules that had no effect on any decision."""
        return [rule for rule in self.rules if not self.hits[rule]]


def backtest_rules(
    logs: Sequence[str | PathLike[str]],
    bundle: Bundle,
    rules: CompiledRules,
    *,
    amount: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    examples: int = 5,
    reader_key: ReaderKey | None = None,
    advance: Advance | None = None,
) -> RuleBacktest:
    """Decide recorded decisions again with rules, and report the changes.

    Scores are those of the log. Rules see the time and the id of the recorded decision. Two passes are made:
    one collects outcomes, the other evaluates decisions in chunks, so the memory depends on the number of
    outcomes and not on that of decisions.

    Args:
        logs: Directories of the decision logs.
        bundle: The bundle that the rules were compiled for. Decisions of any bundle with its schema,
            decisions and actions are decided again.
        rules: The rules.
        amount: Name of the feature with the amount.
        since: Leave out decisions before this time.
        until: Leave out decisions at or after this time.
        examples: Number of ids that are kept for each change.
        reader_key: Key that decrypts sensitive features.
        advance: Called with the bytes read so far and the total bytes of each pass of each log.

    Raises:
        LogError: A directory is not a log, or the bundle has no such amount.
    """
    at = None
    if amount is not None:
        names = list(bundle.columns[: bundle.num_features])
        if amount not in names:
            raise LogError(f'amount "{amount}" is not a feature of the bundle; name one of its numbers')
        at = names.index(amount)
    outcomes = OutcomeJoin()
    for directory in logs:
        for sequence, _, record in scan(directory, kinds={"outcome"}, advance=advance):
            outcomes.add(sequence, record)
    run = _Run(bundle, rules, outcomes, at, examples)
    window = tuple(None if time is None else int(time.timestamp() * 1e6) for time in (since, until))
    for directory in logs:
        for _, _, decision in scan(directory, kinds={"decision"}, advance=advance, reader_key=reader_key):
            since_us, until_us = window
            if (since_us is None or decision.decided_at_us >= since_us) and (
                until_us is None or decision.decided_at_us < until_us
            ):
                run.add(decision)
    run.flush()
    return run.result


class _Run:
    """Evaluates decisions in chunks."""

    def __init__(
        self, bundle: Bundle, rules: CompiledRules, outcomes: OutcomeJoin, amount: int | None, examples: int
    ) -> None:
        self._bundle, self._rules, self._outcomes = bundle, rules, outcomes
        self._amount, self._examples = amount, examples
        self._waiting: list[DecisionRecord] = []
        self._seen: set[tuple[str, str]] = set()
        self.result = RuleBacktest([rule.id for rule in rules.rules])

    def add(self, decision: DecisionRecord) -> None:
        key = (decision.checkpoint, decision.decision_id)
        if key in self._seen:
            return
        self._seen.add(key)
        if not self._fits(decision):
            self.result.others += 1
            return
        if decision.fallback_source not in (*_SCORED, "greedy"):
            self.result.fallbacks += 1
            return
        self._waiting.append(decision)
        if len(self._waiting) == _CHUNK:
            self.flush()

    def flush(self) -> None:
        """Evaluate the waiting decisions."""
        decisions, self._waiting = self._waiting, []
        if not decisions:
            return
        action = self._bundle.kind == "action"
        scores = [math.nan if action else decision.score for decision in decisions]
        found = evaluate(self._rules, decisions, scores)
        result = self.result
        result.decisions += len(decisions)
        result.unknown += sum(found.unknown)
        result.errors += sum(found.errors)
        result.conflicts += sum(found.conflicts)
        ids = result.rules
        for at, decision in enumerate(decisions):
            result.withheld += bool(decision.withheld)
            now = [ids[number] for number in found.applied[at]]
            recorded = [rule.id for rule in decision.rules.fired]
            result.hits.update(now)
            result.hits_before.update(recorded)
            if action:
                before, after = SELECTED, _of_actions(decision, found.allowed[at], len(self._bundle.actions))
            else:
                before, after = decision.decision, self._bundle.labels[int(found.bands[at])]
            self._count(decision, before, after)
            if before != after:
                result.changed_by.update({*now, *recorded})

    def _fits(self, decision: DecisionRecord) -> bool:
        bundle = self._bundle
        if decision.schema_fingerprint != bundle.schema_fingerprint:
            return False
        if is_action(decision) != (bundle.kind == "action"):
            return False
        if bundle.kind == "action":
            at = decision.action_index
            return len(decision.pmf) == len(bundle.actions) and bundle.actions[at] == decision.action
        return decision.decision in bundle.labels

    def _count(self, decision: DecisionRecord, before: str, after: str) -> None:
        change = self.result.changes.setdefault((before, after), RuleChange(before, after))
        change.count += 1
        if self._amount is not None:
            value = decision.features[self._amount]
            change.bands[amount_band(value)] += 1
            change.amount += 0.0 if math.isnan(value) else value
        for kind, report in self._outcomes.of(decision.checkpoint, decision.decision_id).items():
            change.known[kind] += 1
            change.outcomes[kind] += report.value > 0
        if len(change.examples) < self._examples:
            change.examples.append(decision.decision_id)


def amount_band(amount: float) -> str:
    """Return the name of an amount's band, such as "100 to 250".

    Args:
        amount: The amount; NaN if it is missing.
    """
    if math.isnan(amount):
        return "missing"
    at = bisect.bisect_right(AMOUNTS, amount)
    if at == 0:
        return f"below {AMOUNTS[0]:g}"
    if at == len(AMOUNTS):
        return f"{AMOUNTS[-1]:g} and above"
    return f"{AMOUNTS[at - 1]:g} to {AMOUNTS[at]:g}"


def action_changes(before: Any, after: Any, action: Any) -> Any:
    """Return what other rules would make of selections, as positions in `ACTION_CHANGES`.

    Args:
        before: Actions that were allowed, bool ``[n, actions]``.
        after: Actions that would be allowed.
        action: Positions of the selected actions, ``[n]``.
    """
    kept = after[np.arange(len(after)), action]
    same = (before == after).all(axis=1)
    fewer = ~(after & ~before).any(axis=1)
    return np.select([~after.any(axis=1), ~kept, same, fewer], [4, 3, 0, 1], 2)


def _of_actions(decision: DecisionRecord, allowed: Any, actions: int) -> str:
    """What other rules would make of the eligible actions of a recorded selection."""
    before = eligible_actions(decision.eligible_mask, actions)
    after = requested(decision, actions) & allowed
    return ACTION_CHANGES[int(action_changes(before[None], after[None], [decision.action_index])[0])]


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in fields.items()}
