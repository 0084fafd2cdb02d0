"""Tests of the benchmark's table and plots, which are made from recorded lines only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from loadtests import provenance, reasons, report
from loadtests.figures import Figures, Run, publishable, read
from loadtests.learning.options import parts
from loadtests.options import groups
from loadtests.plots import draw

MACHINE: dict[str, Any] = {
    "cpu": "one",
    "cores": 2,
    "isa": "avx2",
    "caches": {"L1": 32768, "L2": 1 << 20},
    "kernel": "6.1",
    "python": "3.11.7",
    "version": "0.1.0",
    "build_profile": "release",
    "commit": "0123456789abcdef",
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    figures = Figures(tmp_path, group="engine", machine=MACHINE)
    figures.add(name="row", ours=2, unit="µs", peer="A", theirs=30, target=12, command="make bench")
    figures.add(name="row", ours=2, unit="µs", peer="B", theirs=3, target=2, command="make bench", note="x|y")
    figures.add(name="load", ours=1234.5, unit="ms", target=150, command="scorer load")
    figures.add(name="unjudged", ours=5, unit="µs", peer="C", theirs=4, command="make bench")
    for trees, size in ((100, 20_000), (1000, 200_000), (5000, 2_000_000)):
        figures.add(name="memory", ours=size, unit="bytes", command="make bench", plot="trees", x=trees)
        for peer in "AB":
            figures.add(
                name="row", ours=trees / 200, unit="µs", peer=peer, theirs=trees / 9,
                command="make bench", plot="trees", x=trees,
            )  # fmt: skip
    return read(figures.path)


@pytest.fixture(autouse=True)
def _current(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the lines of these tests, which name no real commit, as current.

    Lines of the published file are checked.
    """
    if request.function is test_the_pages_match_the_figures:
        return
    monkeypatch.setattr(provenance, "is_current", lambda commit, group: commit != "old")


def test_the_page_shows_every_figure_with_its_result(run: Run) -> None:
    page = report.page_of_all(run)
    assert "| row | 2 µs | A | 30 µs | 15× |  | ≥ 12× | met |" in page
    assert "| row (x\\|y) | 2 µs | B | 3 µs | 1.5× |  | ≥ 2× | missed |" in page
    assert "| load | 1,234 ms |  |  |  |  | ≤ 150 ms | missed |" in page
    assert "| unjudged | 5 µs | C | 4 µs | 0.8× |  |  | worse |" in page
    assert "by `make bench`, `scorer load`, on one (avx2)" in page
    assert "1 of 3 targets met, 2 missed, 0 not settled." in page
    assert "2 cores of one (avx2; L1 32 KiB, L2 1,024 KiB)" in page
    assert "| memory" not in page, "points of a plot must not be in the tables"


def test_a_figure_whose_rounds_disagree_is_not_ticked(tmp_path: Path) -> None:
    figures = Figures(tmp_path, group="engine", machine=MACHINE)
    figures.add(name="p99", ours=[1, 9, 2], unit="ms", target=5, command="make bench")
    page = report.page_of_all(read(figures.path))
    assert "| p99 | 2 ms |  |  |  | 1 to 9 | ≤ 5 ms | not settled |" in page
    assert "0 of 1 targets met, 0 missed, 1 not settled." in page


def test_a_figure_older_than_its_code_is_stale(tmp_path: Path) -> None:
    figures = Figures(tmp_path, group="engine", machine=MACHINE | {"commit": "old"})
    figures.add(
        name="500×6, 1 row, Python",
        ours=1,
        unit="µs",
        peer="ONNX Runtime",
        theirs=9,
        target=2,
        command="make bench",
    )
    run = read(figures.path)
    page = report.page_of_all(run)
    assert "| ≥ 2× | stale |" in page
    assert "**Stale**" in page
    assert "targets met" not in page
    assert "| 9× | stale |" in report.table_of_ten(run)


def test_the_table_of_ten_names_what_is_not_measured(run: Run) -> None:
    table = report.table_of_ten(run)
    assert table.count("not measured") == len(report.TEN) == 10


def test_the_text_table_is_aligned(run: Run) -> None:
    head, *body = report.table_text(run).splitlines()
    assert len(body) == 4
    assert {line.index("×") for line in body[:2]} == {head.index("ratio") + 4}


def test_the_table_is_written_between_its_markers() -> None:
    begin, end = "<!-- learning: begin (make figures writes these lines) -->", "<!-- learning: end -->"
    page = f"above\n{begin}\nold\n{end}\nbelow\n"
    once = report.with_table(page, "new", "learning")
    assert once == f"above\n{begin}\n\nnew\n\n{end}\nbelow\n"
    assert report.with_table(once, "new", "learning") == once
    with pytest.raises(ValueError, match="needs the lines"):
        report.with_table("no place", "new")


def test_the_pages_match_the_figures() -> None:
    """After a change of what a group measures, `make figures` marks its lines as stale."""
    if not provenance.has_history():
        pytest.skip("needs the repository's whole history: `git fetch --unshallow`")
    run = publishable(read(report.LINES))
    assert report.PAGE.read_text() == report.page_of_all(run), "run `make figures`"
    page = report.README.read_text()
    assert report.with_table(page, report.table_of_ten(run)) == page, "run `make figures`"


def test_every_group_names_what_it_measures() -> None:
    for group in [*groups(), *(f"learning.{part}" for part in parts())]:
        assert provenance.existing(provenance.sources(group)), group


def test_plots_are_drawn_from_the_lines(run: Run, tmp_path: Path) -> None:
    drawn = list(draw(run, report.with_ratio(run), tmp_path / "plots"))
    assert [path.name for path in drawn] == ["ratios.png", "trees.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)


def test_each_missed_target_is_listed_with_its_reason(tmp_path: Path) -> None:
    figures = Figures(tmp_path, group="engine", machine=MACHINE)
    for name, peer, theirs in (
        ("slow", "A", 1.0),
        ("slow", "B", 1.2),
        ("other", "A", 1.0),
        ("good", "A", 9.0),
    ):
        figures.add(name=name, ours=[2.0] * 3, unit="µs", peer=peer, theirs=[theirs] * 3, command="c")
    lines = read(figures.path).figures
    text = reasons.section(lines, [reasons.Reason(r"slow \| .*", "The work is doubled.")])
    known, unknown = text.split(reasons.NONE)
    assert known.index("The work is doubled.") < known.index("slow beside A") < known.index("slow beside B")
    assert "other beside A" in unknown
    assert "good" not in text


def test_every_reason_is_valid() -> None:
    for reason in reasons.load():
        re.compile(reason.figures)
        assert reason.why.strip().endswith("."), reason.figures


def test_a_pair_without_a_ratio_is_not_reported_as_unmeasured(tmp_path: Path) -> None:
    figures = Figures(tmp_path, group="wire", machine=MACHINE)
    name = "highest rate with p99 ≤ 10 ms, ModelInfer, 500×6; no ratio to MLServer"
    figures.add(name=name, ours=[9000.0] * 3, unit="req/s", command="c", note="MLServer by round: 0, 300, 0")
    (line,) = (line for line in report.table_of_ten(read(figures.path)).splitlines() if "ModelInfer" in line)
    assert line.split(" | ")[1:] == ["9,000 req/s", "MLServer", "no rate in every round", "none", " |"]
