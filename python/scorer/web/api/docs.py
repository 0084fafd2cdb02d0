"""The description of the API as one plain page without scripts or third-party content."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #1c2330; background: #fff; }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #d5dae3; }
section { margin: 1.2rem 0; }
h3 { margin: 0; font-size: 1rem; overflow-wrap: anywhere; }
p { margin: .2rem 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700; }
ul { margin: .2rem 0; padding-left: 1.2rem; overflow-wrap: anywhere; } .quiet { color: #5b6577; }
"""
"""Style of the page, in a separate file because the content security policy forbids inline style."""


def page(schema: dict[str, Any]) -> str:
    """Return the page that documents the REST API."""
    return "".join(_lines(schema))


def _lines(schema: dict[str, Any]) -> Iterator[str]:
    title = escape(f"{schema['info']['title']} {schema['info']['version']}")
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}: REST</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f'<link rel="stylesheet" href="docs.css"></head><body><header><h1>{title}: REST</h1></header><main>'
    yield "<p>Machine-readable: <a href='openapi.json'>openapi.json</a>. "
    yield "Send <code>Authorization: Bearer TOKEN</code>; requests and responses are JSON, and errors are "
    yield "<code>application/problem+json</code>.</p>"
    groups: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation.get("tags", ["other"])[0], []).append((path, method, operation))
    for group, members in groups.items():
        yield f"<h2>{escape(group)}</h2>"
        for path, method, operation in members:
            yield from _operation(path, method, operation)
    yield "</main></body></html>"


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    name = escape(operation["operationId"])
    yield f'<section id="{name}"><h3><code><span class="method">{method.upper()}</span>'
    yield f"{escape('/api/v1' + path)}</code></h3><p>{escape(operation.get('description', ''))}</p><ul>"
    for parameter in operation.get("parameters", ()):
        needed = "" if parameter.get("required") else " (optional)"
        words = escape(parameter.get("description", ""))
        yield f"<li><code>{escape(parameter['name'])}</code> in {parameter['in']}{needed} {words}</li>"
    if "requestBody" in operation:
        kinds = ", ".join(operation["requestBody"]["content"])
        names = ", ".join(_names(operation["requestBody"]["content"]))
        yield f"<li>body: {escape(kinds)} <code>{escape(names)}</code></li>"
    yield f'</ul><p class="quiet">responses: {escape(", ".join(operation["responses"]))}</p></section>'


def _names(content: dict[str, Any]) -> Iterator[str]:
    for media in content.values():
        reference = media.get("schema", {}).get("$ref", "")
        if reference:
            yield reference.rpartition("/")[2]
