"""The page that compares two bundles or change requests."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from fastapi.responses import Response

from scorer.release.errors import PlatformError
from scorer.release.version_answers import BundleComparison
from scorer.release.versions.differences import GROUPS
from scorer.web.downloads import csv_text
from scorer.web.pages.readout import attachment
from scorer.web.pages.visit import Here, Visit, one_of

router = APIRouter()
_CHOICES = 200
TITLES = {
    "metrics": "Training metrics",
    "parameters": "Parameters and data",
    "schema": "Schema",
    "thresholds": "Thresholds",
    "calibration": "Calibration",
    "program": "Program",
    "policy": "Policy and actions",
    "rules": "Rules",
    "size": "Size",
}


@router.get("/compare")
def compare(here: Here) -> Response:
    """Show two bundles or change requests side by side, or the form that chooses them."""
    left, right = here.ask("left") or here.ask("left_other"), here.ask("right") or here.ask("right_other")
    found: BundleComparison | None = None
    error: PlatformError | None = None
    if left or right:
        try:
            found = here.service.comparisons.compare(here.actor, left, right)
        except PlatformError as problem:
            error = problem
    groups = []
    if found is not None:
        for group in GROUPS:
            rows = [one for one in found.differences if one.group == group]
            if rows:
                groups.append((TITLES[group], rows))
    return here.page(
        "compare.html",
        error=error,
        found=found,
        groups=groups,
        checkpoints=_checkpoints(found),
        left=left,
        right=right,
        choices=_choices(here),
    )


def _checkpoints(found: BundleComparison | None) -> Sequence[str]:
    """Return the checkpoints of the compared change requests."""
    sides = (found.left, found.right) if found else ()
    return sorted({one.change.checkpoint for one in sides if one.change})


def _choices(here: Visit) -> Sequence[tuple[str, Sequence[tuple[str, str]]]]:
    """Return the newest change requests and bundles to choose from, by kind."""
    changes = here.service.changes.list(here.actor, limit=_CHOICES)
    bundles = here.service.bundles.list(here.actor, limit=_CHOICES)
    live = here.service.versions.lanes(here.actor)
    # Bundles in lanes come first, including those without a project. Bundles of other projects are omitted.
    listed = {**here.service.bundles.several(here.actor, live.keys()), **{one.digest: one for one in bundles}}
    named = {}
    for digest, one in listed.items():
        text = f"{one.name} {digest[7:19]}"
        named[digest] = f"{text} ({', '.join(live[digest])})" if digest in live else text
    return (
        ("Bundles", list(named.items())),
        ("Change requests", [(one.id, f"{one.id} {one.title[:60]}") for one in changes]),
    )


@router.get("/compare/figures/{name}.csv")
def download(here: Here, name: str) -> Response:
    """Return the numbers of a figure of a comparison as CSV."""
    found = here.service.comparisons.compare(here.actor, here.ask("left"), here.ask("right"))
    figure = one_of("figure", name, {one.name: one for one in found.figures})
    return attachment(
        csv_text(figure.columns, figure.rows), f"compare-{figure.name}.csv", "text/csv; charset=utf-8"
    )
