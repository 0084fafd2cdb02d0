"""A read-out as one HTML file: everything in it, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from typing import Any

from pydantic import TypeAdapter

from scorer.sdk.results import Figure, Readout

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: #1c2330; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; margin: .5rem 0; } td, th { padding: .25rem .7rem; text-align: left;
  border-bottom: 1px solid #e3e7ee; vertical-align: top; } th { color: #5b6577; font-weight: 600; }
.pass { color: #1b7f4d; font-weight: 600; } .fail { color: #b3261e; font-weight: 600; }
.inconclusive { color: #8a6100; font-weight: 600; } .figure { min-height: 340px; } code { font-size: 13px; }
details { margin: .3rem 0 1rem; overflow-x: auto; } p { margin: .2rem 0; }
"""
_SCRIPT = """
for (const node of document.querySelectorAll(".figure")) {
  const figure = JSON.parse(document.getElementById(node.dataset.from).textContent);
  Plotly.newPlot(node, figure.data, figure.layout, {responsive: true, displaylogo: false});
}
"""


def render(readout: Readout) -> str:
    """The page's text."""
    return "".join(_lines(readout))


def _lines(readout: Readout) -> Iterator[str]:
    from plotly.offline import get_plotlyjs

    verdict = str(readout.verdict or "no verdict yet")
    title = f"{readout.change}: read-out of {readout.checkpoint}"
    yield f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
    state = "final" if readout.is_final else "so far"
    yield f'<p><span class="{escape(verdict)}">{escape(verdict)}</span> ({state}), {readout.rows:,} rows, '
    yield f"{readout.start:%Y-%m-%d %H:%M} to {readout.end:%Y-%m-%d %H:%M} UTC</p>"
    shadow, live = escape(readout.bundle), escape(readout.live_bundle)
    yield f"<p>shadow <code>{shadow}</code><br>live <code>{live}</code></p>"
    yield "<h2>Gates</h2>"
    gates = [
        (
            gate.metric,
            _Outcome(str(gate.outcome)),
            gate.success,
            gate.value,
            gate.rows,
            gate.words + (f" Waived by {gate.waived_by}: {gate.waived_why}" if gate.waived_by else ""),
        )
        for gate in readout.gates
    ]
    yield from _table(("gate", "outcome", "wanted", "value", "rows", "in words"), gates)
    yield "<h2>Summary</h2>"
    yield from _table(("", ""), list(readout.summary.items()))
    for figure in readout.figures:
        yield from _figure(figure)
    if readout.examples:
        yield "<h2>Decisions that flipped</h2>"
        columns = tuple(dict.fromkeys(key for example in readout.examples for key in example))
        yield from _table(columns, [[example.get(key) for key in columns] for example in readout.examples])
    yield f"<script>{get_plotlyjs()}</script><script>{_SCRIPT}</script></body></html>"


def _figure(figure: Figure) -> Iterator[str]:
    name = escape(figure.name)
    yield f'<h2 id="{name}">{escape(figure.title)}</h2><p>{escape(figure.words)}</p>'
    # Inside a script element only this sequence could end it.
    data = TypeAdapter(Any).dump_json(dict(figure.plotly)).decode().replace("</", "<\\/")
    yield f'<script type="application/json" id="data-{name}">{data}</script>'
    yield f'<div class="figure" data-from="data-{name}"></div><details><summary>numbers</summary>'
    yield from _table(figure.columns, figure.rows)
    yield "</details>"


class _Outcome(str):
    __slots__ = ()


def _table(columns: Any, rows: Any) -> Iterator[str]:
    yield "<table><tr>" + "".join(f"<th>{escape(str(column))}</th>" for column in columns) + "</tr>"
    for row in rows:
        yield "<tr>" + "".join(_cell(value) for value in row) + "</tr>"
    yield "</table>"


def _cell(value: Any) -> str:
    if isinstance(value, _Outcome):
        return f'<td class="{escape(value)}">{escape(value)}</td>'
    if isinstance(value, float):
        return f"<td>{value:.6g}</td>"
    if isinstance(value, dict | list):
        return f"<td><code>{escape(json.dumps(value, default=str))}</code></td>"
    return f"<td>{escape('' if value is None else str(value))}</td>"
