"""Tests that a missing component skips tests locally, fails them in CI, and is listed at the end."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import components
import pytest
from components import Component


@pytest.fixture(autouse=True)
def _one_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {
        "here": Component("nothing", lambda: True),
        "gone": Component("apt-get install gone", lambda: False),
    }
    monkeypatch.setattr(components, "COMPONENTS", known)
    monkeypatch.setattr(components, "absent", Counter())


def test_the_run_reports_once_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "EVERYTHING", False)
    components.require("here")
    assert not components.absent
    for _ in range(2):
        with pytest.raises(pytest.skip.Exception, match="`apt-get install gone` installs it"):
            components.require("gone")
    lines = components.summary()
    assert lines[:2] == [
        "tests skipped for a missing component: gone (2)",
        "to run them: apt-get install gone",
    ]


def test_ci_fails_if_a_component_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(components, "EVERYTHING", True)
    with pytest.raises(pytest.fail.Exception, match="gone is not installed"):
        components.require("gone")


def test_missing_components_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert components.main() == 1
    assert capsys.readouterr().err == "missing component: gone (`apt-get install gone`)\n"


def test_kernels_without_their_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for level, missing in (("avx512", ["neon"]), ("avx2", ["avx512", "neon"]), ("neon", ["avx2", "avx512"])):
        monkeypatch.setattr("loadtests.figures.isa_level", lambda machine, flags, level=level: level)
        assert components.untested_instructions() == missing


def test_the_check_of_all_components_runs_as_a_program() -> None:
    # CI runs the file by its path, so that only its own directory is importable and not the project's root.
    result = subprocess.run(
        [sys.executable, components.__file__],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )
    assert result.returncode in (0, 1), result.stderr
    assert all(line.startswith("missing component: ") for line in result.stderr.splitlines()), result.stderr
