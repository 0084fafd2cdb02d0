"""The page of a change request's report, with downloads."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import ConflictError, NotFoundError, PlatformError
from scorer.release.readout import Figure, Readout
from scorer.web.downloads import csv_text
from scorer.web.pages.visit import Here, Visit
from scorer.web.rendering import island, iso

router = APIRouter()
CHART_ROWS = 200


@router.get("/changes/{change}/readout")
def page(here: Here, change: str) -> Response:
    """Show the report, optionally for a time span or one server."""
    detail = here.service.changes.get(here.actor, change)
    found: Readout | None = None
    problem: PlatformError | None = None
    try:
        found = _readout(here, change)
    except (NotFoundError, ConflictError) as error:
        problem = error
    return here.page(
        "readout.html",
        change=detail.change,
        readout=found,
        problem=problem,
        blocking=[gate for gate in found.gates if gate.blocks] if found else [],
        members=here.service.checkpoints.servers(),
        most=CHART_ROWS,
        changed=_changed(found),
    )


def _changed(readout: Readout | None) -> int:
    """Return the number of decisions that differ from the live bundle's."""
    figures = readout.figures if readout else ()
    return sum(row[2] for one in figures if one.name == "flips" for row in one.rows if row[0] != row[1])


def _readout(here: Visit, change: str) -> Readout:
    return here.service.readouts.readout(
        here.actor,
        change,
        start=here.ask_moment("start"),
        end=here.ask_moment("end"),
        server=here.ask("server") or None,
    )


@router.get("/changes/{change}/readout/figures/{name}.{form}")
def download(here: Here, change: str, name: str, form: str) -> Response:
    """Return the numbers of a figure as CSV or JSON."""
    narrowed = any(here.ask(one) for one in ("start", "end", "server"))
    if narrowed:
        named = {one.name: one for one in _readout(here, change).figures}
        figure = named.get(name)
        if figure is None:
            raise NotFoundError(f'the report has no figure "{name}"; it has {", ".join(named)}')
    else:
        figure = here.service.readouts.figure(here.actor, change, name)
    return figure_file(figure, f"{change}-{figure.name}", form)


def figure_file(figure: Figure, stem: str, form: str) -> Response:
    """Return the numbers of a figure as a file, `csv` or `json`."""
    if form == "csv":
        return attachment(csv_text(figure.columns, figure.rows), f"{stem}.csv", "text/csv; charset=utf-8")
    if form == "json":
        content = str(
            island(
                {
                    "name": figure.name,
                    "title": figure.title,
                    "words": figure.words,
                    "columns": figure.columns,
                    "rows": figure.rows,
                    "plotly": figure.plotly,
                }
            )
        )
        return attachment(content, f"{stem}.json", "application/json")
    raise NotFoundError(f'a figure can be downloaded as .csv or .json, not as ".{form}"')


@router.get("/changes/{change}/readout/readout.json")
def whole(here: Here, change: str) -> Response:
    """Return the whole report as JSON."""
    one = _readout(here, change)
    content = {
        "change": one.change,
        "checkpoint": one.checkpoint,
        "bundle": one.bundle,
        "live_bundle": one.live_bundle,
        "start": iso(one.start),
        "end": iso(one.end),
        "rows": one.rows,
        "is_final": one.is_final,
        "verdict": one.verdict,
        "gates": one.gates,
        "summary": one.summary,
        "figures": one.figures,
        "examples": one.examples,
        "segments": one.segments,
        "canary": one.canary,
    }
    return attachment(str(island(content)), f"{change}-report.json", "application/json")


def attachment(content: str, name: str, media: str) -> Response:
    """Return content as a file to download."""
    safe = "".join(letter if letter.isalnum() or letter in ".-_" else "-" for letter in name)
    return Response(
        content, media_type=media, headers={"Content-Disposition": f'attachment; filename="{safe}"'}
    )
