"""The table and the plots, made from lines alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from loadtests import report
from loadtests.figures import Figures, Run, read
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
    for trees, size in ((100, 20_000), (1000, 200_000), (5000, 2_000_000)):
        figures.add(name="memory", ours=size, unit="bytes", command="make bench", plot="trees", x=trees)
        for peer in "AB":
            figures.add(
                name="row", ours=trees / 200, unit="µs", peer=peer, theirs=trees / 9,
                command="make bench", plot="trees", x=trees,
            )  # fmt: skip
    return read(figures.path)


def test_markdown_shows_misses_as_misses(run: Run) -> None:
    table = report.table_markdown(run)
    assert "| row | 2 µs | A | 30 µs | 15× | ≥ 12× | ✓ |" in table
    missed = f"**missed** [¹]({report.MISSES})"
    assert f"| row (x\\|y) | 2 µs | B | 3 µs | 1.5× | ≥ 2× | {missed} |" in table
    assert f"| load | 1,234 ms |  |  |  | ≤ 150 ms | {missed} |" in table
    assert "by `make bench`, `scorer load`" in table
    assert "1 of 3 targets met." in table
    assert "2 cores of one (avx2; L1 32 KiB, L2 1,024 KiB)" in table
    assert "memory" not in table, "points of a plot are not in the table"


def test_text_keeps_columns_in_line(run: Run) -> None:
    head, *body = report.table_text(run).splitlines()
    assert len(body) == 3
    assert {line.index("×") for line in body[:2]} == {head.index("ratio") + 4}


def test_the_table_goes_between_its_markers() -> None:
    begin, end = "<!-- learning: begin (make figures writes these lines) -->", "<!-- learning: end -->"
    page = f"above\n{begin}\nold\n{end}\nbelow\n"
    once = report.with_table(page, "new", "learning")
    assert once == f"above\n{begin}\n\nnew\n\n{end}\nbelow\n"
    assert report.with_table(once, "new", "learning") == once
    with pytest.raises(ValueError, match="needs the lines"):
        report.with_table("no place", "new")


def test_a_table_of_judged_figures_leaves_the_others_out(tmp_path: Path) -> None:
    figures = Figures(tmp_path, group="engine", machine=MACHINE)
    figures.add(name="promised", ours=1, unit="ms", target=0.5, command="make bench")
    figures.add(name="told", ours=1, unit="ms", command="make bench")
    table = report.table_markdown(read(figures.path), judged_only=True, root="../../")
    assert "promised" in table
    assert "told" not in table
    assert f"(../../{report.MISSES})" in table


def test_learning_stands_apart(tmp_path: Path) -> None:
    figures = Figures(tmp_path, group="engine", machine=MACHINE)
    figures.add(name="one row", ours=1, unit="ms", target=0.5, command="make bench")
    figures.group = "learning.shock"
    figures.add(name="hours", ours=1, unit="h", target=2, command="make bench-learning")
    run = read(figures.path)
    assert "one row" in report.section(run)
    assert "hours" not in report.section(run)
    assert "hours" in report.section(run, "learning")
    assert "one row" not in report.section(run, "learning")


def test_the_pages_hold_what_their_lines_say() -> None:
    run = read(report.KEPT / "figures.jsonl")
    page = report.README.read_text()
    for place in report.PLACES:
        assert report.with_table(page, report.section(run, place), place) == page, "run `make figures`"
    assert (report.KEPT / "README.md").read_text() == report.page_of_all(run), "run `make figures`"


def test_plots_are_drawn_from_the_lines(run: Run, tmp_path: Path) -> None:
    drawn = list(draw(run, tmp_path / "plots"))
    assert [path.name for path in drawn] == ["ratios.png", "trees.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in drawn)
