"""Evaluates expressions by the language of rules, through the program that `make cel-spec` builds."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cel_cases import CelValue
from components import BUILD, ROOT

EVALUATOR: Final = BUILD / "cel-spec" / "evaluator"
SOURCES: Final = (ROOT / "rust" / "rules" / "src", ROOT / "rust" / "rules" / "examples" / "cel.rs")


@dataclass(frozen=True)
class RuleExpression:
    """An expression and its names.

    Attributes:
        text: The expression.
        names: Each name with its type (bool, int, double or string) and its value; None if it is missing.
    """

    text: str
    names: dict[str, CelValue]


@dataclass(frozen=True)
class RuleOutcome:
    """What the language of rules makes of an expression.

    Attributes:
        state: value, unknown, error, or refused.
        kind: The type of the expression; empty if it is refused.
        value: The value; None without one.
        message: The kind of error, or why the expression is refused.
    """

    state: str
    kind: str = ""
    value: bool | int | float | str | None = None
    message: str = ""


def evaluate_expressions(expressions: Sequence[RuleExpression]) -> list[RuleOutcome]:
    """Return the outcome of each expression.

    Raises:
        subprocess.CalledProcessError: The program did not understand its input.
    """
    parts = []
    for expression in expressions:
        parts.append(f"[[cases]]\ntext = {_quoted(expression.text)}\n")
        for name, value in expression.names.items():
            parts.append(f"[[cases.names]]\nname = {_quoted(name)}\nkind = {_quoted(value.kind)}\n")
            if value.value is not None:
                parts.append(f"value = {_quoted(_written(value.value))}\n")
    ran = subprocess.run(
        [EVALUATOR], input="".join(parts), capture_output=True, encoding="utf-8", check=True, timeout=60
    )
    lines = ran.stdout.splitlines()
    assert len(lines) == len(expressions), "the program writes one line for each expression"
    return [_outcome(line) for line in lines]


def _written(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else repr(value)


def _quoted(text: str) -> str:
    """Return a string of TOML that has no character outside printable ASCII."""
    plain = [
        one if one.isprintable() and one.isascii() and one not in '"\\' else f"\\U{ord(one):08x}"
        for one in text
    ]
    return f'"{"".join(plain)}"'


def _outcome(line: str) -> RuleOutcome:
    state, kind, rest = line.split("\t", 2)
    if state != "value":
        return RuleOutcome(state, kind, message=rest)
    value: bool | int | float | str = rest == "true"
    if kind == "int":
        value = int(rest)
    elif kind == "double":
        (value,) = struct.unpack(">d", bytes.fromhex(rest))
    elif kind == "string":
        value = bytes.fromhex(rest).decode()
    return RuleOutcome(state, kind, value)
