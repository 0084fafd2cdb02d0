"""The page of a checkpoint's metrics over time, with downloads."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.answers import CheckpointMetrics
from scorer.release.errors import InvalidError, UnreachableError
from scorer.web.pages.readout import CHART_ROWS, attachment, figure_file
from scorer.web.pages.visit import Here, Visit
from scorer.web.rendering import island, iso

router = APIRouter()
WINDOWS: Final = (
    ("1h", "1 h"),
    ("6h", "6 h"),
    ("24h", "24 h"),
    ("7d", "7 d"),
    ("30d", "30 d"),
    ("6mo", "6 months"),
)


@router.get("/checkpoints/{name}/metrics")
def page(here: Here, name: str) -> Response:
    """Show the figures in a window, optionally of one server, lane or version."""
    metrics: CheckpointMetrics | None = None
    problem: InvalidError | UnreachableError | None = None
    # This call rejects an unknown checkpoint, or one of another project, before the window is parsed.
    choices = here.service.metrics.choices(here.actor, name)
    try:
        metrics = _metrics(here, name)
    except (InvalidError, UnreachableError) as error:
        problem = error
    return here.page(
        "metrics.html",
        error=problem,
        name=name,
        metrics=metrics,
        choices=choices,
        windows=WINDOWS,
        names={one.digest: one.name for one in here.service.bundles.list(here.actor)},
        sla_us=here.settings.checkpoints[name].p99_ms * 1_000,
        most=CHART_ROWS,
    )


@router.get("/checkpoints/{name}/metrics/figures/{figure}.{form}")
def download(here: Here, name: str, figure: str, form: str) -> Response:
    """Return the numbers of a figure as CSV or JSON."""
    found = here.service.metrics.named(_metrics(here, name), figure)
    return figure_file(found, f"{name}-{found.name}", form)


@router.get("/checkpoints/{name}/metrics/metrics.json")
def whole(here: Here, name: str) -> Response:
    """Return all figures as JSON."""
    found = _metrics(here, name)
    content = asdict(found) | {"start": iso(found.start), "end": iso(found.end), "since": iso(found.since)}
    content["marks"] = [{**asdict(mark), "at": iso(mark.at)} for mark in found.marks]
    return attachment(str(island(content)), f"{name}-metrics.json", "application/json")


def _metrics(here: Visit, name: str) -> CheckpointMetrics:
    return here.service.metrics.metrics(
        here.actor,
        name,
        window=here.ask("window") or None,
        start=here.ask_moment("start"),
        end=here.ask_moment("end"),
        server=here.ask("server"),
        lane=here.ask("lane"),
        version=here.ask("version"),
    )
