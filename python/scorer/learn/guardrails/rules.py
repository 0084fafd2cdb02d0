"""Eligibility by declarative rules: which actions need which conditions, and the reason for every refusal.

A rule file is TOML, and says nothing that cannot be read aloud::

    [facts.authentication_owed]             # a fact is true where all its conditions hold
    all = [["sca_required", "==", true], ["issuer_3ds", "==", true]]

    [[rules]]
    name = "authentication is owed"
    actions = { three_ds = ["none"], exemption = ["none"] }
    needs = [["authentication_owed", "==", false]]
    source = "PSD2, Article 97(1)"

An action that has *all* the factor values of a rule needs *all* its conditions; it is refused by
every rule whose conditions are not met. A missing value meets no condition, whatever the
comparison: what is not known does not make an action eligible.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle import Feature
from scorer.learn.errors import DataError
from scorer.stats.arrays import Bools

Columns = Mapping[str, npt.NDArray[Any]]
Condition = tuple[str, str, Any]

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "<": lambda column, value: column < value,
    "<=": lambda column, value: column <= value,
    ">": lambda column, value: column > value,
    ">=": lambda column, value: column >= value,
    "==": lambda column, value: column == value,
    "!=": lambda column, value: column != value,
    "in": np.isin,
    "not in": lambda column, value: ~np.isin(column, value),
}


@dataclass(frozen=True)
class Rule:
    """Actions with these factor values need the payment to meet all these conditions.

    Attributes:
        name: what the rule is called in reports; unique in its set.
        actions: factor to the values concerned; empty: every action.
        needs: (column or fact, comparison, value).
        source: the law, contract or measurement behind it.
    """

    name: str
    actions: Mapping[str, tuple[str, ...]]
    needs: tuple[Condition, ...]
    source: str

    def concerns(self, factors: Mapping[str, str]) -> bool:
        """Whether an action with these factors needs the conditions."""
        return all(factors.get(name) in values for name, values in self.actions.items())


@dataclass(frozen=True)
class Reason:
    """Why an action is not eligible: one rule, and those of its conditions that the payment does not meet."""

    rule: str
    source: str
    unmet: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.rule}: needs {' and '.join(self.unmet)} ({self.source})"


@dataclass(frozen=True)
class RuleSet:
    """Rules over one catalogue.

    Attributes:
        rules: in the order in which reasons are given.
        factors: of each action, in catalogue order.
        facts: named conjunctions that conditions may refer to, in order of use.

    Raises:
        DataError: a name is given twice, a rule concerns no action, or a comparison is not known.
    """

    rules: tuple[Rule, ...]
    factors: tuple[Mapping[str, str], ...]
    facts: Mapping[str, tuple[Condition, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                raise DataError(f'rule "{rule.name}" is given twice; each refusal names one rule')
            seen.add(rule.name)
            if not rule.source:
                raise DataError(f'rule "{rule.name}" names no source; say where it comes from')
            if not rule.needs:
                raise DataError(f'rule "{rule.name}" has no conditions; give `needs`')
            if not any(rule.concerns(factors) for factors in self.factors):
                raise DataError(
                    f'rule "{rule.name}" concerns no action of the catalogue; correct its `actions`'
                )
        for name, needs in [*self.facts.items(), *((rule.name, rule.needs) for rule in self.rules)]:
            for column, comparison, value in needs:
                if comparison not in _COMPARE:
                    raise DataError(
                        f'"{name}": "{column} {comparison}" is no comparison; use {", ".join(_COMPARE)}'
                    )
                if comparison.endswith("in") != isinstance(value, (list, tuple)):
                    raise DataError(
                        f'"{name}": {column} {comparison} {value!r}: `in`, `not in` take lists, others do not'
                    )

    @cached_property
    def concerned(self) -> Bools:
        """`[rules, actions]`: whom each rule concerns."""
        return np.array(
            [[rule.concerns(factors) for factors in self.factors] for rule in self.rules]
        ).reshape(len(self.rules), len(self.factors))

    def evaluate(self, columns: Columns) -> Eligibility:
        """Applies every rule to `n` payments.

        Args:
            columns: the context by name, `[n]` each; categories as text, None or NaN where missing.

        Raises:
            DataError: a rule or fact names a column that is not there.
        """
        known: dict[str, npt.NDArray[Any]] = dict(columns)
        for name, needs in self.facts.items():
            # A fact over missing values is missing, not false: ignorance must not meet `== false`.
            met = np.logical_and.reduce([_met(known, need, f'fact "{name}"') for need in needs])
            unknown = np.logical_or.reduce([_missing(known[need[0]]) for need in needs])
            known[name] = np.where(unknown, np.nan, met.astype(np.float64))
        met_by_rule = [
            np.logical_and.reduce([_met(known, need, f'rule "{rule.name}"') for need in rule.needs])
            for rule in self.rules
        ]
        rows = len(next(iter(columns.values())))
        met = np.stack(met_by_rule, axis=1) if met_by_rule else np.ones((rows, 0), dtype=bool)
        return Eligibility(self, known, met)


@dataclass(frozen=True)
class Eligibility:
    """What the rules say about `n` payments.

    Attributes:
        rules: the set.
        columns: what they saw, facts included.
        met: `[n, rules]`: whether the payment meets a rule's conditions.
    """

    rules: RuleSet
    columns: Columns
    met: Bools

    @cached_property
    def mask(self) -> Bools:
        """`[n, actions]`, True where eligible."""
        # How many rules refuse: exact in float32 for any number of rules that anyone would write.
        refusals = (~self.met).astype(np.float32) @ self.rules.concerned.astype(np.float32)
        return np.asarray(refusals == 0)

    def reasons(self, row: int, action: int) -> tuple[Reason, ...]:
        """Why a payment may not use an action; empty where it may."""
        found = []
        for at, rule in enumerate(self.rules.rules):
            if self.rules.concerned[at, action] and not self.met[row, at]:
                one = {name: column[row : row + 1] for name, column in self.columns.items()}
                unmet = [need for need in rule.needs if not _met(one, need, rule.name)[0]]
                found.append(
                    Reason(rule.name, rule.source, tuple(_text(need, one[need[0]][0]) for need in unmet))
                )
        return tuple(found)

    def refusals(self) -> Mapping[str, int]:
        """How many (payment, action) pairs each rule refuses, alone or with others."""
        counts = (~self.met).sum(axis=0) * self.rules.concerned.sum(axis=1)
        return {rule.name: int(count) for rule, count in zip(self.rules.rules, counts, strict=True)}


def read_rules(path: Path, factors: Sequence[Mapping[str, str]]) -> RuleSet:
    """Reads a rule file.

    Args:
        path: TOML, as at the top of this module.
        factors: of the catalogue's actions, in order.

    Raises:
        DataError: it cannot be read, or `RuleSet` refuses it.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise DataError(f'rules "{path}" cannot be read: {error.strerror}') from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f'rules "{path}" are not valid TOML: {error}') from None
    if unknown := sorted(content.keys() - {"facts", "rules"}):
        raise DataError(f'rules "{path}": unknown table "{unknown[0]}"; there are `facts` and `rules`')
    try:
        facts = {name: tuple(map(_triple, fact["all"])) for name, fact in content.get("facts", {}).items()}
        rules = [
            Rule(
                rule["name"],
                {name: tuple(values) for name, values in rule.get("actions", {}).items()},
                tuple(map(_triple, rule["needs"])),
                rule["source"],
            )
            for rule in content.get("rules", [])
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f'rules "{path}": a rule needs name, actions, needs and source, a fact `all`; {error} is wrong'
        ) from None
    return RuleSet(tuple(rules), tuple(factors), facts)


def named_columns(columns: Sequence[Feature], rows: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[Any]]:
    """Dense rows as rules see them: categories as text, None where missing; the rest as it is."""
    named: dict[str, npt.NDArray[Any]] = {}
    for at, column in enumerate(columns):
        values = rows[:, at]
        if column.type == "category":
            names = np.array([*column.categories, None], dtype=object)
            codes = np.where(np.isnan(values), len(column.categories), values).astype(np.int64)
            named[column.name] = names[codes]
        else:
            # The value as the engine sees it: a float32.
            named[column.name] = values
    return named


def _met(columns: Columns, need: Condition, where: str) -> Bools:
    column, comparison, value = need
    if column not in columns:
        raise DataError(f'{where} needs "{column}", which is neither a column nor a fact above it; add it')
    given = columns[column]
    # numpy rounds a limit to float32 as the value was, so that EUR 30.10 meets "at most 30.10".
    if isinstance(value, (list, tuple)):
        value = list(value)
    return np.asarray(_COMPARE[comparison](given, value), dtype=bool) & ~_missing(given)


def _missing(column: npt.NDArray[Any]) -> Bools:
    if column.dtype.kind == "f":
        return np.asarray(np.isnan(column))
    if column.dtype == object:
        return np.array([value is None for value in column], dtype=bool)
    return np.zeros(len(column), dtype=bool)


def _triple(need: Sequence[Any]) -> Condition:
    if isinstance(need, str) or len(need) != 3:
        raise DataError(f'condition {need!r} is not of the form ["column", "comparison", value]')
    value = need[2]
    return (str(need[0]), str(need[1]), tuple(value) if isinstance(value, list) else value)


def _text(need: Condition, value: Any) -> str:
    column, comparison, wanted = need
    if isinstance(wanted, bool):
        wanted, value = str(wanted).lower(), value if value != value else str(bool(value)).lower()  # noqa: PLR0124
    elif isinstance(wanted, (list, tuple)):
        wanted = ", ".join(map(str, wanted))
    shown = "missing" if value is None or value != value else f"{value:g}" if _number(value) else value  # noqa: PLR0124
    return f"{column} {comparison} {wanted}, is {shown}"


def _number(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and not isinstance(value, bool)
