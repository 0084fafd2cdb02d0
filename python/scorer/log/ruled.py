"""Evaluating rules again on recorded decisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from scorer.ids import eligible_actions
from scorer.log.mismatch import Mismatch

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rules import CompiledRules, RuledRows
    from scorer.v1.log_pb2 import DecisionRecord

# Rules may have been evaluated in the second before the decision, and a rule may begin or end between.
_SECONDS_BEFORE = (0, 1)


WITHOUT_RULES = "model"
"""Fallback source of a score whose rules failed: the model's own decision."""


def evaluate(
    rules: CompiledRules, decisions: Sequence[DecisionRecord], scores: Any, *, seconds_before: int = 0
) -> RuledRows:
    """Evaluate the rules of recorded decisions on them, without those whose daily budgets were used up.

    Args:
        rules: The rules.
        decisions: The decisions.
        scores: The scores that the rules see, ``[n]``; NaN where there is none.
        seconds_before: Seconds from the rules to the decision.
    """
    return rules.evaluate(
        np.array([decision.features for decision in decisions], np.float32),
        scores=scores,
        seconds=[decision.decided_at_us // 1_000_000 - seconds_before for decision in decisions],
        ids=[decision.decision_id for decision in decisions],
        exhausted=[decision.rules.exhausted for decision in decisions],
    )


def requested(decision: DecisionRecord, actions: int) -> Any:
    """Return the actions that a recorded request allowed before any rules, bool ``[actions]``.

    Args:
        decision: The decision.
        actions: Number of actions of the catalogue.
    """
    with_rules = decision.HasField("rules")
    return eligible_actions(decision.requested_mask if with_rules else decision.eligible_mask, actions)


def check_decisions(
    rows: Sequence[tuple[int, DecisionRecord]],
    bundle: Bundle,
    rules: CompiledRules | None,
    scores: Any,
    faulted: Any,
) -> Iterator[Mismatch]:
    """Check that recorded decisions are those of the bundle's rules, with the functions that had no result.

    Args:
        rows: Sequences and decisions of the model.
        bundle: The bundle.
        rules: Its rules, with the lists that the decisions read; without rules nothing is checked.
        scores: Its scores of these decisions, ``[n]``.
        faulted: The functions that had no result in its steps, ``[n]``; see `Bundle.faulted_functions`.
    """
    if rules is None:
        return
    decisions = [decision for _, decision in rows]
    results = [evaluate(rules, decisions, scores, seconds_before=before) for before in _SECONDS_BEFORE]
    for at, (sequence, decision) in enumerate(rows):
        labels = [bundle.labels[int(result.bands[at])] for result in results]
        fired = [[rules.rules[number].id for number in result.applied[at]] for result in results]
        logged = [rule.id for rule in decision.rules.fired]
        same = [
            result.faulted[at]
            for result, *computed in zip(results, labels, fired, strict=True)
            if computed == [decision.decision, logged]
        ]
        if same:
            yield from check_faulted(sequence, decision, bundle, int(faulted[at]), same)
        elif decision.decision not in labels:
            yield Mismatch(sequence, decision.decision_id, "decision", decision.decision, labels[0])
        else:
            yield Mismatch(sequence, decision.decision_id, "rules", str(logged), str(fired[0]))


def check_faulted(
    sequence: int, decision: DecisionRecord, bundle: Bundle, in_steps: int, in_rules: Sequence[int] = (0,)
) -> Iterator[Mismatch]:
    """Check that a recorded decision has the names of the functions that had no result.

    Args:
        sequence: The record's sequence.
        decision: The decision.
        bundle: The bundle.
        in_steps: The functions that have none in the bundle's steps; see `Bundle.faulted_functions`.
        in_rules: The functions that have none in its rules, of each evaluation that gives this decision.
    """
    logged = list(decision.faulted_functions)
    computed = [bundle.faulted_functions(in_steps | one) for one in in_rules]
    if logged not in computed:
        yield Mismatch(sequence, decision.decision_id, "faulted_functions", str(logged), str(computed[0]))


def check_eligible(
    rows: Sequence[tuple[int, DecisionRecord]], bundle: Bundle, rules: CompiledRules | None
) -> tuple[list[Mismatch], list[list[int]]]:
    """Check that the eligible actions of recorded decisions are those that the bundle's rules allow.

    Args:
        rows: Sequences and decisions of the policy.
        bundle: The bundle.
        rules: Its rules, with the lists that the decisions read; without rules nothing is checked.

    Returns:
        The decisions with other eligible actions; and for each decision the functions that had no result in
        the rules, of each evaluation that gives its eligible actions.
    """
    if rules is None or not rows:
        return [], [[0] for _ in rows]
    decisions = [decision for _, decision in rows]
    missing = np.full(len(rows), np.nan)
    results = [evaluate(rules, decisions, missing, seconds_before=before) for before in _SECONDS_BEFORE]
    wrong, faulted = [], []
    for at, (sequence, decision) in enumerate(rows):
        actions = len(bundle.actions)
        asked, logged = requested(decision, actions), eligible_actions(decision.eligible_mask, actions)
        computed = [asked & result.allowed[at] for result in results]
        same = [np.array_equal(one, logged) for one in computed]
        faulted.append([result.faulted[at] for result in compress(results, same)])
        if not any(same):
            ids = [str(np.flatnonzero(one).tolist()) for one in (logged, computed[0])]
            wrong.append(Mismatch(sequence, decision.decision_id, "eligible actions", *ids))
    return wrong, faulted
