"""A reader of the text format of protocol buffers, without descriptors, for the conformance cases of CEL."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, TypeAlias

TextMessage: TypeAlias = dict[str, list[Any]]
"""The values of each field in the order of the file: messages, words as written, and bytes of strings."""

_TOKEN: Final = re.compile(
    r"""(?P<blank>(?:\s|\#[^\n]*)+)
    |(?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[-+]?[\d.]+[eE][-+]?\d+|[-+]?[A-Za-z0-9_.]+)
    |(?P<sign>[-{}<>:;,\[\]/])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))"
)
_LETTERS: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b", b"f": b"\f", b"v": b"\v"}


def read_textproto(text: str) -> TextMessage:
    """Return the fields of a message in text format.

    Args:
        text: The whole file.

    Returns:
        For each field its values. Fields of extensions and the types of `Any` keep their brackets: `[type]`.

    Raises:
        ValueError: The text is not in the format; the message has the position.
    """
    return _Reader(list(_tokens(text))).message("")


def message_of(message: TextMessage, field: str) -> TextMessage | None:
    """Return the message in a field that is not repeated; None without the field."""
    found = message.get(field)
    if not found:
        return None
    if not isinstance(found[0], dict):
        raise TypeError(f"field {field} is not a message")
    return found[0]


def messages_of(message: TextMessage, field: str) -> list[TextMessage]:
    """Return the messages of a repeated field."""
    return [one for one in message.get(field, []) if isinstance(one, dict)]


def text_of(message: TextMessage, field: str) -> str:
    """Return the characters of a string, or a word as it is written; empty without the field."""
    found = message.get(field)
    if not found:
        return ""
    if isinstance(found[0], dict):
        raise TypeError(f"field {field} is a message")
    return found[0].decode() if isinstance(found[0], bytes) else found[0]


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            line = text.count("\n", 0, at) + 1
            raise ValueError(f"line {line}: unexpected {text[at]!r} in a file in text format")
        if found.lastgroup != "blank":
            yield str(found.lastgroup), found.group()
        at = found.end()


def _unquoted(text: str) -> bytes:
    def character(found: re.Match[bytes]) -> bytes:
        octal, hexadecimal, short, long, letter = found.groups()
        if octal:
            return bytes([int(octal, 8)])
        if hexadecimal:
            return bytes([int(hexadecimal, 16)])
        if short or long:
            return chr(int(short or long, 16)).encode()
        return _LETTERS.get(letter, letter)

    return _ESCAPE.sub(character, text[1:-1].encode())


class _Reader:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        token = self.peek()
        self.at += 1
        return token

    def takes(self, *signs: str) -> str:
        kind, text = self.peek()
        if kind == "sign" and text in signs:
            self.at += 1
            return text
        return ""

    def message(self, close: str) -> TextMessage:
        message: TextMessage = {}
        while not (close and self.takes(close)):
            kind, name = self.take()
            if kind == "end":
                if close:
                    raise ValueError(f"a message does not end with {close}")
                return message
            if name == "[":
                parts = ["["]
                while parts[-1] != "]":
                    kind, part = self.take()
                    if kind == "end":
                        raise ValueError("the name of an extension does not end")
                    parts.append(part)
                name = "".join(parts)
            elif kind != "word":
                raise ValueError(f"found {name!r} where a field is expected")
            message.setdefault(name, []).extend(self.values())
            self.takes(",", ";")
        return message

    def values(self) -> list[Any]:
        self.takes(":")
        if not self.takes("["):
            return [self.value()]
        found: list[Any] = []
        while not self.takes("]"):
            found.append(self.value())
            self.takes(",")
        return found

    def value(self) -> Any:
        if opening := self.takes("{", "<"):
            return self.message({"{": "}", "<": ">"}[opening])
        sign = self.takes("-")
        kind, text = self.take()
        if kind == "word":
            return sign + text
        if kind != "string":
            raise ValueError(f"found {text!r} where a value is expected")
        joined = _unquoted(text)
        while self.peek()[0] == "string":
            joined += _unquoted(self.take()[1])
        return joined
