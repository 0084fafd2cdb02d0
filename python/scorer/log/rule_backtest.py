"""Backtest of rules: recorded decisions are decided again with other rules, and the changes are reported."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from scorer import bridge
from scorer.errors import LogError
from scorer.log.erasure import erased
from scorer.log.reading import Advance
from scorer.log.scanning import scan
from scorer.log.sealing import ReaderKey

if TYPE_CHECKING:
    from scorer.bridge import LogReader, RuleReplay
    from scorer.bundle import Bundle
    from scorer.bundle.rules import CompiledRules

AMOUNTS = (10.0, 50.0, 100.0, 250.0, 500.0, 1000.0, 5000.0)
"""Upper limits of the amount bands, excluded."""
SELECTED = "selected"
ACTION_CHANGES = (SELECTED, "fewer choices", "other choices", "not allowed", "nothing left")
"""What rules make of a selection: the same choices, fewer ones, others, not the selected action, none."""
_OPENED = 4096
"""Decisions with decrypted features that are passed on together."""
_SHOWN = 10
"""Missing versions that an error names."""
_COUNTS = ("decisions", "unknown", "errors", "conflicts", "withheld", "fallbacks", "others")


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


@dataclass(frozen=True)
class RecordedList:
    """A version of an external list that recorded decisions read."""

    name: str
    version: int
    """0: no version was loaded."""
    digest: str
    """``sha256:<hex>``; empty for version 0."""
    decisions: int = 0
    first_us: int = 0
    """Time of the first decision, in microseconds since 1970."""
    last_us: int = 0
    """Time of the last decision."""


StoredLists: TypeAlias = Callable[[Sequence[RecordedList]], Mapping[str, Path]]
"""Returns the directories of versions by digest, of those that are stored."""


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
    exhausted: Counter[str] = field(default_factory=Counter)
    """Decisions on which each rule was inactive because its daily budget was used up."""
    withheld: int = 0
    """Decisions that were decided again without their sensitive features, which are not in the log."""
    fallbacks: int = 0
    """Decisions of fallbacks, which are left out."""
    others: int = 0
    """Decisions of bundles with another schema, other decisions or actions, which are left out."""
    recorded_lists: list[RecordedList] = field(default_factory=list)
    """The versions of external lists that the decisions of the period were made with."""
    evaluated_lists: dict[str, str] = field(default_factory=dict)
    """What the external lists of the rules were evaluated with, in words, by name."""

    @property
    def changed(self) -> int:
        """Number of decisions that would be other ones."""
        return sum(change.count for change in self.changes.values() if change.changed)

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values, with the most frequent changes first."""
        changes = sorted(self.changes.values(), key=lambda one: -one.count)
        rows = [{**_plain(vars(change)), "changed": change.changed} for change in changes]
        recorded = [asdict(one) for one in self.recorded_lists]
        return {
            **_plain(vars(self)),
            "changes": rows,
            "recorded_lists": recorded,
            "changed": self.changed,
            "never": self.never,
        }

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
    stored: StoredLists | None = None,
    advance: Advance | None = None,
) -> RuleBacktest:
    """Decide recorded decisions again with rules, and report the changes.

    Scores are those of the log. Daily budgets are those of one server for each log, in its order, and
    begin at its first decision of the period. Rules see the time and the id of the recorded decision. Two
    passes are made: one collects outcomes, the other evaluates decisions in chunks on all processors. The
    memory is about 100 bytes per outcome and 34 bytes per decision, whose ids are compared to count each
    decision once.

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
        stored: Returns the directories of recorded versions of external lists. Each decision is then
            evaluated with the versions that it read. None: with the lists of the rules.
        advance: Called with the bytes read so far and the total bytes of each pass of each log.

    Raises:
        LogError: A directory is not a log, the bundle has no such amount, or decisions read versions of the
            rules' external lists that are not stored, or none.
    """
    at = None
    if amount is not None:
        names = list(bundle.columns[: bundle.num_features])
        if amount not in names:
            raise LogError(f'amount "{amount}" is not a feature of the bundle; name one of its numbers')
        at = names.index(amount)
    window = tuple(None if time is None else int(time.timestamp() * 1e6) for time in (since, until))
    replay = rules.replay(at, AMOUNTS, examples, *window, recorded=stored is not None)
    for directory in logs:
        reader = bridge.LogReader(fspath(directory), 0)
        while replay.outcomes(reader):
            _report(reader, advance)
    if stored is not None:
        _use_recorded(replay, rules, stored)
    for number, directory in enumerate(logs):
        if reader_key is not None:
            _add_opened(replay, number, directory, reader_key, advance)
            continue
        gone = erased(directory)
        reader = bridge.LogReader(fspath(directory), 0)
        while replay.decisions(number, reader, gone.salt, set(gone.hashes)):
            _report(reader, advance)
    return _result([rule.id for rule in rules.rules], bundle, replay.result())


def _use_recorded(replay: RuleReplay, rules: CompiledRules, stored: StoredLists) -> None:
    """Evaluate each decision with the versions of external lists that it read.

    Raises:
        LogError: A version of a list of the rules is not stored.
    """
    names = {one.name for one in rules.external_lists}
    needed = [
        RecordedList(name, version, f"sha256:{digest}")
        for name, version, digest in replay.needed()
        if version and name in names
    ]
    found = stored(needed)
    missing = [f"{one.name} version {one.version}" for one in needed if one.digest not in found]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" * (len(missing) > _SHOWN))
        raise LogError(
            f"the registry does not have {shown}, with which decisions of the period were made; begin the "
            "period after them, or evaluate with the newest version or a file"
        )
    replay.use_recorded({digest.removeprefix("sha256:"): path for digest, path in found.items()})


def _report(reader: LogReader, advance: Advance | None) -> None:
    if advance is not None:
        advance(reader.bytes_read, reader.total_bytes)


def _add_opened(
    replay: RuleReplay,
    log: int,
    directory: str | PathLike[str],
    reader_key: ReaderKey,
    advance: Advance | None,
) -> None:
    """Decide the decisions of a log again with their sensitive features, which are decrypted here."""
    from scorer.v1.log_pb2 import LogRecord

    entries = iter(scan(directory, kinds={"decision"}, advance=advance, reader_key=reader_key))
    while chunk := list(islice(entries, _OPENED)):
        replay.add(log, [LogRecord(decision=entry.record).SerializeToString() for entry in chunk])


def _result(rules: list[str], bundle: Bundle, raw: Mapping[str, Any]) -> RuleBacktest:
    names = ACTION_CHANGES if bundle.kind == "action" else bundle.labels
    bands = [*(amount_band(math.nextafter(limit, 0)) for limit in AMOUNTS), amount_band(math.inf), "missing"]
    result = RuleBacktest(
        rules,
        hits=Counter(raw["hits"]),
        hits_before=Counter(raw["hits_before"]),
        changed_by=Counter(raw["changed_by"]),
        exhausted=Counter(raw["exhausted"]),
        recorded_lists=[
            RecordedList(name, version, f"sha256:{digest}" if version else "", *counted)
            for name, version, digest, *counted in raw["lists"]
        ],
        **{name: raw[name] for name in _COUNTS},
    )
    for before, after, count, amount, by_band, known, positive, examples in raw["changes"]:
        change = RuleChange(names[before], names[after], count, amount, examples=examples)
        change.bands = _counter(zip(bands, by_band, strict=True))
        change.known, change.outcomes = Counter(known), Counter(positive)
        result.changes[change.before, change.after] = change
    return result


def _counter(counts: Iterable[tuple[str, int]]) -> Counter[str]:
    return Counter({name: count for name, count in counts if count})


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


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in fields.items()}
