"""Builds a report as one HTML page that loads nothing: style, plots and scripts are inside it.

The reports of learning and the reports that the SDK saves are such pages. All text is escaped. Plots are SVG,
or Plotly figures drawn by the script of the installed plotly package.
"""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; color: #111827; background: #fff; }
body { max-width: 76rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; border-bottom: 1px solid #d1d5db; padding-bottom: .25rem; }
p { max-width: 60rem; } p.lead, p.note, figcaption { color: #4b5563; margin-top: .2rem; }
p.note, figcaption { font-size: .88rem; }
.verdict { border-left: .5rem solid #6b7280; background: #f9fafb; padding: .9rem 1.1rem; margin: 1.2rem 0; }
.verdict.good { border-color: #15803d; background: #f0fdf4; }
.verdict.part { border-color: #b45309; background: #fffbeb; }
.verdict.stop { border-color: #b91c1c; background: #fef2f2; }
.verdict b { font-size: 1.15rem; } .verdict ul { margin: .5rem 0 0; padding-left: 1.2rem; }
.tiles { display: grid; gap: .7rem; margin: 1.2rem 0; }
.tiles { grid-template-columns: repeat(auto-fill, minmax(10.5rem, 1fr)); }
.tile { border: 1px solid #e5e7eb; border-radius: .4rem; padding: .55rem .8rem; }
.tile b { display: block; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
.tile span { color: #4b5563; font-size: .86rem; }
.scroll { overflow-x: auto; margin: .6rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { padding: .3rem 1.1rem .3rem 0; text-align: right; vertical-align: top; }
th, td { border-bottom: 1px solid #e5e7eb; }
th { font-weight: 600; color: #374151; white-space: nowrap; }
th.text, td.text { text-align: left; } td.text { min-width: 3.5rem; }
td.long { min-width: 11rem; overflow-wrap: anywhere; }
.mark { font-weight: 600; white-space: nowrap; }
.mark.good { color: #15803d; } .mark.stop { color: #b91c1c; } .mark.part { color: #92400e; }
.plots { display: grid; gap: 1.2rem 2rem; }
.plots { grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
figure { margin: .6rem 0; } figure svg { width: 100%; height: auto; max-width: 36rem; display: block; }
.plotly { min-height: 340px; } details { margin: .3rem 0 1rem; }
code { background: #f3f4f6; padding: .1rem .3rem; border-radius: .25rem; overflow-wrap: anywhere; }
@media print { body { max-width: none; } .verdict { break-inside: avoid; } }
"""

_SCRIPT = """
for (const node of document.querySelectorAll(".plotly")) {
  const figure = JSON.parse(document.getElementById(node.dataset.from).textContent);
  Plotly.newPlot(node, figure.data, figure.layout, {responsive: true, displaylogo: false});
}
"""

GOOD, PART, STOP = "good", "part", "stop"
"""Tones: met or promoted; partly or not known yet; not met or stopped."""


@dataclass(frozen=True)
class Mark:
    """A table cell with a tone.

    Attributes:
        text: The cell's text.
        tone: `GOOD`, `PART` or `STOP`.
    """

    text: str
    tone: str

    def __str__(self) -> str:
        return self.text


class ReportPage:
    """A page that is built from top to bottom; `text` returns it.

    Args:
        title: Heading, and the title of the browser's tab.
        lead: First sentence, below the heading.
    """

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._parts = [f"<h1>{_text(title)}</h1>", f'<p class="lead">{_text(lead)}</p>']
        self._is_plotly = False

    def verdict(self, sentence: str, reasons: Sequence[str], tone: str) -> None:
        """Add the verdict in a box: one sentence, a list of reasons, and a tone."""
        items = "".join(f"<li>{_text(reason)}</li>" for reason in reasons)
        self._parts.append(f'<div class="verdict {tone}"><b>{_text(sentence)}</b><ul>{items}</ul></div>')

    def tiles(self, entries: Sequence[tuple[str, str]]) -> None:
        """Add the most important figures as tiles: pairs of a value and what it is."""
        cells = "".join(
            f'<div class="tile"><b>{_text(value)}</b><span>{_text(what)}</span></div>'
            for value, what in entries
        )
        self._parts.append(f'<div class="tiles">{cells}</div>')

    def section(self, title: str, note: str = "") -> None:
        """Add a heading, and a note below it where one is given."""
        self._parts.append(f"<h2>{_text(title)}</h2>")
        if note:
            self.note(note)

    def note(self, text: str) -> None:
        """Add a paragraph in small print."""
        self._parts.append(f'<p class="note">{_text(text)}</p>')

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: Sequence[int] = (0,)
    ) -> None:
        """Add a table that scrolls sideways where it is wider than the page.

        Args:
            columns: Headings.
            rows: Cells as long as `columns`: text, numbers, `Mark`, or JSON values.
            texts: Positions of the columns that hold words; the others are aligned as numbers.
        """
        self._parts.append(_table(columns, rows, texts))

    def plots(self, figures: Sequence[tuple[str, str]]) -> None:
        """Add plots side by side where there is room: pairs of SVG, which is trusted, and a caption."""
        cells = "".join(
            f"<figure>{svg}<figcaption>{_text(caption)}</figcaption></figure>" for svg, caption in figures
        )
        self._parts.append(f'<div class="plots">{cells}</div>')

    def plotly(
        self,
        name: str,
        title: str,
        note: str,
        figure: Mapping[str, Any],
        columns: Sequence[str],
        rows: Sequence[Sequence[Any]],
    ) -> None:
        """Add an interactive figure under a heading of its own, with its numbers in a table that opens.

        Args:
            name: Unique on the page; the heading's anchor.
            title: Heading.
            note: What the figure shows, in words.
            figure: `data` and `layout` of Plotly, plain JSON.
            columns: Headings of the table of numbers.
            rows: Its cells.
        """
        self._is_plotly = True
        # Inside a script element only "</" could end it.
        data = json.dumps(figure, default=str).replace("</", "<\\/")
        name = _text(name)
        self._parts.append(
            f'<h2 id="{name}">{_text(title)}</h2><p>{_text(note)}</p>'
            f'<script type="application/json" id="data-{name}">{data}</script>'
            f'<div class="plotly" data-from="data-{name}"></div>'
            f"<details><summary>numbers</summary>{_table(columns, rows, range(len(columns)))}</details>"
        )

    def text(self) -> str:
        """Return the whole page as HTML."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_text(self._title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + (_plotly_scripts() if self._is_plotly else "")
            + "\n</body></html>\n"
        )


def _plotly_scripts() -> str:
    from plotly.offline import get_plotlyjs

    return f"<script>{get_plotlyjs()}</script><script>{_SCRIPT}</script>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], texts: Sequence[int]) -> str:
    if not rows:
        return '<p class="note">none</p>'
    head = "".join(
        f'<th class="text">{_text(name)}</th>' if at in texts else f"<th>{_text(name)}</th>"
        for at, name in enumerate(columns)
    )
    body = "".join(
        "<tr>" + "".join(_cell(cell, at in texts) for at, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Any, words: bool) -> str:
    inside = _text(cell)
    if isinstance(cell, Mark):
        inside = f'<span class="mark {cell.tone}">{inside}</span>'
    if not words:
        return f"<td>{inside}</td>"
    return f'<td class="text{" long" if len(str(cell)) > 40 else ""}">{inside}</td>'


def _text(value: Any) -> str:
    if isinstance(value, float):
        value = f"{value:.6g}"
    elif isinstance(value, dict | list):
        value = json.dumps(value, default=str)
    return html.escape("" if value is None else str(value))
