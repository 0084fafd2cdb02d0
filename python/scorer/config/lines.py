"""The line numbers of the keys of a TOML document.

``tomllib`` reports line numbers for syntax errors only. The scanner reads a document that ``tomllib`` has
already accepted, so it needs no error handling. It follows table headers, dotted keys, arrays and inline
tables, and skips strings and comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> Mapping[tuple[str | int, ...], int]:
    """Return the line (from 1) on which each key path first occurs.

    The path of an element of an array contains its index, as in pydantic's ``loc``.

    Args:
        text: A valid TOML document.
    """
    return _Scanner(text.replace("\r\n", "\n")).run()


class _Scanner:
    """A cursor over valid TOML."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[tuple[str | int, ...], int] = {}
        self.array_tables: dict[tuple[str | int, ...], int] = {}

    def run(self) -> Mapping[tuple[str | int, ...], int]:
        table: tuple[str | int, ...] = ()
        while True:
            self._skip_space(newlines=True)
            if self.at >= len(self.text):
                return self.lines
            if self._peek() == "[":
                table = self._header()
            else:
                self._pair(table)

    # --- elements of a document ---

    def _header(self) -> tuple[str | int, ...]:
        line = self._line()
        is_array = self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        keys = self._key()
        self.at += 2 if is_array else 1
        path: tuple[str | int, ...] = ()
        for depth, key in enumerate(keys):
            path = (*path, key)
            self.lines.setdefault(path, line)
            is_last = depth == len(keys) - 1
            if is_last and is_array:
                self.array_tables[path] = self.array_tables.get(path, -1) + 1
            if path in self.array_tables:
                path = (*path, self.array_tables[path])
                self.lines.setdefault(path, line)
        return path

    def _pair(self, table: tuple[str | int, ...]) -> None:
        line = self._line()
        path = table
        for key in self._key():
            path = (*path, key)
            self.lines.setdefault(path, line)
        self._skip_space()
        self.at += 1  # "="
        self._value(path)

    def _key(self) -> list[str]:
        """Read a dotted key up to the character after it."""
        parts: list[str] = []
        while True:
            self._skip_space()
            if self._peek() in "\"'":
                parts.append(self._string())
            else:
                match = _BARE.match(self.text, self.at)
                parts.append(match.group() if match else "")
                self.at = match.end() if match else self.at + 1
            self._skip_space()
            if self._peek() != ".":
                return parts
            self.at += 1

    def _value(self, path: tuple[str | int, ...]) -> None:
        self._skip_space(newlines=True)
        first = self._peek()
        if first in ("'", '"'):
            self._string()
        elif first == "[":
            self._array(path)
        elif first == "{":
            self._inline_table(path)
        elif match := _SCALAR.match(self.text, self.at):
            self.at = match.end()

    def _array(self, path: tuple[str | int, ...]) -> None:
        self.at += 1
        index = 0
        while True:
            self._skip_space(newlines=True)
            if self._peek() == "]":
                break
            self.lines.setdefault((*path, index), self._line())
            self._value((*path, index))
            index += 1
            self._skip_space(newlines=True)
            if self._peek() == ",":
                self.at += 1
        self.at += 1

    def _inline_table(self, path: tuple[str | int, ...]) -> None:
        self.at += 1
        while True:
            self._skip_space(newlines=True)
            if self._peek() == "}":
                break
            self._pair(path)
            self._skip_space(newlines=True)
            if self._peek() == ",":
                self.at += 1
        self.at += 1

    def _string(self) -> str:
        """Skip a string of any of the four forms. Return its value; "" for a multi-line string."""
        quote = self._peek()
        if self.text.startswith(quote * 3, self.at):
            self._multiline(quote)
            return ""
        start = self.at + 1
        end = start
        while self.text[end] != quote:
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        self.at = end + 1
        raw = self.text[start:end]
        return _unescape(raw) if quote == '"' else raw

    def _multiline(self, quote: str) -> None:
        end = self.at + 3
        while not self.text.startswith(quote * 3, end):
            end += 2 if quote == '"' and self.text[end] == "\\" else 1
        end += 3
        # Up to two quotes may precede the closing three.
        while self.text.startswith(quote, end):
            end += 1
        self.at = end

    # --- the cursor ---

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1] or "\0"

    def _line(self) -> int:
        return self.text.count("\n", 0, self.at) + 1

    def _skip_space(self, *, newlines: bool = False) -> None:
        blank = " \t\n" if newlines else " \t"
        while self.at < len(self.text):
            if self.text[self.at] in blank:
                self.at += 1
            elif newlines and self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return


_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", "e": "\x1b", '"': '"', "\\": "\\"}
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|x([0-9A-Fa-f]{2})|(.))")


def _unescape(raw: str) -> str:
    def replace(match: re.Match[str]) -> str:
        code = match.group(1) or match.group(2) or match.group(3)
        return chr(int(code, 16)) if code else _ESCAPES.get(match.group(4), match.group(4))

    return _ESCAPE.sub(replace, raw)
