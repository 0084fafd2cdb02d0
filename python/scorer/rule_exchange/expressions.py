"""Expressions of rules without the syntax of a language, as the parser returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from scorer.errors import BundleError


class ExchangeError(BundleError):
    """A part of a file that cannot be translated. The message has the place, the reason and the remedy."""


Comparator: TypeAlias = Literal["==", "!=", "<", "<=", ">", ">="]
Sign: TypeAlias = Literal["+", "-", "*", "/"]


@dataclass(frozen=True)
class Constant:
    """A string, number or bool, or None for null."""

    value: str | float | bool | None


@dataclass(frozen=True)
class Name:
    """A name, with dots between its parts."""

    path: str


@dataclass(frozen=True)
class Calculation:
    """Two numbers and an arithmetic operator."""

    sign: Sign
    left: Expression
    right: Expression


@dataclass(frozen=True)
class RuleComparison:
    """Two values and a comparison operator."""

    operator: Comparator
    left: Expression
    right: Expression


@dataclass(frozen=True)
class RuleInterval:
    """An interval of numbers. An end of None is unbounded."""

    low: Expression
    high: Expression
    low_open: bool
    high_open: bool


@dataclass(frozen=True)
class Elements:
    """A list of values that follows in or a cell."""

    items: tuple[Expression, ...]


@dataclass(frozen=True)
class RuleMember:
    """Whether a value is in a list or an interval."""

    value: Expression
    within: Elements | RuleInterval


@dataclass(frozen=True)
class Not:
    """The negation of a condition."""

    operand: Expression


@dataclass(frozen=True)
class Junction:
    """Conditions that are joined by "and" or "or", in their order."""

    every: bool
    """Whether all must be true."""
    terms: tuple[Expression, ...]


@dataclass(frozen=True)
class RuleChoice:
    """One of two values, by a condition."""

    condition: Expression
    yes: Expression
    no: Expression


@dataclass(frozen=True)
class TextTest:
    """A test of a string with a constant argument."""

    function: Literal["startsWith", "endsWith", "contains", "matches"]
    value: Expression
    argument: str


@dataclass(frozen=True)
class Has:
    """Whether a value is present."""

    operand: Expression


Expression: TypeAlias = (
    Constant
    | Name
    | Calculation
    | RuleComparison
    | RuleInterval
    | Elements
    | RuleMember
    | Not
    | Junction
    | RuleChoice
    | TextTest
    | Has
)
