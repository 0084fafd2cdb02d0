"""Decides from the content of an expression of CEL whether the language of rules has all that it contains.

The decision uses the tree of `cel_syntax` and types that are computed here. It uses nothing of the language
of rules, so that a refusal by the language counts as right only if the expression contains something that
docs/rules.md lists.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from cel_cases import CelCase
from cel_syntax import CelNode

SCALARS: Final = ("bool", "int", "double", "string")
_NUMBERS: Final = ("int", "double")
_ANY: Final = "any"
"""The type of the element of an empty list, which has no value that could have a wrong type."""
_TEXT_TESTS: Final = ("startsWith", "endsWith", "contains", "matches")
_MACROS: Final = ("all", "exists", "exists_one", "existsOne")
_TIMES: Final = frozenset(
    {
        "timestamp",
        "duration",
        "getFullYear",
        "getMonth",
        "getDate",
        "getDayOfMonth",
        "getDayOfWeek",
        "getDayOfYear",
        "getHours",
        "getMinutes",
        "getSeconds",
        "getMilliseconds",
    }
)
_TYPES: Final = frozenset(
    {"bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type", "type", "dyn"}
)
_LIBRARIES: Final = frozenset(
    {"math", "strings", "optional", "cel", "base64", "net", "lists", "sets", "ip", "cidr", "proto"}
)

REASONS: Final = (
    "messages and enums",
    "maps",
    "bytes",
    "unsigned integers",
    "timestamps and durations",
    "optional values",
    "types as values",
    "lists as values, indexes, `map` and `filter`",
    "macros of two variables, and macros over other than list literals",
    "functions of extension libraries, and unknown functions",
    "`string`, `bool`, and numbers from strings",
    "`dyn`",
    "null as a value",
    "containers, leading dots and escaped names",
    "parsing without macros",
    "strings that are not constant where a constant is needed",
    "lists of values of different types, or of values that are not constant",
    "operands that CEL's own checker refuses, without its checks",
    "names that are not declared",
)
"""What can put an expression outside the subset. docs/rules.md has the same list with the number of cases."""
(
    MESSAGES,
    MAPS,
    BYTES,
    UINTS,
    TIMES,
    OPTIONALS,
    TYPES,
    LISTS,
    MACROS,
    FUNCTIONS,
    CONVERSIONS,
    DYN,
    NULLS,
    CONTAINERS,
    NO_MACROS,
    CONSTANTS,
    MIXED,
    MISTYPED,
    UNDECLARED,
) = REASONS


@dataclass(frozen=True)
class CelSubset:
    """Whether a case is in the subset.

    Attributes:
        reason: What the language of rules does not have, one of `REASONS`; empty for a case in the subset.
        tree: The expression without `dyn`.
        kind: The type of the result of a case in the subset.
    """

    reason: str
    tree: CelNode
    kind: str = ""


class _OutsideError(Exception):
    """The expression contains something that the language of rules does not have."""


def classify_cel(case: CelCase, tree: CelNode) -> CelSubset:
    """Return whether the language of rules has all that a case contains.

    `dyn(x)` of a value that is in the subset is `x`: the language compares an int with a double without it.
    The reason is `DYN` if the expression is not in the subset without it either.
    """
    plain = without_dyn(tree)
    try:
        if not case.has_macros:
            raise _OutsideError(NO_MACROS)
        _syntax(case, plain)
        kind = _Types(case).of(plain)
        if kind == "null":
            raise _OutsideError(NULLS)
        if kind not in SCALARS:
            raise _OutsideError(LISTS)
    except _OutsideError as outside:
        reason = str(outside)
        if plain != tree and reason in (MISTYPED, MIXED):
            reason = DYN
        return CelSubset(reason, plain)
    return CelSubset("", plain, kind)


def without_dyn(node: CelNode) -> CelNode:
    """Return the tree without the calls of `dyn`, which leave values as they are."""
    children = tuple(without_dyn(child) for child in node.children)
    if node.kind == "call" and node.value == "dyn" and len(children) == 1:
        return children[0]
    return replace(node, children=children)


def _syntax(case: CelCase, node: CelNode) -> None:
    """Look for what is outside the subset wherever it stands."""
    if reason := _construct(case, node):
        raise _OutsideError(reason)
    for child in node.children:
        _syntax(case, child)


def _construct(case: CelCase, node: CelNode) -> str:
    kind, name = node.kind, str(node.value)
    if kind in ("message", "map", "bytes", "uint", "optional", "index"):
        return {
            "message": MESSAGES,
            "map": MAPS,
            "bytes": BYTES,
            "uint": UINTS,
            "optional": OPTIONALS,
            "index": LISTS,
        }[kind]
    if kind in ("name", "call") and name.startswith((".", "`")):
        return CONTAINERS
    if kind == "call":
        return _called(name, len(node.children))
    if kind == "method":
        return _method(node, name)
    return _named(case, node) if kind in ("name", "select") else ""


def _called(name: str, arguments: int) -> str:
    if name in _TIMES:
        return TIMES
    if name in ("uint", "bytes", "type", "string", "bool"):
        return {"uint": UINTS, "bytes": BYTES, "type": TYPES}.get(name, CONVERSIONS)
    known = {"size": 1, "int": 1, "double": 1, "matches": 2, "has": 1}
    return "" if known.get(name) == arguments else FUNCTIONS


def _method(node: CelNode, name: str) -> str:
    if name in _TIMES:
        return TIMES
    target, arguments = node.children[0], len(node.children) - 1
    if path(target).partition(".")[0] in _LIBRARIES:
        return OPTIONALS if path(target) == "optional" else FUNCTIONS
    if name in ("map", "filter"):
        return LISTS
    if name in _MACROS or name.startswith("transform"):
        one = arguments == 2 and name in ("all", "exists", "exists_one") and node.children[1].kind == "name"
        return "" if one and target.kind == "list" else MACROS
    known = (name in _TEXT_TESTS and arguments == 1) or (name == "size" and arguments == 0)
    return "" if known else FUNCTIONS


def path(node: CelNode) -> str:
    """Return a name with its fields, such as `a.b`; empty for any other expression."""
    if node.kind == "name":
        return str(node.value)
    if node.kind == "select" and (head := path(node.children[0])):
        return f"{head}.{node.value}"
    return ""


def _named(case: CelCase, node: CelNode) -> str:
    declared = _declared(case, path(node))
    return {
        "message": MESSAGES,
        "enum": MESSAGES,
        "wrapper": MESSAGES,
        "well_known": TIMES if "timestamp" in case.text or "duration" in case.text else MESSAGES,
        "map": MAPS,
        "list": LISTS,
        "uint": UINTS,
        "bytes": BYTES,
        "null": NULLS,
        "type": TYPES,
        "abstract": OPTIONALS,
        "dyn": DYN,
    }.get(declared, "")


def _declared(case: CelCase, name: str) -> str:
    """Return the type of the longest declared beginning of a name; empty if there is none."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        if kind := case.declared.get(".".join(parts[:end])):
            return kind if end == len(parts) or kind not in SCALARS else ""
    return ""


class _Types:
    """Computes types, as CEL's checker does, with comparisons of ints and doubles."""

    def __init__(self, case: CelCase) -> None:
        self.case = case
        self.bound: list[tuple[str, str]] = []

    def of(self, node: CelNode) -> str:
        kind = node.kind
        if kind in ("null", *SCALARS):
            return kind
        if kind in ("name", "select"):
            return self.name(node)
        if kind == "list":
            raise _OutsideError(LISTS)
        if kind in ("!", "&&", "||"):
            for child in node.children:
                self.needs(child, "bool")
            return "bool"
        if kind == "negate":
            return self.one_of(self.of(node.children[0]), _NUMBERS)
        if kind == "?:":
            self.needs(node.children[0], "bool")
            return self.same(self.of(node.children[1]), self.of(node.children[2]))
        if kind == "in":
            return self.membership(node)
        if kind in ("==", "!=", "<", "<=", ">", ">="):
            return self.comparison(node)
        if kind in ("+", "-", "*", "/", "%"):
            return self.arithmetic(node)
        return self.call(node)

    def needs(self, node: CelNode, wanted: str) -> None:
        self.one_of(self.of(node), (wanted,))

    def one_of(self, found: str, wanted: tuple[str, ...]) -> str:
        if found == _ANY:
            return wanted[0]
        if found not in wanted:
            raise _OutsideError(MISTYPED)
        return found

    def same(self, one: str, other: str) -> str:
        if _ANY in (one, other):
            return other if one == _ANY else one
        return self.one_of(one, (other,))

    def name(self, node: CelNode) -> str:
        name = path(node)
        for variable, kind in reversed(self.bound):
            if variable == name:
                return kind
        if declared := _declared(self.case, name):
            if self.case.container and f"{self.case.container}.{name}" in self.case.declared:
                raise _OutsideError(CONTAINERS)
            return declared
        if self.case.container:
            raise _OutsideError(CONTAINERS)
        if name in _TYPES or name.startswith("google."):
            raise _OutsideError(TYPES)
        raise _OutsideError(UNDECLARED)

    def comparison(self, node: CelNode) -> str:
        left, right = (self.of(child) for child in node.children)
        if "null" in (left, right):
            if node.kind not in ("==", "!=") or left != right:
                raise _OutsideError(NULLS)
        elif not {left, right} <= set(_NUMBERS):
            self.same(left, right)
        return "bool"

    def arithmetic(self, node: CelNode) -> str:
        left, right = (self.of(child) for child in node.children)
        allowed = {"+": ("int", "double", "string"), "%": ("int",)}.get(node.kind, _NUMBERS)
        kind = self.one_of(self.same(left, right), allowed)
        if kind == "string" and not all(map(is_constant, node.children)):
            raise _OutsideError(CONSTANTS)
        return kind

    def membership(self, node: CelNode) -> str:
        value, elements = node.children
        if elements.kind != "list":
            raise _OutsideError(LISTS)
        found = self.of(value)
        kind = self.element(elements)
        if not ({found, kind} <= set(_NUMBERS) or kind == _ANY):
            self.same(found, kind)
        return "bool"

    def element(self, elements: CelNode) -> str:
        """Return the type of the elements of a list literal, which are constant; ints and doubles can mix."""
        kinds = {self.of(child) for child in elements.children}
        if "null" in kinds:
            raise _OutsideError(NULLS)
        if not all(map(is_constant, elements.children)) or not (len(kinds) < 2 or kinds <= set(_NUMBERS)):
            raise _OutsideError(MIXED)
        return "double" if len(kinds) > 1 else next(iter(kinds), _ANY)

    def call(self, node: CelNode) -> str:
        name, children = str(node.value), node.children
        if name == "has":
            raise _OutsideError(MESSAGES)
        if name == "size":
            if children[0].kind == "list":
                self.element(children[0])
            else:
                self.needs(children[0], "string")
            return "int"
        if name in ("int", "double"):
            if (kind := self.of(children[0])) == "string":
                raise _OutsideError(CONVERSIONS)
            self.one_of(kind, _NUMBERS)
            return name
        if name in _TEXT_TESTS:
            self.needs(children[0], "string")
            self.needs(children[1], "string")
            if not is_constant(children[1]):
                raise _OutsideError(CONSTANTS)
            return "bool"
        elements, variable, condition = children
        self.bound.append((str(variable.value), self.element(elements)))
        try:
            self.needs(condition, "bool")
        finally:
            self.bound.pop()
        return "bool"


def is_constant(node: CelNode) -> bool:
    """Whether an expression has neither names nor macros."""
    if node.kind in ("name", "select") or node.value in _MACROS:
        return False
    return all(map(is_constant, node.children))
