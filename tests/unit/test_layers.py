"""Test of the import rule that import-linter cannot check, because a compiled module is not in its graph."""

from __future__ import annotations

import ast
from pathlib import Path

import scorer

ROOT = Path(scorer.__file__).parent


def test_only_the_bridge_imports_the_extension() -> None:
    importers = set()
    for path in ROOT.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            )
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            if any(name.startswith("scorer._scorer") for name in names):
                importers.add(path.relative_to(ROOT).as_posix())
    assert importers == {"bridge.py"}
