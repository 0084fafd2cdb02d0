"""A parser of the whole syntax of CEL, which shares no code with the language of rules.

The conformance cases are classified by what they contain, and not by what the language of rules accepts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple


@dataclass(frozen=True)
class CelNode:
    """A part of an expression.

    Attributes:
        kind: null, bool, int, uint, double, string, bytes, name, select, call, method, index, list, map,
            message, entry, optional, ?:, or an operator such as +, ! or negate.
        value: The value of a literal, or the name of a name, field, function or method.
        children: The operands. The first one of a select, method, index or message is what it is applied to.
    """

    kind: str
    value: bool | int | float | str = ""
    children: tuple[CelNode, ...] = ()


class CelSyntaxError(ValueError):
    """The text is no expression of CEL."""


LEVELS: Final = (("||",), ("&&",), ("==", "!=", "<=", ">=", "<", ">", "in"), ("+", "-"), ("*", "/", "%"))
"""The operators of two operands, those that bind weakest first."""

_TOKEN: Final = re.compile(
    r"""(?P<blank>(?:[ \t\n\f\r]|//[^\n]*)+)
    |(?P<double>(?:\d+\.\d+|\.\d+|\d+(?=[eE]))(?:[eE][-+]?\d+)?)
    |(?P<uint>(?:0[xX][0-9a-fA-F]+|\d+)[uU])
    |(?P<int>0[xX][0-9a-fA-F]+|\d+)
    |(?P<quote>[rRbB]{0,2}(?:\"{3}|'{3}|"|'))
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<escaped>`[^`\n]+`)
    |(?P<sign>&&|\|\||==|!=|<=|>=|[<>!+\-*/%?:()\[\]{},.])""",
    re.VERBOSE,
)
_ESCAPE: Final = re.compile(
    r"\\(?:([0-3][0-7]{2})|[xX]([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class _Token(NamedTuple):
    kind: str
    text: str


def parse_cel(text: str) -> CelNode:
    """Return the tree of an expression.

    Args:
        text: The expression, in the whole language with optional values.

    Returns:
        The tree. A sign before a number is part of the number.

    Raises:
        CelSyntaxError: The text is no expression.
    """
    parser = _Parser([*_tokens(text), _Token("end", "")])
    tree = parser.expression()
    if parser.peek().kind != "end":
        raise CelSyntaxError(f"{parser.peek().text!r} after the expression")
    return tree


def render_cel(node: CelNode) -> str:
    """Return the text of a tree in parentheses; parsing it again gives the tree."""
    parts = [render_cel(child) for child in node.children]
    kind, value = node.kind, node.value
    if kind == "null":
        return "null"
    if kind == "bool":
        return "true" if value else "false"
    if kind == "int":
        return str(value)
    if kind == "double":
        return repr(value)
    if kind == "string":
        return '"' + "".join(_quoted(character) for character in str(value)) + '"'
    if kind == "name":
        return str(value)
    if kind == "select":
        return f"{parts[0]}.{value}"
    if kind == "call":
        return f"{value}({', '.join(parts)})"
    if kind == "method":
        return f"{parts[0]}.{value}({', '.join(parts[1:])})"
    if kind == "list":
        return f"[{', '.join(parts)}]"
    if kind == "?:":
        return f"({parts[0]} ? {parts[1]} : {parts[2]})"
    if kind in ("!", "negate"):
        return f"({'!' if kind == '!' else '-'}({parts[0]}))"
    if len(parts) == 2:
        return f"({parts[0]} {kind} {parts[1]})"
    raise CelSyntaxError(f"a tree with {kind} has no text")


def _quoted(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    return character if character.isprintable() else f"\\U{ord(character):08x}"


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise CelSyntaxError(f"unexpected {text[at]!r}")
        kind = str(found.lastgroup)
        at = found.end()
        if kind == "quote":
            prefix, quote = found.group().rstrip("\"'").lower(), found.group().lstrip("rRbB")
            start = at
            while not text.startswith(quote, at):
                at += 2 if text[at] == "\\" and "r" not in prefix else 1
                if at >= len(text):
                    raise CelSyntaxError("a string does not end")
            content = text[start:at]
            at += len(quote)
            if "b" in prefix:
                yield _Token("bytes", content)
            else:
                yield _Token("string", content if "r" in prefix else _ESCAPE.sub(_character, content))
        elif kind != "blank":
            yield _Token(kind, found.group())


def _character(found: re.Match[str]) -> str:
    octal, byte, short, long, letter = found.groups()
    if octal:
        return chr(int(octal, 8))
    if code := byte or short or long:
        return chr(int(code, 16))
    return _LETTERS.get(letter, letter)


class _Parser:
    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self) -> _Token:
        return self.tokens[self.at]

    def take(self) -> _Token:
        token = self.tokens[self.at]
        self.at += token.kind != "end"
        return token

    def takes(self, *texts: str) -> str:
        token = self.peek()
        if token.text in texts and (token.kind == "sign" or token.text == "in"):
            self.at += 1
            return token.text
        return ""

    def expect(self, text: str) -> None:
        if not self.takes(text):
            raise CelSyntaxError(f"found {self.peek().text!r} where {text!r} is expected")

    def expression(self) -> CelNode:
        condition = self.binary(0)
        if not self.takes("?"):
            return condition
        yes = self.binary(0)
        self.expect(":")
        return CelNode("?:", children=(condition, yes, self.expression()))

    def binary(self, level: int) -> CelNode:
        if level == len(LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while sign := self.takes(*LEVELS[level]):
            left = CelNode(sign, children=(left, self.binary(level + 1)))
        return left

    def unary(self) -> CelNode:
        if self.takes("!"):
            return CelNode("!", children=(self.unary(),))
        if not self.takes("-"):
            return self.member(self.primary(1))
        if self.peek().kind in ("int", "double"):
            return self.member(self.primary(-1))
        return CelNode("negate", children=(self.unary(),))

    def member(self, node: CelNode) -> CelNode:
        while True:
            if self.takes("["):
                kind = "optional" if self.takes("?") else "index"
                node = CelNode(kind, children=(node, self.expression()))
                self.expect("]")
            elif self.takes("{"):
                node = CelNode("message", children=(node, *self.entries()))
            elif self.takes("."):
                optional = bool(self.takes("?"))
                token = self.take()
                if token.kind not in ("name", "escaped"):
                    raise CelSyntaxError(f"found {token.text!r} where a field is expected")
                if optional:
                    node = CelNode("optional", token.text, (node,))
                elif self.takes("("):
                    node = CelNode("method", token.text, (node, *self.several(")")))
                else:
                    node = CelNode("select", token.text, (node,))
            else:
                return node

    def entries(self) -> list[CelNode]:
        found = []
        while not self.takes("}"):
            optional = self.takes("?")
            key = self.expression()
            self.expect(":")
            entry = CelNode("entry", children=(key, self.expression()))
            found.append(CelNode("optional", children=(entry,)) if optional else entry)
            if not self.takes(","):
                self.expect("}")
                break
        return found

    def several(self, close: str) -> list[CelNode]:
        found = []
        while not self.takes(close):
            optional = self.takes("?")
            element = self.expression()
            found.append(CelNode("optional", children=(element,)) if optional else element)
            if not self.takes(","):
                self.expect(close)
                break
        return found

    def primary(self, sign: int) -> CelNode:
        token = self.take()
        if token.kind == "int":
            return CelNode("int", sign * int(token.text, 16 if token.text[:2].lower() == "0x" else 10))
        if token.kind == "double":
            return CelNode("double", sign * float(token.text))
        if token.kind in ("uint", "bytes", "string"):
            return CelNode(token.kind, token.text)
        if token.kind == "escaped":
            return CelNode("name", token.text)
        if token.kind == "name" and token.text != "in":
            if token.text in ("true", "false"):
                return CelNode("bool", token.text == "true")
            if token.text == "null":
                return CelNode("null")
            return self.named(token.text)
        if token == _Token("sign", "("):
            inner = self.expression()
            self.expect(")")
            return inner
        if token == _Token("sign", "["):
            return CelNode("list", children=tuple(self.several("]")))
        if token == _Token("sign", "{"):
            return CelNode("map", children=tuple(self.entries()))
        if token == _Token("sign", "."):
            return self.named("." + self.take().text)
        raise CelSyntaxError(f"found {token.text!r} where a value is expected")

    def named(self, name: str) -> CelNode:
        if self.takes("("):
            return CelNode("call", name, tuple(self.several(")")))
        return CelNode("name", name)
