"""A page that needs nothing else: its own style, plots inside it, every text escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence
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
code { background: #f3f4f6; padding: .1rem .3rem; border-radius: .25rem; overflow-wrap: anywhere; }
@media print { body { max-width: none; } .verdict { break-inside: avoid; } }
"""

GOOD, PART, STOP = "good", "part", "stop"


@dataclass(frozen=True)
class Mark:
    """A cell that stands out: its text, and `GOOD`, `PART` or `STOP`."""

    text: str
    tone: str

    def __str__(self) -> str:
        return self.text


class Page:
    """Collects sections. Text is escaped; SVG, which is ours, is taken as it is."""

    def __init__(self, title: str, lead: str) -> None:
        self._title = title
        self._parts = [f"<h1>{_text(title)}</h1>", f'<p class="lead">{_text(lead)}</p>']

    def verdict(self, sentence: str, reasons: Sequence[str], tone: str) -> None:
        """What was decided, before anything else."""
        items = "".join(f"<li>{_text(reason)}</li>" for reason in reasons)
        self._parts.append(f'<div class="verdict {tone}"><b>{_text(sentence)}</b><ul>{items}</ul></div>')

    def tiles(self, entries: Sequence[tuple[str, str]]) -> None:
        """The figures that matter most: (value, what it is)."""
        cells = "".join(
            f'<div class="tile"><b>{_text(value)}</b><span>{_text(what)}</span></div>'
            for value, what in entries
        )
        self._parts.append(f'<div class="tiles">{cells}</div>')

    def section(self, title: str, note: str = "") -> None:
        """A heading, with what one should know to read what follows."""
        self._parts.append(f"<h2>{_text(title)}</h2>")
        if note:
            self.note(note)

    def note(self, text: str) -> None:
        """A sentence in small print."""
        self._parts.append(f'<p class="note">{_text(text)}</p>')

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, texts: Sequence[int] = (0,)
    ) -> None:
        """A table that scrolls where it is wider than the page; columns at `texts` are words."""
        if not rows:
            self._parts.append('<p class="note">none</p>')
            return
        head = "".join(
            f'<th class="text">{_text(name)}</th>' if at in texts else f"<th>{_text(name)}</th>"
            for at, name in enumerate(columns)
        )
        body = "".join(
            "<tr>" + "".join(_cell(cell, at in texts) for at, cell in enumerate(row)) + "</tr>"
            for row in rows
        )
        self._parts.append(
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
        )

    def plots(self, figures: Sequence[tuple[str, str]]) -> None:
        """Plots side by side where there is room: (SVG, caption)."""
        cells = "".join(
            f"<figure>{svg}<figcaption>{_text(caption)}</figcaption></figure>" for svg, caption in figures
        )
        self._parts.append(f'<div class="plots">{cells}</div>')

    def text(self) -> str:
        """The whole page."""
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{_text(self._title)}</title><style>{_STYLE}</style></head>\n<body>\n"
            + "\n".join(self._parts)
            + "\n</body></html>\n"
        )


def _cell(cell: Any, words: bool) -> str:
    inside = _text(cell)
    if isinstance(cell, Mark):
        inside = f'<span class="mark {cell.tone}">{inside}</span>'
    if not words:
        return f"<td>{inside}</td>"
    return f'<td class="text{" long" if len(str(cell)) > 40 else ""}">{inside}</td>'


def _text(value: Any) -> str:
    return html.escape(str(value))
