"""Adds the docstrings below the fields of types to their schemas as descriptions."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from types import ModuleType
from typing import Any


def describe(schemas: dict[str, Any], *modules: ModuleType) -> None:
    """Add descriptions to the schemas of the types that the modules define."""
    for module in modules:
        for name, kind in vars(module).items():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and name in schemas:
                properties = schemas[name].get("properties", {})
                for field, words in _below_fields(kind).items():
                    properties.get(field, {}).setdefault("description", words)


def _below_fields(kind: type) -> dict[str, str]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)  # noqa: S101 - the source of a class
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            found[statement.target.id] = inspect.cleandoc(following.value.value)
    return found
