"""Lines of the benchmark: what they say of a figure, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from loadtests.figures import Figures, NotReleaseError, isa_level, lines, newest, read, write

MACHINE: dict[str, Any] = {
    "cpu": "one",
    "isa": "avx2",
    "build_profile": "release",
    "caches": {},
    "commit": "abc",
}


@pytest.fixture
def figures(tmp_path: Path) -> Figures:
    return Figures(tmp_path, group="engine", machine=MACHINE)


def test_a_line_holds_what_the_figure_is(figures: Figures) -> None:
    figures.add(name="one row", ours=2, unit="µs", peer="other", theirs=30, target=12, command="make bench")
    first, second = (json.loads(text) for text in figures.path.read_text().splitlines())
    assert first["machine"] == MACHINE
    assert second.pop("at")
    assert second == {
        "group": "engine",
        "name": "one row",
        "ours": 2,
        "unit": "µs",
        "peer": "other",
        "theirs": 30,
        "ratio": 15,
        "target": 12,
        "met": True,
        "command": "make bench",
        "higher_is_better": False,
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "target", "higher", "ratio", "met"),
    [
        (10, 25, 2.6, False, 2.5, False),
        (10, 25, 2.5, False, 2.5, True),
        (50, 20, 2.5, True, 2.5, True),
        (10, 20, 0.9, True, 0.5, False),
        (2.9, None, 3, False, None, True),
        (3.1, None, 3, False, None, False),
        (89, None, 90, True, None, False),
        (90, None, 90, True, None, True),
        (0, None, 0, False, None, True),
        (5, None, None, False, None, None),
    ],
)
def test_ratio_and_target(
    figures: Figures,
    ours: float,
    theirs: float | None,
    target: float | None,
    higher: bool,
    ratio: float | None,
    met: bool | None,
) -> None:
    figure = figures.add(
        name="it",
        ours=ours,
        unit="ms",
        peer=None if theirs is None else "other",
        theirs=theirs,
        target=target,
        higher_is_better=higher,
        command="make bench",
    )
    assert (figure.ratio, figure.met) == (ratio, met)


@pytest.mark.parametrize(
    "wrong",
    [
        {"ours": math.nan},
        {"ours": 1, "peer": "other"},
        {"ours": 1, "theirs": 2.0},
        {"ours": 0, "peer": "other", "theirs": 2.0},
        {"ours": 1, "plot": "trees"},
    ],
)
def test_what_is_no_figure_is_refused(figures: Figures, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it"):
        figures.add(name="it", unit="ms", command="make bench", **wrong)
    assert lines(figures.path)[1] == []


def test_a_debug_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReleaseError, match="debug"):
        Figures(tmp_path, machine=MACHINE | {"build_profile": "debug"})
    assert list(tmp_path.iterdir()) == []


def test_runs_are_merged_and_written_again(tmp_path: Path) -> None:
    one, two = (Figures(tmp_path / name, group="engine", machine=MACHINE) for name in "ab")
    for ours in (1, 2):
        one.add(name="first", ours=ours, unit="ms", command="make bench")
    one.add(name="second", ours=5, unit="ms", command="make bench")
    two.add(name="first", ours=3, unit="ms", command="make bench")
    merged = read(one.path, two.path)
    assert [(figure.name, figure.ours) for figure in merged.figures] == [("first", 3), ("second", 5)]
    write(merged, tmp_path / "kept.jsonl")
    assert read(tmp_path / "kept.jsonl") == merged
    assert newest(tmp_path / "b") == two.path


def test_each_group_keeps_the_commit_that_it_was_measured_at(tmp_path: Path) -> None:
    old = Figures(tmp_path / "old", group="wire", machine=MACHINE | {"commit": "old"})
    new = Figures(tmp_path / "new", group="engine", machine=MACHINE | {"commit": "new"})
    for figures in (old, new):
        figures.add(name="rate", ours=1, unit="1/s", command="make bench")
    merged = read(old.path, new.path)
    write(merged, tmp_path / "kept.jsonl")
    again = Figures(tmp_path / "again", group="engine", machine=MACHINE | {"commit": "newer"})
    again.add(name="rate", ours=2, unit="1/s", command="make bench")
    assert merged.commits == {"wire": "old", "engine": "new"}
    assert read(tmp_path / "kept.jsonl", again.path).commits == {"wire": "old", "engine": "newer"}


def test_runs_on_different_machines_are_not_merged(tmp_path: Path) -> None:
    paths = [Figures(tmp_path / cpu, machine=MACHINE | {"cpu": cpu}).path for cpu in ("one", "another")]
    with pytest.raises(ValueError, match="another"):
        read(*paths)


def test_a_group_goes_on_with_the_file_of_its_run(figures: Figures) -> None:
    Figures.reopen(figures.path, "wire").add(name="rate", ours=1, unit="1/s", command="make bench")
    assert [figure.group for figure in lines(figures.path)[1]] == ["wire"]
    with pytest.raises(FileNotFoundError):
        Figures.reopen(figures.path.with_name("other.jsonl"), "wire")


def test_levels_of_instructions() -> None:
    full = {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512vbmi"}
    assert isa_level("x86_64", full) == "avx512"
    assert isa_level("x86_64", full - {"avx512vbmi"}) == "avx2"
    assert isa_level("x86_64", {"sse2"}) == "portable"
    assert isa_level("aarch64", set()) == "neon"
