"""Everything that was wrong with a log, by name: how often, by which rule, for example where.

Nothing is dropped in silence: whatever the join leaves out or doubts passes
through here. `docs/learning.md` prints the rules.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    import pyarrow as pa

Effect: TypeAlias = Literal["excluded", "kept", "told"]
"""The row is left out, or is kept by the rule, or nothing is wrong. --strict rejects the first two."""

EXAMPLES: Final = 5
"""Number of examples that a finding has. They are the first ones in alphabetical order, so that they do not
depend on the order in which logs are read."""
_REPEATS: Final = 8
"""Rows that are considered for each example, because an id may occur several times."""
LATER: Final = "after the moment"

RULES: dict[str, tuple[Effect, str]] = {
    # The logs.
    "unreadable log": (
        "kept",
        "the log of a server cannot be read; the join uses the other logs and what it read of this one, "
        "and outcomes that only this log has count as missing",
    ),
    "lagging log": (
        "kept",
        "the newest record of a log is more than an hour older than that of another: the server is gone, has "
        "no traffic, or the log is a copy that is behind",
    ),
    "log replaced or set back": (
        "kept",
        "a server has a new log or an older copy of its log; records that were read before and that it no "
        "longer has are used for 90 more days",
    ),
    "removed before it was read": (
        "kept",
        "retention removed records before they were read; outcomes lost with them count as missing",
    ),
    "log given twice": ("kept", "two directories hold the same log; each record counts once"),
    # The log's bytes.
    "gap in the log": (
        "kept",
        "sequences are missing; outcomes lost with them count as missing and not as declines",
    ),
    "damaged segment": (
        "kept",
        "records in damaged bytes are lost; the records before and after them are read",
    ),
    "quarantined segment": (
        "kept",
        "the copy is evidence and is not read; the records that recovery kept are read",
    ),
    "foreign segment": ("excluded", "a segment of another log lies in the directory; it is not read"),
    "sequence twice": ("kept", "the first record of a decision id counts"),
    "unfinished tail": ("told", "the last record was never completed; a reader stops before it"),
    "unknown record": ("excluded", "this version does not know the kind of the record"),
    # Decisions.
    "repeated decision": (
        "excluded",
        "a retry was decided again with the same answer, after a restart or at another replica; one "
        "record counts",
    ),
    "repeated with another answer": (
        "excluded",
        "a retry was decided again with another answer; the record that the outcome's token names counts, or "
        "the first that was delivered",
    ),
    "undelivered decision": (
        "excluded",
        "the reply did not reach the caller and no outcome with its token was reported: the action was "
        "not taken",
    ),
    "token of another answer": (
        "excluded",
        "the outcome's token names another bundle, action or propensity: the caller acted on another answer",
    ),
    "propensity from the token": (
        "kept",
        "the record has no valid propensity; the token's propensity agrees with the record's pmf and is used",
    ),
    "no action": ("excluded", "the decision of an action checkpoint has no action"),
    "fallback answer": (
        "excluded",
        "no model selected the action, so the propensity does not describe a policy",
    ),
    "exploration stopped": (
        "excluded",
        "the best action was given with certainty because the log could not record propensities",
    ),
    "unknown bundle": (
        "excluded",
        "the decision's catalogue and columns cannot be read without its bundle; give --bundles",
    ),
    "unusable bundle": ("excluded", "the bundle was found and does not load, or is not an action bundle"),
    "columns do not fit": ("excluded", "the features do not match the bundle's schema"),
    "pmf of another length": ("excluded", "the pmf does not have one probability per action of the bundle"),
    "pmf with impossible values": ("excluded", "a probability is NaN, below 0 or above 1"),
    "pmf does not sum to 1": ("excluded", "the sum differs from 1 by more than 1e-6"),
    "mass outside the eligible set": ("excluded", "an action that was not eligible has a probability"),
    "no propensity": ("excluded", "the propensity is 0, missing, or not a probability"),
    "propensity is not pmf[action]": ("excluded", "the two differ by more than 1e-9: one of them is wrong"),
    "action is not the catalogue's": (
        "excluded",
        "the action's id differs from the one that its bundle has at that position",
    ),
    "withheld feature": (
        "kept",
        "in some decisions a sensitive feature is masked, or encrypted and not opened by --reader-key; it "
        "counts as missing in all decisions, so that no model learns from the difference",
    ),
    # Between bundles.
    "action left the catalogue": ("excluded", "the action taken is not in the newest bundle's catalogue"),
    "action was redefined": ("excluded", "the newest bundle has other factors under the same id"),
    "catalogue changed": (
        "kept",
        "actions are mapped by id; pmf and propensity are conditional on the actions that remain",
    ),
    "context cannot be carried over": (
        "excluded",
        "the newest bundle needs a column or category that the decision's bundle did not have",
    ),
    # Outcomes.
    "outcome without decision": ("excluded", "no decision of the checkpoint has this id"),
    "outcome of an absent decision": (
        "told",
        "a token proves the outcome and the decision is in none of the logs: a server whose log is not given "
        "made it, or it was lost with its machine",
    ),
    "unproven outcome": (
        "excluded",
        "neither a decision token nor a decision known to the server proves the outcome; see [join] unproven",
    ),
    "outcome that is no number": ("excluded", "the value is NaN or infinite"),
    "duplicate outcome": ("told", "an equal report of the same revision; the first counts"),
    "revised outcome": ("told", "the highest revision counts"),
    "conflicting outcomes": ("kept", "there are two values for one revision; the first counts"),
    "outcome before its decision": (
        "kept",
        "its time is more than a minute before the decision's; the clocks differ",
    ),
    "outcome of another kind": ("told", "the outcome is not the reward; see [join] outcome"),
    # The whole.
    "no outcomes at all": (
        "kept",
        "no decision has an outcome of the reward's kind; training rejects the file",
    ),
    "one action in a week": (
        "kept",
        "all decisions of the week took one action, so that actions cannot be compared",
    ),
    "missingness depends on the action": (
        "told",
        "outcomes are missing more often for some actions (chi-squared, p < 0.001); see the rates per action",
    ),
    "family without actions": ("kept", "a [[join.families]] rule matches no action of the catalogue"),
    LATER: ("told", "records that are later than --as-of are ignored"),
    "before the window": ("told", "the decision is older than [join] days"),
}


@dataclass(frozen=True)
class JoinFinding:
    """One kind of trouble.

    Attributes:
        name: a key of `RULES`.
        effect: excluded, kept or told.
        count: records, rows or lost sequences.
        rule: what is done about it.
        examples: the first few, as ids or details.
    """

    name: str
    effect: Effect
    count: int
    rule: str
    examples: tuple[str, ...]


class Findings:
    """Count data-quality findings by name, with examples."""

    def __init__(self) -> None:
        self._count: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def add(self, name: str, example: str = "", count: int = 1) -> None:
        """Notes something; the name must be a rule's."""
        if name not in RULES:
            raise KeyError(name)
        if count <= 0:
            return
        self._count[name] = self._count.get(name, 0) + count
        self._keep(name, example)

    def add_rows(self, name: str, count: int, examples: Iterable[str]) -> None:
        """Notes so many rows, with examples."""
        self.add(name, count=count)
        for example in examples if count > 0 else ():
            self._keep(name, example)

    def add_ids(self, name: str, ids: pa.Array | pa.ChunkedArray) -> None:
        """Notes rows, with their ids as examples."""
        self.add_rows(name, len(ids), first_ids(ids))

    def _keep(self, name: str, example: str) -> None:
        examples = self._examples.setdefault(name, [])
        if example and example not in examples:
            insort(examples, example)
            del examples[EXAMPLES:]

    def rows(self) -> tuple[JoinFinding, ...]:
        """All of them in the order of the rules."""
        return tuple(
            JoinFinding(name, effect, self._count[name], rule, tuple(self._examples.get(name, ())))
            for name, (effect, rule) in RULES.items()
            if name in self._count
        )

    def faults(self) -> tuple[JoinFinding, ...]:
        """Return the findings that `--strict` rejects."""
        return tuple(one for one in self.rows() if one.effect != "told")


def first_ids(ids: pa.Array | pa.ChunkedArray, count: int = EXAMPLES) -> list[str]:
    """Return the first texts in alphabetical order, each once, at most `count`."""
    import pyarrow.compute as pc

    first = pc.sort_indices(ids)[: _REPEATS * count]
    texts: list[str] = ids.take(first).to_pylist()
    return list(dict.fromkeys(texts))[:count]
