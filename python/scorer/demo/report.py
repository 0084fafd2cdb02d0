"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scorer.demo.errors import DemoError

_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #111827; }
h1 { font-size: 1.6rem; margin-bottom: 0; }
h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #e5e7eb; padding-bottom: .2rem; }
p.lead, p.note, figcaption { color: #4b5563; }
p.note, figcaption { font-size: .88rem; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; border-bottom: 1px solid #f3f4f6; }
th:first-child, td:first-child { text-align: left; }
th { font-weight: 600; color: #374151; }
figure { margin: 1rem 0; } svg { max-width: 100%; height: auto; }
.tiles { display: flex; flex-wrap: wrap; gap: .8rem; margin: 1.2rem 0; }
.tile { border: 1px solid #e5e7eb; border-radius: .5rem; padding: .6rem .9rem; min-width: 9rem; }
.tile b { display: block; font-size: 1.25rem; } .tile span { color: #4b5563; font-size: .85rem; }
code { background: #f3f4f6; padding: .1rem .3rem; border-radius: .25rem; }
"""


class Page:
    """Collects sections, then writes them. Text is escaped; SVG is taken as it is."""

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._parts = [f"<h1>{_text(title)}</h1>", f'<p class="lead">{_text(lead)}</p>']

    def tiles(self, entries: Sequence[tuple[str, str]]) -> None:
        """The figures that matter most: (value, what it is)."""
        cells = "".join(
            f'<div class="tile"><b>{_text(value)}</b><span>{_text(what)}</span></div>'
            for value, what in entries
        )
        self._parts.append(f'<div class="tiles">{cells}</div>')

    def section(self, title: str) -> None:
        """A heading."""
        self._parts.append(f"<h2>{_text(title)}</h2>")

    def note(self, text: str) -> None:
        """A sentence in small print."""
        self._parts.append(f'<p class="note">{_text(text)}</p>')

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """A table; the first column is text."""
        head = "".join(f"<th>{_text(column)}</th>" for column in columns)
        body = "".join("<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
        self._parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")

    def figure(self, svg: str, caption: str) -> None:
        """A plot."""
        self._parts.append(f"<figure>{svg}<figcaption>{_text(caption)}</figcaption></figure>")

    def write(self, path: Path) -> None:
        """Writes the page.

        Raises:
            DemoError: the file cannot be written.
        """
        page = (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_text(self._title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )
        try:
            path.write_text(page, encoding="utf-8")
        except OSError as error:
            raise DemoError(f"{path}: cannot be written ({error.strerror or error})") from error


def _text(value: Any) -> str:
    return html.escape(str(value))
