"""Every chart of a report has a picture in the documentation, and every picture is shown and small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scorer.release.gates.evidence import ShadowEvidence, empty
from scorer.release.readout.build import figure_names

DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURES = DOCS / "screenshots"
MOST_BYTES = 150_000


def shown() -> set[str]:
    """Return the pictures that the pages of docs/platform show."""
    pages = [page.read_text() for page in (DOCS / "platform").glob("*.md")]
    return {picture for page in pages for picture in re.findall(r"!\[.+?\]\(\.\./screenshots/(.+?)\)", page)}


def charts(kind: str) -> list[str]:
    return figure_names(ShadowEvidence(kind=kind, sla_us=1, shadow=empty(), control=empty()))


def test_every_picture_is_shown_and_small() -> None:
    files = {str(path.relative_to(PICTURES)): path.stat().st_size for path in PICTURES.rglob("*.png")}
    assert files.keys() == shown()
    assert {name: size for name, size in files.items() if size > MOST_BYTES} == {}


@pytest.mark.parametrize(
    "chart",
    [
        *[f"report-{name}" for name in charts("score")],
        *[f"actions-{name}" for name in charts("action") if name not in charts("score")],
    ],
)
def test_every_chart_of_a_report_has_a_picture(chart: str) -> None:
    assert f"charts/{chart}.png" in shown()


def test_every_chart_over_time_has_a_picture() -> None:
    table = (DOCS / "platform" / "metrics.md").read_text().partition("| figure |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    named = [name for cell in cells for name in re.findall(r"`([a-z-]+)`", cell)]
    assert len(named) >= 7
    assert {f"charts/metrics-{name}.png" for name in named} <= shown()
