"""Tests of the benchmark's lines: the figure that each states, and lines that are rejected."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest

from loadtests import provenance
from loadtests.figures import (
    Figures,
    NotReleaseError,
    UnpublishableError,
    isa_level,
    lines,
    newest,
    processor_name,
    publishable,
    read,
    write,
)
from loadtests.rounds import beside_neighbours, interval, is_settled

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


def test_a_line_contains_all_fields_of_the_figure(figures: Figures) -> None:
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
        "commit": "abc",
        "cpu": "one",
        "isa": "avx2",
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
def test_a_figure_has_a_ratio_and_a_target(
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
def test_invalid_figures_are_refused(figures: Figures, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="it"):
        figures.add(name="it", unit="ms", command="make bench", **wrong)
    assert lines(figures.path)[1] == []


def test_a_debug_build_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotReleaseError, match="debug"):
        Figures(tmp_path, machine=MACHINE | {"build_profile": "debug"})
    assert list(tmp_path.iterdir()) == []


def test_a_later_run_replaces_the_groups_that_it_measured(tmp_path: Path) -> None:
    one, two = (
        Figures(tmp_path / name, group="engine", machine=MACHINE | {"commit": name, "cpu": f"cpu {name}"})
        for name in "ab"
    )
    for ours in (1, 2):
        one.add(name="first", ours=ours, unit="ms", command="make bench")
    one.add(name="gone since", ours=5, unit="ms", command="make bench")
    one.group = "wire"
    one.add(name="rate", ours=5, unit="1/s", command="make bench")
    two.add(name="first", ours=3, unit="ms", command="make bench")
    merged = read(one.path, two.path)
    published = [(figure.name, figure.ours, figure.commit, figure.cpu) for figure in merged.figures]
    assert published == [("first", 3, "b", "cpu b"), ("rate", 5, "a", "cpu a")]
    write(merged, tmp_path / "kept.jsonl")
    assert read(tmp_path / "kept.jsonl").figures == merged.figures
    assert newest(tmp_path / "b") == two.path


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([3], (3, 3)),
        ([1, 9, 5], (1, 9)),
        (range(6), (0, 5)),
        # P(fewer than 2 of 9 below the median) is 10/512 on each side; of 3 it is 46/512.
        (range(9), (1, 7)),
    ],
)
def test_the_interval_of_a_median_is_correct(values: list[float], expected: tuple[float, float]) -> None:
    assert interval(values) == expected


@pytest.mark.parametrize(
    ("values", "target", "settled"),
    [
        ([1.0, 1.1, 0.9], 1.5, True),
        ([1.0, 1.6, 0.9], 1.5, False),
        ([0.2, 1.73, 6.0], 1.1, False),
        ([1.0, 1.1], 9.0, False),
        ([100, 105, 95], None, True),
        ([100, 140, 95], None, False),
        ([10.04, 10.05, 10.03], 10.0, True),
    ],
)
def test_rounds_that_differ_by_more_than_the_margin_give_no_result(
    values: list[float], target: float | None, settled: bool
) -> None:
    assert is_settled(values, target) is settled


def test_a_round_is_compared_with_those_around_it() -> None:
    ours, theirs = beside_neighbours([10.0, 12.0, 14.0, 20.0, 16.0], [1, 3])
    assert (ours, theirs) == ([12.0, 20.0], [12.0, 15.0])


def test_rounds_are_compared_round_by_round(figures: Figures) -> None:
    result = figures.add(
        name="rate",
        ours=[100, 50, 120],
        theirs=[10, 5, 10],
        unit="1/s",
        peer="other",
        target=3,
        higher_is_better=True,
        command="make bench",
    )
    assert (result.ours, result.theirs, result.ratio) == (100, 10, 10)
    assert (result.low, result.high, result.rounds, result.settled, result.result) == (10, 12, 3, True, "met")
    unsettled = figures.add(name="p99", ours=[1, 9, 2], unit="ms", target=5, command="make bench")
    assert (unsettled.met, unsettled.settled, unsettled.result) == (True, False, "not settled")
    with pytest.raises(ValueError, match="2 and 3 rounds"):
        figures.add(name="p99", ours=[1, 2], theirs=[1, 2, 3], peer="o", unit="ms", command="make bench")


def test_lines_that_cannot_be_traced_are_not_published(tmp_path: Path) -> None:
    commit = provenance.head()
    if not commit:
        pytest.skip("needs a git repository")

    def line_of(name: str, **machine: Any) -> Path:
        figures = Figures(tmp_path / name, group="engine", machine=MACHINE | machine)
        figures.add(name="row", ours=1, unit="ms", command="make bench")
        return figures.path

    assert publishable(read(line_of("good", commit=commit))).figures
    for name, machine, words in (
        ("smoke", {"commit": commit, "unpublishable": "smoke"}, "marked smoke"),
        ("lost", {"commit": "4275d75467c7df99917e96b64901317d6e1056d5"}, "not in this repository"),
        ("none", {"commit": ""}, "not in this repository"),
    ):
        with pytest.raises(UnpublishableError, match=words):
            publishable(read(line_of(name, **machine)))
    assert "before its commit" in str(provenance.problem(commit, "2001-01-01T00:00:00+00:00"))


RUST = "fn walk() {\n    // A reason.\n    1;\n}\n"
PYTHON = '"""What is measured."""\n\n\ndef walk() -> int:\n    """Walk."""\n    return 1\n'


@pytest.mark.parametrize(
    ("rust", "python", "current"),
    [
        ("// What a tree costs.\nfn walk() {\n    // Another reason.\n    1;\n}\n", PYTHON, True),
        ("\n\nfn walk() {\n    1;\n}\n", PYTHON, True),
        ("fn walk() {\n    2;\n}\n", PYTHON, False),
        ("#[inline]\nfn walk() {\n    // A reason.\n    1;\n}\n", PYTHON, False),
        ("// Another text.\nfn walk() {\n    2; // A reason.\n}\n", PYTHON, False),
        ("fn walk() {\n}\n", PYTHON, False),
        (RUST, 'def walk() -> int:\n    """Return a number."""\n    return 1  # One.\n', True),
        (RUST, 'def walk() -> int:\n    """Walk."""\n    return 2\n', False),
        (RUST, None, False),
    ],
    ids=[
        "comments",
        "empty lines",
        "code",
        "attribute",
        "both",
        "less code",
        "docstrings",
        "python",
        "file removed",
    ],
)
def test_comments_do_not_make_a_figure_stale(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, rust: str, python: str | None, current: bool
) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    walk, bench = tmp_path / "rust/core/src/walk.rs", tmp_path / "loadtests/engine/bench.py"
    for file, text in ((walk, RUST), (bench, PYTHON)):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    commit = git("rev-parse", "HEAD")
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    provenance.is_current.cache_clear()
    try:
        assert provenance.is_current(commit, "engine")
        walk.write_text(rust)
        bench.unlink() if python is None else bench.write_text(python)
        provenance.is_current.cache_clear()
        assert provenance.is_current(commit, "engine") is current
    finally:
        provenance.is_current.cache_clear()


def test_a_run_refuses_a_dirty_tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "changed_files", lambda: ["rust/core/src/lib.rs"])
    with pytest.raises(provenance.DirtyTreeError, match=r"rust/core/src/lib\.rs.*--allow-dirty"):
        provenance.clean_head()
    monkeypatch.setattr("loadtests.figures.describe_machine", lambda: dict(MACHINE))
    with pytest.raises(provenance.DirtyTreeError):
        Figures(tmp_path)
    assert list(tmp_path.iterdir()) == []
    marked = Figures(tmp_path, unpublishable="dirty")
    assert marked.add(name="row", ours=1, unit="ms", command="make bench").unpublishable == "dirty"


def test_a_processor_is_named_by_more_than_its_brand() -> None:
    facts = {"model name": "AMD EPYC", "vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17"}
    assert processor_name(facts) == "AMD EPYC (AuthenticAMD 25 17)"


def test_a_group_continues_the_file_of_its_run(figures: Figures) -> None:
    Figures.reopen(figures.path, "wire").add(name="rate", ours=1, unit="1/s", command="make bench")
    assert [figure.group for figure in lines(figures.path)[1]] == ["wire"]
    with pytest.raises(FileNotFoundError):
        Figures.reopen(figures.path.with_name("other.jsonl"), "wire")


def test_levels_of_instructions_follow_from_the_cpu_flags() -> None:
    full = {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512vbmi"}
    assert isa_level("x86_64", full) == "avx512"
    assert isa_level("x86_64", full - {"avx512vbmi"}) == "avx2"
    assert isa_level("x86_64", {"sse2"}) == "portable"
    assert isa_level("aarch64", set()) == "neon"
