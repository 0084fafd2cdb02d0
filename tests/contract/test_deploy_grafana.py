"""Tests of the dashboards: generated from their source, importable, and about documented metrics."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
LABELS = {"instance", "job", "le"}
"""Labels that Prometheus or the form of a histogram adds."""


def panels(path: Path) -> list[dict[str, Any]]:
    return [one for one in json.loads(path.read_text())["panels"] if one["type"] != "row"]


def test_the_files_are_what_the_script_generates() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/gen_dashboards.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len({json.loads(path.read_text())["uid"] for path in DASHBOARDS}) == len(DASHBOARDS) == 2


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_ids_of_their_own_and_do_not_overlap(path: Path) -> None:
    every = json.loads(path.read_text())["panels"]
    assert len({one["id"] for one in every}) == len(every)
    cells = [
        (x, y)
        for place in (one["gridPos"] for one in every)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells) and max(x for x, _ in cells) < 24
    for one in panels(path):
        assert one["title"] and one["description"] and one["targets"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_metric_is_documented_with_the_labels_that_are_used(path: Path) -> None:
    documented = {
        row.split("|")[1].strip(" `"): (row.split("|")[2].strip(), row.split("|")[3])
        for row in (ROOT / "docs/metrics.md").read_text().splitlines()
        if row.startswith("| `scorer_")
    }
    for one in panels(path):
        for target in one["targets"]:
            expr = target["expr"]
            named = re.findall(r"\b(scorer_[a-z0-9_]+)(?:\{([^}]*)\})?", expr)
            assert named, expr
            known = ""
            for name, selector in named:
                base = re.sub(r"_(total|bucket|count|sum)$", "", name)
                assert base in documented, f"{name} is not in docs/metrics.md"
                kind, labels = documented[base]
                assert (name == f"{base}_total") == (kind == "counter"), f"{name} is a {kind}"
                known += labels
                for label in re.findall(r"(\w+)[!=]", selector):
                    assert f"`{label}`" in labels, f"{name} has no label {label}"
            grouped = {label for by in re.findall(r"by \(([^)]*)\)", expr) for label in by.split(", ")}
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= grouped, f"{one['title']}: the legend names {shown - grouped}"
            for label in grouped - LABELS:
                assert f"`{label}`" in known, f"{expr}: no metric has the label {label}"
