"""Conditions that are true or false for every request, and their text in CEL and ZEN.

A formula tests that a value is present before it reads the value, so that it never needs a missing value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from scorer.rule_exchange.expressions import Calculation, Comparator, Constant, Expression
from scorer.rule_exchange.languages import CEL, ZEN, Language, cel_text, number_text, zen_text

Kind: TypeAlias = Literal["number", "string", "bool"]


@dataclass(frozen=True)
class Symbol:
    """A value that a condition can read.

    Attributes:
        name: Its name in the text that is written.
        kind: Its type.
        nullable: Whether it can be missing.
        values: All strings that it can be; None if they are not known, and for other types.
        absent: The literal that stands for a missing value; None if the value itself is missing. A bool with
            such a literal is an int that is 1 for true and 0 for false.
    """

    name: str
    kind: Kind
    nullable: bool = True
    values: tuple[str, ...] | None = None
    absent: str | None = None


@dataclass(frozen=True)
class Read:
    """A symbol in an expression whose names are resolved."""

    symbol: Symbol


Operand: TypeAlias = "Constant | Read | Calculation"


@dataclass(frozen=True)
class Present:
    """Whether a value is present."""

    symbol: Symbol
    negated: bool = False


@dataclass(frozen=True)
class Compare:
    """A comparison of two present values."""

    operator: Comparator
    left: Expression | Read
    right: Expression | Read


@dataclass(frozen=True)
class OneOf:
    """Whether a present value is one of several constants."""

    value: Expression | Read
    constants: tuple[str | float | bool, ...]
    negated: bool = False


@dataclass(frozen=True)
class Matching:
    """A test of a present string."""

    function: str
    symbol: Symbol
    argument: str
    negated: bool = False


@dataclass(frozen=True)
class IsTrue:
    """Whether a present bool is true."""

    symbol: Symbol
    negated: bool = False


@dataclass(frozen=True)
class Fixed:
    """A condition that does not depend on the request."""

    value: bool


@dataclass(frozen=True)
class JoinedFormula:
    """Formulas of which all, or one, must be true."""

    every: bool
    terms: tuple[Formula, ...]


Formula: TypeAlias = Present | Compare | OneOf | Matching | IsTrue | Fixed | JoinedFormula

_OPPOSITE: dict[Comparator, Comparator] = {
    "==": "!=",
    "!=": "==",
    "<": ">=",
    ">=": "<",
    ">": "<=",
    "<=": ">",
}


def negated(formula: Formula) -> Formula:
    """Return the formula that is true where another one is false."""
    match formula:
        case Compare():
            return replace(formula, operator=_OPPOSITE[formula.operator])
        case Fixed():
            return Fixed(not formula.value)
        case JoinedFormula():
            return joined(not formula.every, *(negated(term) for term in formula.terms))
    return replace(formula, negated=not formula.negated)


def joined(every: bool, *terms: Formula) -> Formula:
    """Join formulas by "and" or "or", without those that do not matter."""
    kept: list[Formula] = []
    for term in terms:
        inside = term.terms if isinstance(term, JoinedFormula) and term.every == every else (term,)
        for one in inside:
            if isinstance(one, Fixed):
                if one.value is not every:
                    return one
            elif one not in kept:
                kept.append(one)
    if not kept:
        return Fixed(every)
    return kept[0] if len(kept) == 1 else JoinedFormula(every, tuple(kept))


def symbols(value: Expression | Read | Formula) -> set[Symbol]:
    """Return the symbols that a formula or a number reads."""
    match value:
        case Read() | Present() | IsTrue() | Matching():
            return {value.symbol}
        case Calculation() | Compare():
            return symbols(value.left) | symbols(value.right)
        case OneOf():
            return symbols(value.value)
        case JoinedFormula():
            return set().union(*map(symbols, value.terms))
    return set()


def without_guards(formula: Formula) -> Formula:
    """Return a condition of a rule without the tests of values that another part of it needs anyway.

    The result is unknown instead of false where such a value is missing, and a rule does not fire in either
    case. It may not be negated.
    """
    if not isinstance(formula, JoinedFormula):
        return formula
    terms = tuple(without_guards(term) for term in formula.terms)
    if not formula.every:
        return joined(False, *terms)
    kept = [
        term
        for term in terms
        if not (
            isinstance(term, Present)
            and not term.negated
            and term.symbol.absent is None
            and any(_needs(other, term.symbol) for other in terms)
        )
    ]
    return joined(True, *kept)


def _needs(formula: Formula, symbol: Symbol) -> bool:
    """Whether a formula is never true while a symbol is missing."""
    match formula:
        case Present() | Fixed():
            return False
        case JoinedFormula(every=True):
            return any(_needs(term, symbol) for term in formula.terms)
        case JoinedFormula():
            return all(_needs(term, symbol) for term in formula.terms)
    return symbol in symbols(formula)


def cel(formula: Formula) -> str:
    """Return a formula in CEL."""
    return _text(formula, CEL, outer=0)


def zen(formula: Formula) -> str:
    """Return a formula in ZEN.

    Raises:
        ExchangeError: A string has no form in ZEN.
    """
    return _text(formula, ZEN, outer=0)


def value_text(value: Expression | Read, language: Language, outer: int = 0) -> str:
    """Return a constant, symbol or number in CEL or ZEN.

    Raises:
        ExchangeError: A string has no form in ZEN.
    """
    match value:
        case Constant(value=None):
            return "null"
        case Constant(value=bool() as flag):
            return "true" if flag else "false"
        case Constant(value=str() as text):
            return zen_text(text) if language is ZEN else cel_text(text)
        case Constant(value=float() | int() as number):
            return number_text(number)
        case Read():
            return value.symbol.name
        case Calculation():
            level = 2 if value.sign in "*/" else 1
            left = value_text(value.left, language, level)
            right = value_text(value.right, language, level + 1)
            text = f"{left} {value.sign} {right}"
            return f"({text})" if level < outer else text
    msg = f"{type(value).__name__} is not a value"
    raise TypeError(msg)


def _text(formula: Formula, language: Language, outer: int) -> str:
    is_zen = language is ZEN
    match formula:
        case Fixed():
            text = "true" if formula.value else "false"
        case JoinedFormula():
            level = 2 if formula.every else 1
            words = (" and ", " or ") if is_zen else (" && ", " || ")
            text = words[0 if formula.every else 1].join(
                _text(term, language, level) for term in formula.terms
            )
            text = f"({text})" if outer and level != outer else text
        case Present():
            text = _present(formula, language)
        case Compare():
            left, right = value_text(formula.left, language), value_text(formula.right, language)
            text = f"{left} {formula.operator} {right}"
        case OneOf():
            listed = ", ".join(value_text(Constant(one), language) for one in formula.constants)
            value = value_text(formula.value, language)
            text = f"{value} {'not in' if is_zen and formula.negated else 'in'} [{listed}]"
            text = f"!({text})" if formula.negated and not is_zen else text
        case Matching():
            text = _matching(formula, language)
        case IsTrue():
            text = _is_true(formula, language)
    return text


def _matching(formula: Matching, language: Language) -> str:
    name = formula.symbol.name
    if language is ZEN:
        test = f"{formula.function}({name}, {zen_text(formula.argument)})"
        return f"not {test}" if formula.negated else test
    test = f"{name}.{formula.function}({cel_text(formula.argument)})"
    return f"!{test}" if formula.negated else test


def _is_true(formula: IsTrue, language: Language) -> str:
    name = formula.symbol.name
    if formula.symbol.absent is not None:
        return f"{name} == {0 if formula.negated else 1}"
    if language is ZEN:
        return f"{name} == {'false' if formula.negated else 'true'}"
    return f"!{name}" if formula.negated else name


def _present(formula: Present, language: Language) -> str:
    name, absent = formula.symbol.name, formula.symbol.absent
    if absent is not None:
        return f"{name} {'==' if formula.negated else '!='} {absent}"
    if language is ZEN:
        return f"{name} {'==' if formula.negated else '!='} null"
    return f"!has({name})" if formula.negated else f"has({name})"
