"""Tests of the line scanner with documents whose line numbers are known by construction."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer.config.lines import key_lines

DOCUMENT = '''\
# a comment with [brackets] = and "quotes"
top = 1
"quoted.key" = 'single # not a comment'
dotted.inner."x y" = """
multi = "line"
[not.a.table] \\""" ""
still inside"""

[server] # trailing
listen = "127.0.0.1:1" # = [x]
inline = { a = 1, b = { c = [1, 2] }, "d.e" = 'f' }
list = [
  1, # one
  { k = "]" },
  [ "}", """
]""" ],
]
[checkpoints."fraud.checkout"]
kind = "score"
[checkpoints.'action.x'.fallback]
action = "a\\"b"
[[array]]
n = 1
[[array]]
n = 2
[array.sub]
m = 3
'''

LINES = {
    ("top",): 2,
    ("quoted.key",): 3,
    ("dotted", "inner", "x y"): 4,
    ("server",): 9,
    ("server", "listen"): 10,
    ("server", "inline", "a"): 11,
    ("server", "inline", "b", "c"): 11,
    ("server", "inline", "d.e"): 11,
    ("server", "list"): 12,
    ("server", "list", 0): 13,
    ("server", "list", 1, "k"): 14,
    ("server", "list", 2): 15,
    ("checkpoints", "fraud.checkout"): 18,
    ("checkpoints", "fraud.checkout", "kind"): 19,
    ("checkpoints", "action.x", "fallback"): 20,
    ("checkpoints", "action.x", "fallback", "action"): 21,
    ("array", 0, "n"): 23,
    ("array", 1): 24,
    ("array", 1, "n"): 25,
    ("array", 1, "sub", "m"): 27,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_lines_of_every_toml_form_are_found(newline: str) -> None:
    text = DOCUMENT.replace("\n", newline)
    tomllib.loads(text)
    result = key_lines(text)
    assert {path: result.get(path) for path in LINES} == LINES


def leaves(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    if isinstance(value, dict):
        return {path} | {leaf for key, item in value.items() for leaf in leaves(item, (*path, key))}
    if isinstance(value, list):
        return {path} | {leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))}
    return {path}


def test_the_keys_equal_those_of_tomllib() -> None:
    assert set(key_lines(DOCUMENT)) == leaves(tomllib.loads(DOCUMENT)) - {()}


keys = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def spelled(text: str, form: int) -> str:
    if form == 0:
        return quoted(text)
    if form == 1:
        return "".join(f"\\U{ord(c):08x}" for c in text).join('""')
    body = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"""\n{body}\n"""' if form == 2 else "[ " + quoted(text) + ",\n# ]\n]"


@given(
    st.dictionaries(
        keys, st.lists(st.tuples(keys, texts, st.integers(0, 3)), unique_by=lambda e: e[0]), max_size=4
    )
)
def test_each_key_has_the_line_it_was_written_on(tables: dict[str, list[tuple[str, str, int]]]) -> None:
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table, entries in tables.items():
        expected[(table,)] = sum(line.count("\n") + 1 for line in lines) + 1
        lines.append(f"[{spelled(table, 0)}]")
        for key, value, form in entries:
            expected[table, key] = sum(line.count("\n") + 1 for line in lines) + 1
            lines.append(f"{spelled(key, form % 2)} = {spelled(value, form)}")
    text = "\n".join(lines)
    document = tomllib.loads(text)
    assert set(document) == set(tables)
    result = key_lines(text)
    assert {path: result.get(path) for path in expected} == expected
