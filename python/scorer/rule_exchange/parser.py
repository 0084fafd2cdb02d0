"""Parser of the expressions and cells of ZEN, FEEL and CEL."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

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
    Sign,
    TextTest,
)
from scorer.rule_exchange.languages import CEL, FEEL, ZEN, Language, unescaped

MAX_TEXT = 16 * 1024
"""Greatest length of an expression in characters."""
MAX_DEPTH = 64
"""Greatest depth of nesting."""
_COMPARATORS = ("==", "!=", "<", "<=", ">", ">=")
_NUMBER = re.compile(r"(\d+(\.\d+)?|\.\d+)([eE][+-]?\d+)?(?![\w])")
_WORD = re.compile(r"[^\W\d]\w*")
_TEXT = re.compile(r'"[^"]*"|\'[^\']*\'')
_ESCAPED = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', re.DOTALL)
_DOLLAR = re.compile(r"\$")
_PART = re.compile(r"\s*\.\s*[^\W\d]\w*")
_COMMENT = re.compile(r"//[^\n]*")


@dataclass(frozen=True)
class _Token:
    kind: str
    """number, text, name, word, operator or end"""
    text: str


def parse_expression(text: str, language: Language, names: Sequence[str] = ()) -> Expression:
    """Parse an expression.

    Args:
        text: Its text.
        language: Its language.
        names: Names with spaces, which FEEL allows.

    Raises:
        ExchangeError: It is not valid, or it has a part that no rule can have.
    """
    parser = _Parser(text, language, names)
    expression = parser.expression()
    parser.expect_end()
    return expression


def parse_cell(
    text: str, language: Language, subject: Expression, names: Sequence[str] = ()
) -> Expression | None:
    """Parse the test of an input in a decision table; None if the cell accepts everything.

    Args:
        text: The cell.
        language: Its language, ZEN or FEEL.
        subject: The input.
        names: Names with spaces, which FEEL allows.

    Raises:
        ExchangeError: It is not valid, or it has a part that no rule can have.
    """
    if not text or (language is FEEL and text.strip() in ("", "-")):
        return None
    parser = _Parser(text, language, names, subject)
    if language is FEEL and parser.is_negated_list():
        tests = parser.tests(")")
        parser.take(")")
        parser.expect_end()
        return Not(tests)
    tests = parser.tests("")
    parser.expect_end()
    return tests


class _Parser:
    def __init__(
        self, text: str, language: Language, names: Sequence[str], subject: Expression | None = None
    ) -> None:
        if len(text) > MAX_TEXT:
            raise ExchangeError(f"the expression has {len(text)} characters, more than {MAX_TEXT}; split it")
        self._language, self._subject = language, subject
        self._tokens = _tokens(text, language, sorted(names, key=len, reverse=True))
        self._at = 0
        self._depth = 0
        self._implicit = False

    # Tokens

    def _peek(self, ahead: int = 0) -> _Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _next(self) -> _Token:
        token = self._peek()
        self._at += 1
        return token

    def _is(self, *symbols: str) -> bool:
        token = self._peek()
        return token.kind in ("operator", "word") and token.text in symbols

    def take(self, symbol: str) -> None:
        """Consume an operator that must follow."""
        if not self._is(symbol):
            raise ExchangeError(f'"{symbol}" is missing {self._where()}; correct the expression')
        self._at += 1

    def _where(self) -> str:
        token = self._peek()
        return "at the end" if token.kind == "end" else f'before "{token.text}"'

    def expect_end(self) -> None:
        """Check that nothing follows."""
        if self._peek().kind != "end":
            raise ExchangeError(
                f'"{self._peek().text}" is not supported after a complete {self._language.name} expression; '
                "write an expression of comparisons, lists, intervals, and, or, not and arithmetic"
            )

    def is_negated_list(self) -> bool:
        """Consume ``not(`` if the cell is ``not(...)`` as a whole."""
        if not (self._is("not") and self._peek(1).text == "("):
            return False
        depth = 0
        for number, token in enumerate(self._tokens):
            if token.kind == "operator" and token.text in "()":
                depth += 1 if token.text == "(" else -1
                if depth == 0 and self._tokens[number + 1].kind != "end":
                    return False
        self._at += 2
        return True

    # Cells

    def tests(self, end: str) -> Expression:
        """Parse tests that are separated by commas, one of which must be true."""
        if self._language is ZEN:
            return self._joined_tests()
        terms = [self._cell_test()]
        while self._is(","):
            self._at += 1
            terms.append(self._cell_test())
        if end and not self._is(end):
            self.take(end)
        if len(terms) > 1 and (listed := self._listed(terms)) is not None:
            return listed
        return terms[0] if len(terms) == 1 else Junction(every=False, terms=tuple(terms))

    def _joined_tests(self) -> Expression:
        """Parse a cell of ZEN, which joins its tests from left to right, whatever joins them."""
        terms, every = [self._zen_test()], False
        while self._is(",", "or", "and"):
            is_and = self._next().text == "and"
            if is_and is not every and len(terms) > 1:
                terms = [self._listed(terms) or Junction(every, tuple(terms))]
            every = is_and
            terms.append(self._zen_test())
        if len(terms) == 1:
            return terms[0]
        return (None if every else self._listed(terms)) or Junction(every, tuple(terms))

    def _zen_test(self) -> Expression:
        self._implicit = True
        found = self._comparison()
        self._implicit = False
        if self._is("?"):
            raise ExchangeError("a conditional value in a cell is not supported; split the row")
        return self._as_test(found)

    def _listed(self, terms: Sequence[Expression]) -> RuleMember | None:
        """Return a test of a list if every test is that the value equals a constant."""
        constants = [
            term.right
            for term in terms
            if isinstance(term, RuleComparison)
            and term.operator == "=="
            and term.left == self._subject
            and isinstance(term.right, Constant)
        ]
        if len(constants) < len(terms) or self._subject is None:
            return None
        return RuleMember(self._subject, Elements(tuple(constants)))

    def _cell_test(self) -> Expression:
        self._implicit = True
        found = self._or()
        self._implicit = False
        if self._is("?", "if"):
            raise ExchangeError("a conditional value in a cell is not supported; split the row")
        return self._as_test(found)

    def _as_test(self, found: Expression) -> Expression:
        subject = self._subject
        if subject is None:
            raise ExchangeError("a test has no input; correct the file")
        match found:
            case Junction():
                return Junction(found.every, tuple(self._as_test(term) for term in found.terms))
            case Not(operand=operand) if self._language is ZEN and not _is_condition(operand):
                raise ExchangeError(
                    "not of a value is never equal to the input in ZEN; write false, != or not in instead"
                )
            case RuleComparison() | RuleMember() | Not() | TextTest() | Has():
                return found
            case Elements() | RuleInterval():
                return RuleMember(subject, found)
            case RuleChoice():
                raise ExchangeError("a conditional value in a cell is not supported; split the row")
        return RuleComparison("==", subject, found)

    # Expressions

    def expression(self) -> Expression:
        """Parse an expression up to what cannot belong to it."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExchangeError(f"the expression is nested more than {MAX_DEPTH} deep; simplify it")
        implicit, self._implicit = self._implicit, False
        if self._is("if"):
            self._at += 1
            condition = self.expression()
            self.take("then")
            yes = self.expression()
            self.take("else")
            found: Expression = RuleChoice(condition, yes, self.expression())
        else:
            found = self._or()
            if self._language is not FEEL and self._is("?"):
                self._at += 1
                yes = self.expression()
                self.take(":")
                found = RuleChoice(found, yes, self.expression())
        self._implicit = implicit
        self._depth -= 1
        return found

    def _or(self) -> Expression:
        return self._junction(every=False)

    def _junction(self, *, every: bool) -> Expression:
        symbols = ("and", "&&") if every else ("or", "||")
        is_inside_cell = self._language is ZEN and self._subject is not None
        terms = [self._junction(every=True) if not every else self._comparison()]
        while self._is(*symbols):
            if is_inside_cell:
                raise ExchangeError(
                    "and and or are not valid in parentheses of a ZEN cell; use an input without a field, or "
                    "split the row"
                )
            self._at += 1
            terms.append(self._junction(every=True) if not every else self._comparison())
        return terms[0] if len(terms) == 1 else Junction(every, tuple(terms))

    def _comparator(self) -> Comparator | None:
        if self._language is FEEL and self._is("="):
            return "=="
        if self._is(*_COMPARATORS):
            return cast(Comparator, self._peek().text)
        return None

    def _comparison(self) -> Expression:
        if self._implicit and self._subject is not None:
            if (operator := self._comparator()) is not None:
                self._at += 1
                return self._compared(operator, self._subject)
            if self._is("in") or (self._is("not") and self._peek(1).text == "in"):
                return self._membership(self._subject)
        left = self._additive()
        if (operator := self._comparator()) is not None:
            self._at += 1
            return self._compared(operator, left)
        if self._is("in") or (self._is("not") and self._peek(1).text == "in"):
            return self._membership(left)
        return left

    def _compared(self, operator: Comparator, left: Expression) -> Expression:
        right = self._additive()
        if self._comparator() is not None or self._is("in"):
            raise ExchangeError("two comparisons follow each other; join them with and, or use parentheses")
        return RuleComparison(operator, left, right)

    def _membership(self, value: Expression) -> Expression:
        negated = self._is("not")
        self._at += 2 if negated else 1
        if self._language is FEEL and self._is("("):
            raise ExchangeError("in with tests in parentheses is not supported; write comparisons")
        within = self._additive()
        if not isinstance(within, Elements | RuleInterval):
            raise ExchangeError("in needs a list or an interval of constants on its right; write one")
        found = RuleMember(value, within)
        return Not(found) if negated else found

    def _additive(self) -> Expression:
        found = self._multiplicative()
        while self._is("+", "-"):
            sign = cast(Sign, self._next().text)
            found = Calculation(sign, found, self._multiplicative())
        return found

    def _multiplicative(self) -> Expression:
        found = self._unary()
        while self._is("*", "/"):
            sign = cast(Sign, self._next().text)
            found = Calculation(sign, found, self._unary())
        if self._is("%", "^", "**", "??"):
            raise ExchangeError(
                f'the operator "{self._peek().text}" is not supported; '
                "replace it with comparisons or with a feature"
            )
        return found

    def _unary(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExchangeError(f"the expression is nested more than {MAX_DEPTH} deep; simplify it")
        try:
            if self._is("-"):
                self._at += 1
                operand = self._unary()
                if isinstance(operand, Constant) and isinstance(operand.value, float):
                    return Constant(-operand.value)
                return Calculation("-", Constant(0.0), operand)
            if self._is("!", "not"):
                self._at += 1
                if self._language is FEEL and not self._is("("):
                    raise ExchangeError("not needs its operand in parentheses; add them")
                return Not(self._unary())
            return self._primary()
        finally:
            self._depth -= 1

    def _primary(self) -> Expression:
        token = self._next()
        found: Expression | None = None
        match token.kind:
            case "number":
                found = Constant(_number(token.text))
            case "text":
                text = token.text[1:-1]
                found = Constant(unescaped(text) if self._language.escapes else text)
            case "name":
                found = self._named(token.text)
            case "operator" if token.text == "(":
                found = self._parenthesis()
            case "operator" if token.text == "]":
                found = self._interval(self._additive_inside(), low_open=True)
            case "operator" if token.text == "[":
                found = self._bracket()
            case "operator" if token.text == self._language.subject:
                found = self._subject
        if found is None:
            self._at -= 1
            raise ExchangeError(
                f"a value is missing {self._where()}; write a number, a string, true, false, null or a name"
            )
        return found

    def _parenthesis(self) -> Expression:
        inside = self.expression()
        if self._is(".."):
            return self._interval(inside, low_open=True)
        self.take(")")
        return inside

    def _additive_inside(self) -> Expression:
        implicit, self._implicit = self._implicit, False
        found = self._additive()
        self._implicit = implicit
        return found

    def _bracket(self) -> Expression:
        if self._is("]"):
            self._at += 1
            return Elements(())
        first = self._additive_inside()
        if self._is(".."):
            return self._interval(first, low_open=False)
        items = [first]
        while self._is(","):
            self._at += 1
            items.append(self._additive_inside())
        self.take("]")
        return Elements(tuple(items))

    def _interval(self, low: Expression, *, low_open: bool) -> RuleInterval:
        self.take("..")
        high = self._additive_inside()
        if not self._is("]", ")", "["):
            self.take("]")
        return RuleInterval(low, high, low_open, self._next().text != "]")

    def _named(self, name: str) -> Expression:
        if name in ("true", "false"):
            return Constant(name == "true")
        if name == "null":
            return Constant(None)
        if not self._is("("):
            if name == self._language.subject:
                if self._subject is None:
                    raise ExchangeError(f'"{name}" is the tested value of a cell; name the value instead')
                return self._subject
            return Name(name)
        self._at += 1
        arguments = []
        if not self._is(")"):
            arguments.append(self.expression())
            while self._is(","):
                self._at += 1
                arguments.append(self.expression())
        self.take(")")
        return self._call(name, arguments)

    def _call(self, name: str, arguments: list[Expression]) -> Expression:
        target, _, method = name.rpartition(".")
        if self._language is CEL:
            if name == "has" and len(arguments) == 1:
                return Has(arguments[0])
            if target:
                name, arguments = method, [Name(target), *arguments]
        function = self._language.functions.get(name)
        if function is None:
            raise ExchangeError(
                f'the function "{name}" is not supported; '
                "compute the value as a feature of the bundle, and compare the feature"
            )
        if (
            len(arguments) != 2
            or not isinstance(arguments[1], Constant)
            or not isinstance(arguments[1].value, str)
        ):
            raise ExchangeError(f'"{name}" needs a value and a constant string; write the string itself')
        return TextTest(function, arguments[0], arguments[1].value)  # type: ignore[arg-type]


def _is_condition(expression: Expression) -> bool:
    if isinstance(expression, Not):
        return _is_condition(expression.operand)
    return isinstance(expression, RuleComparison | RuleMember | TextTest)


def _number(text: str) -> float:
    digits = re.sub(r"[eE].*", "", text).replace(".", "").lstrip("0").rstrip("0")
    if len(digits) > 15:
        raise ExchangeError(f"the number {text} has more than 15 significant digits; round it")
    value = float(text)
    if abs(value) > 1e28:
        raise ExchangeError(f"the number {text} is beyond 1e28, the range of decimals; correct it")
    return value


def _tokens(text: str, language: Language, names: Sequence[str]) -> list[_Token]:
    tokens = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if language is CEL and (match := _COMMENT.match(text, at)):
            at = match.end()
            continue
        token = _token(text, at, language, names)
        if token is None:
            raise ExchangeError(
                f'"{text[at]}" at character {at + 1} is not supported in {language.name}; remove it'
            )
        kind, end = token
        written = text[at:end]
        tokens.append(
            _Token(kind, language.words[written] if kind == "word" else _path(written, kind, language, names))
        )
        at = end
    tokens.append(_Token("end", ""))
    return tokens


def _path(written: str, kind: str, language: Language, names: Sequence[str]) -> str:
    """Return a name without blanks around its dots."""
    if kind != "name" or written in names or written == language.subject:
        return written
    return re.sub(r"\s*\.\s*", ".", written)


def _token(text: str, at: int, language: Language, names: Sequence[str]) -> tuple[str, int] | None:
    """Return the kind and the end of the token at a position; None if there is none."""
    for kind, pattern in (("text", _ESCAPED if language.escapes else _TEXT), ("number", _NUMBER)):
        if match := pattern.match(text, at):
            return kind, match.end()
    if (end := _spaced_name(text, at, [*names, *(one for one in language.functions if " " in one)])) > at:
        return "name", end
    match = _DOLLAR.match(text, at) if language is ZEN else None
    if match := match or _WORD.match(text, at):
        is_word = match[0] in language.words
        return ("word", match.end()) if is_word else ("name", _dotted(text, match.end()))
    found = next((one for one in language.operators if text.startswith(one, at)), None)
    return None if found is None else ("operator", at + len(found))


def _spaced_name(text: str, at: int, names: Sequence[str]) -> int:
    """Return the end of a name that may contain spaces; the position itself if there is none."""
    for name in names:
        end = at + len(name)
        following = text[end : end + 1]
        if text.startswith(name, at) and not (following.isalnum() or following == "_"):
            return end
    return at


def _dotted(text: str, end: int) -> int:
    """Return the end of the parts of a name after dots."""
    while (dot := _PART.match(text, end)) is not None:
        end = dot.end()
    return end
