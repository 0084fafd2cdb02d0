"""Names that search finds: no public class name stands for two things in the product."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import scorer

ROOT = Path(scorer.__file__).parent


def test_a_public_class_name_is_defined_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if place.startswith("v1/") or "/migrations/" in place:
            continue  # generated, or named by the tool that runs them
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(place)
    twice = {name: places for name, places in homes.items() if len(places) > 1}
    assert not twice, twice
