"""Translation of conditions to formulas, by what each language says about missing values.

A condition is true, false, or without value: null in FEEL, an error in ZEN, unknown in CEL. A rule fires only
if its condition is true, so the translation of a condition is the formula of when it is true; negations need
the one of when it is false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import ge, gt, le, lt
from typing import Any

from scorer.rule_exchange.expressions import (
    Calculation,
    Comparator,
    Constant,
    Elements,
    ExchangeError,
    Expression,
    Has,
    Junction,
    Name,
    Not,
    RuleChoice,
    RuleComparison,
    RuleInterval,
    RuleMember,
    TextTest,
)
from scorer.rule_exchange.formulas import (
    Compare,
    Fixed,
    Formula,
    IsTrue,
    Kind,
    Matching,
    OneOf,
    Present,
    Read,
    Symbol,
    joined,
    negated,
    symbols,
)
from scorer.rule_exchange.languages import CEL, Language, value_words

_MAX_PARTS = 20_000
_ORDERS: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_YES, _NO = Fixed(True), Fixed(False)


@dataclass(frozen=True)
class RuleOutcomes:
    """When a condition is true and when it is false. Otherwise it has no value."""

    true: Formula
    false: Formula


@dataclass(frozen=True)
class Case:
    """A value that an expression can have, and when it has it."""

    when: Formula
    value: Constant | Read | Calculation


class Translator:
    """Translates expressions of one language.

    Args:
        language: The language.
        resolve: Returns what a name stands for: a symbol, or an expression in its place.
        doubles: Whether arithmetic on decimals may be computed with doubles.
    """

    def __init__(
        self, language: Language, resolve: Callable[[str], Symbol | Expression], *, doubles: bool
    ) -> None:
        self._language, self._resolve, self._doubles = language, resolve, doubles
        self._parts = 0

    # Conditions

    def outcomes(self, condition: Expression) -> RuleOutcomes:
        """Return when a condition is true and when it is false.

        Raises:
            ExchangeError: It is not a condition, or it has a part that cannot be translated.
        """
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ExchangeError(f"the condition has more than {_MAX_PARTS} parts; split it")
        match condition:
            case Not():
                inside = self.outcomes(condition.operand)
                found = RuleOutcomes(inside.false, inside.true)
            case Junction():
                found = self._junction(condition)
            case RuleComparison():
                found = self._comparison(condition)
            case RuleMember():
                found = self._membership(condition)
            case TextTest():
                found = self._text_test(condition)
            case Has():
                present = self._present(self.cases(condition.operand))
                found = RuleOutcomes(present, negated(present))
            case RuleChoice():
                found = self._choice(condition)
            case Constant(value=bool() as value):
                found = RuleOutcomes(Fixed(value), Fixed(not value))
            case Name():
                found = self._named(condition.path)
            case _:
                raise ExchangeError("the expression is not a condition; compare it with a value")
        return found

    def _choice(self, choice: RuleChoice) -> RuleOutcomes:
        test = self.outcomes(choice.condition)
        yes, no = self.outcomes(choice.yes), self.outcomes(choice.no)
        return RuleOutcomes(
            joined(False, joined(True, test.true, yes.true), joined(True, test.false, no.true)),
            joined(False, joined(True, test.true, yes.false), joined(True, test.false, no.false)),
        )

    def _named(self, path: str) -> RuleOutcomes:
        found = self._resolve(path)
        if not isinstance(found, Symbol):
            return self.outcomes(found)
        self._check_kind(Read(found), "bool")
        guard = _guard(found)
        return RuleOutcomes(
            joined(True, guard, IsTrue(found)), joined(True, guard, IsTrue(found, negated=True))
        )

    def _junction(self, junction: Junction) -> RuleOutcomes:
        parts = [self.outcomes(term) for term in junction.terms]
        stops = [one.false if junction.every else one.true for one in parts]
        passes = [one.true if junction.every else one.false for one in parts]
        if self._language.ordered:
            # An operand after one that has no value is not evaluated.
            stopped = joined(
                False, *(joined(True, *passes[:number], stop) for number, stop in enumerate(stops))
            )
        else:
            stopped = joined(False, *stops)
        passed = joined(True, *passes)
        return RuleOutcomes(passed, stopped) if junction.every else RuleOutcomes(stopped, passed)

    def _comparison(self, comparison: RuleComparison) -> RuleOutcomes:
        lefts, rights = self.cases(comparison.left), self.cases(comparison.right)
        true: list[Formula] = []
        false: list[Formula] = []
        for left in lefts:
            for right in rights:
                found = self._compared(comparison.operator, left.value, right.value)
                when = joined(True, left.when, right.when)
                true.append(joined(True, when, found.true))
                false.append(joined(True, when, found.false))
        return RuleOutcomes(joined(False, *true), joined(False, *false))

    def _compared(
        self, operator: Comparator, left: Constant | Read | Calculation, right: Constant | Read | Calculation
    ) -> RuleOutcomes:
        if operator in ("==", "!="):
            equal = self._equal(left, right)
            return equal if operator == "==" else RuleOutcomes(equal.false, equal.true)
        if _is_null(left) or _is_null(right):
            return RuleOutcomes(_NO, _NO)
        for value in (left, right):
            self._check_kind(value, "number", f"{operator} orders numbers only")
        if isinstance(left, Constant) and isinstance(right, Constant):
            holds = _ORDERS[operator](left.value, right.value)
            return RuleOutcomes(Fixed(holds), Fixed(not holds))
        guard = guards(left, right)
        found = Compare(operator, left, right)
        return RuleOutcomes(joined(True, guard, found), joined(True, guard, negated(found)))

    def _equal(
        self, left: Constant | Read | Calculation, right: Constant | Read | Calculation
    ) -> RuleOutcomes:
        if _is_null(left) or _is_null(right):
            other = right if _is_null(left) else left
            missing = _YES if _is_null(other) else negated(guards(other))
            return RuleOutcomes(missing, negated(missing))
        self._check_same(left, right)
        if all(isinstance(one, Read) and one.symbol.kind == "bool" for one in (left, right)):
            raise ExchangeError("two bools are compared; write the cases with and, or and not")
        guard = guards(left, right)
        found = _equality(left, right)
        if not self._language.null_equals:
            return RuleOutcomes(joined(True, guard, found), joined(True, guard, negated(found)))
        both_missing = joined(True, negated(guards(left)), negated(guards(right)))
        true = joined(False, joined(True, guard, found), both_missing)
        return RuleOutcomes(true, negated(true))

    def _membership(self, member: RuleMember) -> RuleOutcomes:
        within = member.within
        if isinstance(within, RuleInterval):
            low = self.outcomes(RuleComparison(">" if within.low_open else ">=", member.value, within.low))
            high = self.outcomes(RuleComparison("<" if within.high_open else "<=", member.value, within.high))
            return RuleOutcomes(joined(True, low.true, high.true), joined(False, low.false, high.false))
        return self._one_of(member.value, within)

    def _one_of(self, value: Expression, within: Elements) -> RuleOutcomes:
        true: list[Formula] = []
        false: list[Formula] = []
        for case in self.cases(value):
            found = self._case_one_of(case.value, within)
            true.append(joined(True, case.when, found.true))
            false.append(joined(True, case.when, found.false))
        return RuleOutcomes(joined(False, *true), joined(False, *false))

    def _case_one_of(self, value: Constant | Read | Calculation, within: Elements) -> RuleOutcomes:
        constants: list[str | float | bool] = []
        others: list[RuleOutcomes] = []
        for item in within.items:
            if isinstance(item, Constant) and item.value is not None and not _is_null(value):
                self._check_same(value, item)
                constants.append(item.value)
            else:
                others.append(self._comparison_of(value, item))
        if constants:
            others.insert(0, self._constants(value, constants))
        return self._joined_or(others)

    def _comparison_of(self, value: Constant | Read | Calculation, item: Expression) -> RuleOutcomes:
        cases = self.cases(item)
        found = [self._equal(value, case.value) for case in cases]
        whens = [case.when for case in cases]
        return RuleOutcomes(
            joined(False, *(joined(True, a, b.true) for a, b in zip(whens, found, strict=True))),
            joined(False, *(joined(True, a, b.false) for a, b in zip(whens, found, strict=True))),
        )

    def _constants(
        self, value: Constant | Read | Calculation, constants: Sequence[str | float | bool]
    ) -> RuleOutcomes:
        if isinstance(value, Constant):
            found: Formula = Fixed(value.value in constants)
        elif _kind(value) == "bool":
            return self._joined_or([self._equal(value, Constant(one)) for one in constants])
        elif len(constants) == 1:
            return self._equal(value, Constant(constants[0]))
        else:
            found = OneOf(value, tuple(dict.fromkeys(constants)))
        guard = guards(value)
        true = joined(True, guard, found)
        if self._language.null_equals:
            return RuleOutcomes(true, negated(true))
        return RuleOutcomes(true, joined(True, guard, negated(found)))

    def _joined_or(self, parts: Sequence[RuleOutcomes]) -> RuleOutcomes:
        return RuleOutcomes(
            joined(False, *(one.true for one in parts)), joined(True, *(one.false for one in parts))
        )

    def _text_test(self, test: TextTest) -> RuleOutcomes:
        true: list[Formula] = []
        false: list[Formula] = []
        for case in self.cases(test.value):
            if _is_null(case.value):
                continue
            self._check_kind(case.value, "string", f"{test.function} tests strings only")
            if not isinstance(case.value, Read):
                raise ExchangeError(f"{test.function} of a constant; write true or false")
            found = Matching(test.function, case.value.symbol, test.argument)
            guard = joined(True, case.when, guards(case.value))
            true.append(joined(True, guard, found))
            false.append(joined(True, guard, negated(found)))
        return RuleOutcomes(joined(False, *true), joined(False, *false))

    # Values

    def cases(self, expression: Expression) -> list[Case]:
        """Return the values that an expression can have, without the cases in which it has none.

        Raises:
            ExchangeError: It has a part that cannot be translated.
        """
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise ExchangeError(f"the expression has more than {_MAX_PARTS} parts; split it")
        match expression:
            case Constant():
                return [Case(_YES, expression)]
            case Name():
                found = self._resolve(expression.path)
                return [Case(_YES, Read(found))] if isinstance(found, Symbol) else self.cases(found)
            case RuleChoice():
                test = self.outcomes(expression.condition)
                return [
                    Case(when, case.value)
                    for branch, value in ((test.true, expression.yes), (test.false, expression.no))
                    for case in self.cases(value)
                    if (when := joined(True, branch, case.when)) != _NO
                ]
            case Calculation():
                return self._arithmetic(expression)
            case Elements() | RuleInterval():
                raise ExchangeError("a list or an interval is not a value; use it after in")
        found_condition = self.outcomes(expression)
        return [Case(found_condition.true, Constant(True)), Case(found_condition.false, Constant(False))]

    def _arithmetic(self, expression: Calculation) -> list[Case]:
        cases = []
        for left in self.cases(expression.left):
            for right in self.cases(expression.right):
                when = joined(True, left.when, right.when)
                if when == _NO or _is_null(left.value) or _is_null(right.value):
                    continue
                for value in (left.value, right.value):
                    self._check_kind(value, "number", f"{expression.sign} needs numbers")
                cases.append(Case(when, self._combined(expression.sign, left.value, right.value)))
        return cases

    def _combined(
        self, sign: str, left: Constant | Read | Calculation, right: Constant | Read | Calculation
    ) -> Constant | Calculation:
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(_folded(sign, left.value, right.value, self._language))
        if not self._doubles:
            raise ExchangeError(
                f'"{sign}" computes with decimals in one of the two languages and with doubles in the other, '
                "so results can differ in the last digits; accept that with --doubles, or compute a feature"
            )
        if sign == "/" and not (isinstance(right, Constant) and right.value):
            raise ExchangeError("the divisor is not a constant other than 0; compute the ratio as a feature")
        return Calculation(sign, left, right)  # type: ignore[arg-type]

    def _present(self, cases: Sequence[Case]) -> Formula:
        return joined(
            False,
            *(joined(True, case.when, guards(case.value)) for case in cases if not _is_null(case.value)),
        )

    # Types

    def _check_kind(self, value: Constant | Read | Calculation, wanted: Kind, why: str = "") -> None:
        kind = _kind(value)
        if kind != wanted:
            reason = f"{why}, and " if why else ""
            raise ExchangeError(
                f"{reason}{value_words(_described(value))} is a {kind}, not a {wanted}; correct it"
            )

    def _check_same(self, left: Constant | Read | Calculation, right: Constant | Read | Calculation) -> None:
        if _kind(left) != _kind(right):
            raise ExchangeError(
                f"{value_words(_described(left))} is a {_kind(left)} and {value_words(_described(right))} a "
                f"{_kind(right)}, which are never equal; correct one of them"
            )
        for one, other in ((left, right), (right, left)):
            if not (isinstance(one, Read) and isinstance(other, Constant)):
                continue
            values = one.symbol.values
            if values is not None and other.value not in values:
                raise ExchangeError(
                    f'"{other.value}" is not a value of "{one.symbol.name}" ({", ".join(values)}); correct '
                    "it, or add it to the schema of the bundle"
                )


def _described(value: Constant | Read | Calculation) -> str | float | bool | None:
    match value:
        case Constant():
            return value.value
        case Read():
            return value.symbol.name
    return "the result"


def _kind(value: Constant | Read | Calculation) -> Kind:
    match value:
        case Read():
            return value.symbol.kind
        case Constant(value=bool()):
            return "bool"
        case Constant(value=str()):
            return "string"
    return "number"


def _is_null(value: Constant | Read | Calculation) -> bool:
    return isinstance(value, Constant) and value.value is None


def _guard(symbol: Symbol) -> Formula:
    return Present(symbol) if symbol.nullable else _YES


def guards(*values: Constant | Read | Calculation) -> Formula:
    """Return the test that every value that is read is present."""
    found = {symbol for value in values for symbol in symbols(value)}
    return joined(True, *(_guard(symbol) for symbol in sorted(found, key=lambda one: one.name)))


def _folded(sign: str, left: Any, right: Any, language: Language) -> float:
    """Return the result of arithmetic on two constants, which is the same with decimals."""
    one, other = Decimal(repr(left)), Decimal(repr(right))
    if language is CEL or (sign == "/" and not other):
        raise ExchangeError(f'"{left:g} {sign} {right:g}" has two constants; write the result')
    found = one / other if sign == "/" else {"+": one + other, "-": one - other}.get(sign, one * other)
    if len(found.normalize().as_tuple().digits) > 15:
        raise ExchangeError(
            f'the result of "{left:g} {sign} {right:g}" has more than 15 significant digits; write it rounded'
        )
    return float(found)


def _equality(left: Constant | Read | Calculation, right: Constant | Read | Calculation) -> Formula:
    if isinstance(left, Constant) and isinstance(right, Constant):
        return Fixed(left.value == right.value)
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Read) and isinstance(other, Constant) and isinstance(other.value, bool):
            return IsTrue(one.symbol, negated=not other.value)
    return Compare("==", left, right)
