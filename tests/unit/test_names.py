"""Tests of names, which must be unique for search, and of docstrings, which must add to the signature."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import scorer

ROOT = Path(scorer.__file__).parent
FEWEST_WORDS = 5


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith("v1/") or "/migrations/" in place:
            continue  # modules that are generated, or whose names a tool determines
        yield place, ast.parse(path.read_text("utf-8"))


def public(node: ast.AST, scope: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and docstrings of the public classes, functions and methods of a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if child.name.startswith("_"):
                continue
            name = f"{scope}{child.name}"
            if (text := ast.get_docstring(child)) is not None:
                yield name, text
            if isinstance(child, ast.ClassDef):
                yield from public(child, f"{name}.")
        elif isinstance(child, ast.If | ast.Try):
            yield from public(child, scope)


def test_a_public_class_name_is_defined_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for place, module in modules():
        for node in module.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(place)
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert len(homes) > 400
    assert not twice, twice


def test_a_public_docstring_says_more_than_a_word_or_two() -> None:
    documented = [
        (place, name, text)
        for place, module in modules()
        for name, text in [("", ast.get_docstring(module) or "x " * FEWEST_WORDS), *public(module)]
    ]
    short = [one for one in documented if len(one[2].split()) < FEWEST_WORDS]
    assert len(documented) > 1_500
    assert not short, "\n".join(map(str, short))
