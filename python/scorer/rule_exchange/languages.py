"""The expression languages that are read and written: ZEN of JDM, FEEL of DMN, and CEL."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from scorer.rule_exchange.expressions import ExchangeError

_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\", "`": "`", "?": "?"}


@dataclass(frozen=True)
class Language:
    """What differs between the languages for the parser and the translation.

    Attributes:
        name: Its name in messages.
        operators: Symbols of operators and punctuation, the longest first.
        words: Operators that are words, by the symbol that the parser knows.
        escapes: Whether a string has escapes after a backslash.
        subject: The name of the value that a cell tests; empty if there is none.
        ordered: Whether "and" and "or" stop at the first operand without a value.
        null_equals: Whether null can be compared for equality; otherwise such a comparison has no value.
        functions: Tests of strings by the name of the function.
    """

    name: str
    operators: tuple[str, ...]
    words: Mapping[str, str]
    escapes: bool
    subject: str
    ordered: bool
    null_equals: bool
    functions: Mapping[str, str] = field(default_factory=dict)


_TESTS = {name: name for name in ("startsWith", "endsWith", "contains", "matches")}
_SHARED = ("<=", ">=", "!=", "..", "<", ">", "+", "-", "*", "/", "(", ")", "[", "]", ",", "?", ":")

ZEN = Language(
    "ZEN",
    ("==", "??", *_SHARED, "!", "%", "^", "{", "}", ";"),
    {"and": "and", "or": "or", "not": "not", "in": "in"},
    escapes=False,
    subject="$",
    ordered=True,
    null_equals=True,
    functions=_TESTS,
)
FEEL = Language(
    "FEEL",
    ("**", *_SHARED, "=", "{", "}", "@"),
    {"and": "and", "or": "or", "not": "not", "in": "in", "if": "if", "then": "then", "else": "else"},
    escapes=True,
    subject="?",
    ordered=False,
    null_equals=True,
    functions={"starts with": "startsWith", "ends with": "endsWith", "contains": "contains"},
)
CEL = Language(
    "CEL",
    ("&&", "||", "==", *_SHARED, "!", "%", "{", "}", "."),
    {"in": "in"},
    escapes=True,
    subject="",
    ordered=False,
    null_equals=False,
    functions=_TESTS,
)


def zen_text(value: str) -> str:
    """Return a string as a literal of ZEN, which has no escapes.

    Raises:
        ExchangeError: The string contains both kinds of quotation marks, or control characters.
    """
    quote = '"' if '"' not in value else "'"
    if quote in value or not value.isprintable():
        raise ExchangeError(
            f"the string {value!r} has no form in ZEN, whose strings have no escapes; remove quotation marks "
            "and control characters"
        )
    return f"{quote}{value}{quote}"


def cel_text(value: str) -> str:
    """Return a string as a literal of CEL."""
    return json.dumps(value, ensure_ascii=False)


def number_text(value: float) -> str:
    """Return a number as a literal of a double in each of the languages."""
    return repr(float(value))


def unescaped(text: str) -> str:
    """Return a string without its escapes.

    Raises:
        ExchangeError: An escape is not supported.
    """

    def one(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] in "uU":
            return chr(int(code[1:], 16))
        if code not in _ESCAPES:
            raise ExchangeError(f"the escape \\{code} is not supported; write the character itself")
        return _ESCAPES[code]

    return re.sub(r"\\(u[0-9A-Fa-f]{4}|.)", one, text, flags=re.DOTALL)


def value_words(value: str | float | bool | None) -> str:
    """Return a value or a name for a message."""
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) or value is None else f"{value:g}"
