"""Immutable results of operations on the rules of bundles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from scorer.release.answers import BundleInfo
from scorer.release.model import ChangeRequest


@dataclass(frozen=True, slots=True)
class RuleName:
    """A name that rules can use, for the completion of an editor."""

    name: str
    kind: str
    """`feature`, `score`, `factor`, `list`, `decision`, `function` or `key`."""
    type: str
    """Type of the value, or the function's signature."""
    values: Sequence[str] = ()
    """The first values of a category or factor."""


@dataclass(frozen=True, slots=True)
class RuleRevision:
    """A bundle that was made by editing the rules of another one."""

    digest: str
    base: str
    """Digest of the bundle whose rules were edited."""
    project: str
    checkpoint: str
    change: str
    """Change request that was opened for it."""
    note: str
    by: str
    at: datetime


@dataclass(frozen=True, slots=True)
class RuleDocument:
    """The rules of a bundle as text, with what an editor needs."""

    info: BundleInfo
    text: str
    """The TOML text; empty if the bundle has no rules."""
    cases: str
    """The author's cases as TOML, as they were saved with the bundle; may be empty."""
    names: Sequence[RuleName]
    revision: RuleRevision | None
    """How the bundle was made; null: not by editing rules on the platform."""
    newer: RuleRevision | None
    """The newest bundle that was made from this one and whose change request was not rejected; null: none."""


@dataclass(frozen=True, slots=True)
class RuleProblem:
    """What is wrong with a rule, and where."""

    rule: str
    """Id of the rule; empty for the whole file."""
    line: int
    """Line of the text, from 1."""
    column: int
    """Column in characters, from 1."""
    problem: str
    remedy: str


@dataclass(frozen=True, slots=True)
class CheckedRule:
    """A rule of a rule set that has no faults."""

    id: str
    effect: str
    source: str
    line: int


@dataclass(frozen=True, slots=True)
class TableCell:
    """A cell of a decision table in the text."""

    text: str
    """The cell's value as TOML."""
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class TableGrid:
    """A decision table with the places of its cells in the text."""

    id: str
    hit: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    rows: Sequence[Sequence[TableCell]]
    inputs_at: tuple[int, int]
    """Begin and end of the array of inputs, in characters of the text."""
    outputs_at: tuple[int, int]
    """Begin and end of the array of outputs."""
    rows_at: tuple[int, int]
    """Begin and end of the array of rows."""


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """The result of the static checks of a rule set."""

    ok: bool
    problems: Sequence[RuleProblem]
    rules: Sequence[CheckedRule]
    """The rules in their order; empty if there is a problem."""
    tables: Sequence[TableGrid] = ()
    """The decision tables, if the text is valid TOML."""


@dataclass(frozen=True, slots=True)
class CaseReport:
    """The result of one of the author's cases."""

    name: str
    passed: bool
    fired: Sequence[str]
    """Ids of the rules that had an effect."""
    differences: Sequence[str]
    """What differs from the expectation, one line each."""


@dataclass(frozen=True, slots=True)
class CaseRun:
    """The results of the author's cases."""

    passed: int
    failed: int
    cases: Sequence[CaseReport]
    never: Sequence[str]
    """Rules that have no effect in any case."""


@dataclass(frozen=True, slots=True)
class RuledSide:
    """What a rule set does with one request."""

    fired: Sequence[str]
    """Ids of the rules that had an effect."""
    decision: str = ""
    """Label of a score; of an action bundle empty."""
    score: float | None = None
    """The score within caps and floors; null: there is none."""
    eligible: Sequence[str] = ()
    """Ids of the actions that the rules allow; of a score bundle empty."""
    unknown: int = 0
    """Rules that did not fire because a value is missing."""
    errors: int = 0
    """Rules that did not fire because their condition has no value."""
    conflicts: int = 0
    """Groups of rules that contradicted each other."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One request with the present and with the edited rules."""

    decision_id: str
    """Id of the recorded decision; empty for typed features."""
    decided_at: datetime
    before: RuledSide
    """With the rules of the bundle."""
    after: RuledSide
    """With the edited rules."""
    recorded: RuledSide | None
    """As the log has it; null for typed features. `eligible` has the chosen action alone."""
    changed: bool
    """Whether decision, score or eligible actions differ between `before` and `after`."""
    withheld: int
    """Sensitive features that the log does not have, which the rules see as missing."""


@dataclass(frozen=True, slots=True)
class RuleBench:
    """Requests with the present and with the edited rules of a bundle."""

    kind: str
    """`score` or `action`."""
    rows: Sequence[BenchRow]


@dataclass(frozen=True, slots=True)
class RuleShift:
    """Recorded decisions with the same change, such as from approve to decline."""

    before: str
    """Decision with the present rules; of an action bundle `selected`."""
    after: str
    """Decision with the edited rules; of an action bundle what becomes of the selection."""
    changed: bool
    count: int
    amount: float
    """Sum of the amounts; 0 without a feature with the amount."""
    bands: Mapping[str, int]
    """Number of decisions by amount band."""
    known: int
    """Decisions whose outcome is known."""
    positive: int
    """Of these, those with a positive outcome: fraud at a score, authorised at an action."""
    rate: float | None
    """`positive` / `known`; null: no outcome is known."""
    low: float | None
    """Lower end of the 95 % interval of the rate."""
    high: float | None
    examples: Sequence[str]
    """Ids of the newest decisions."""


@dataclass(frozen=True, slots=True)
class RuleEffect:
    """How often a rule has an effect on recorded decisions."""

    rule: str
    before: int
    """Decisions on which it has an effect among the present rules."""
    after: int
    """Decisions on which it has an effect among the edited rules."""
    changed: int
    """Decisions that change and on which it has an effect among only one of the two rule sets."""


@dataclass(frozen=True, slots=True)
class BlastRadius:
    """Which recorded decisions of a checkpoint edited rules change."""

    kind: str
    """`score` or `action`."""
    decisions: int
    """Decisions that were decided again."""
    changed: int
    share: float | None
    """`changed` / `decisions`; null: there is no decision."""
    low: float | None
    """Lower end of the 95 % interval of the share."""
    high: float | None
    shifts: Sequence[RuleShift]
    rules: Sequence[RuleEffect]
    fallbacks: int
    """Decisions of fallbacks, which are left out."""
    others: int
    """Decisions of bundles with other features or actions, which are left out."""
    withheld: int
    """Decisions that were decided again without sensitive features, which are not in the log."""
    unknown: int
    """Edited rules that did not fire because a value is missing, over all decisions."""
    errors: int
    """Edited rules that did not fire because their condition has no value, over all decisions."""


@dataclass(frozen=True, slots=True)
class SavedRules:
    """A bundle with edited rules, and the change request that was opened for it."""

    bundle: BundleInfo
    change: ChangeRequest
    waits: str
    """Why the change request is still a draft; empty: it was submitted."""


@dataclass(frozen=True, slots=True)
class RuleRecord:
    """What is known of one rule of a checkpoint over time."""

    id: str
    effect: str
    """What it writes; empty: the live bundle does not have the rule any more."""
    active: str
    """Dates, roll-out and whether it is enabled, as in the bundle; empty: always active."""
    switchable: bool
    """Whether it can be snoozed and retired by itself, because it is one of `[[rules]]`."""
    daily: Sequence[int]
    """Decisions on which it had an effect, by day."""
    hits: int
    """The sum of `daily`."""
    last_at: datetime | None
    """Time of the newest of them; null: there is none."""
    known: int
    """Of those that are old enough for their outcome, the decisions whose outcome is known."""
    positive: int
    """Of these, those with a positive outcome: fraud at a score, authorised at an action."""
    precision: float | None
    """`positive` / `known`; null: no outcome is known."""
    low: float | None
    """Lower end of the 95 % interval of the precision."""
    high: float | None
    never: bool
    """Whether it had no effect in the whole window."""


@dataclass(frozen=True, slots=True)
class RulesOverTime:
    """The rules of a checkpoint over time, from the decision logs."""

    checkpoint: str
    kind: str
    """`score` or `action`; empty: not known."""
    bundle: BundleInfo | None
    """The live bundle; null: nothing answers."""
    start: datetime
    days: int
    since: datetime | None
    """Time of the first decision whose rules were counted; null: none was."""
    matured_before: datetime
    """Only outcomes of decisions before this time count."""
    rules: Sequence[RuleRecord]
    """Those of the live bundle in their order, then others by name."""
