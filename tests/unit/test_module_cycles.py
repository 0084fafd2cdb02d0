"""Tests of `scripts/module_cycles.py` with small crates."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/module_cycles.py"
Check = Callable[[dict[str, str]], tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Write a crate and run the script on it; return the exit code and the output."""

    def run(files: dict[str, str]) -> tuple[int, str]:
        for name, text in files.items():
            path = tmp_path / "src" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = [sys.executable, str(SCRIPT), str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert not done.stderr
        return done.returncode, done.stdout

    return run


LIB = {"lib.rs": "mod a;\nmod b;\nmod c;\n"}
FOLDERS = LIB | {"a/mod.rs": "pub mod x;\n", "b/mod.rs": "pub mod y;\n", "c.rs": "pub struct C;\n"}


def test_uses_in_one_direction_pass(check: Check) -> None:
    files = {
        "a/x.rs": "use crate::b::y::Y;\nuse crate::c::C;\n",
        "b/y.rs": "use crate::c::C;\npub struct Y;\n",
    }
    assert check(FOLDERS | files) == (0, "")


@pytest.mark.parametrize(
    "back",
    [
        "use crate::a::x::X;\n",
        "use crate::{c::C, a::{self, x::X}};\n",
        "use super::super::a::x::X;\n",
        "fn f() { crate::a::x::g(); }\n",
        "pub use crate::a::x as other;\n",
    ],
)
def test_a_cycle_of_two_folders_is_reported_with_its_lines(check: Check, back: str) -> None:
    code, out = check(FOLDERS | {"a/x.rs": "\nuse crate::b::y::Y;\n", "b/y.rs": back})
    assert code == 1
    assert "src/a/x.rs:2: crate::b::y::Y" in out
    assert "src/b/y.rs:1: " in out


def test_a_cycle_through_a_file_is_found(check: Check) -> None:
    code, out = check(
        FOLDERS | {"a/x.rs": "use crate::c::C;\n", "b/y.rs": "", "c.rs": "use crate::a::x::X;\n"}
    )
    assert code == 1
    assert "a::x -> c" in out
    assert "c -> a::x" in out


def test_a_name_is_followed_through_re_exports(check: Check) -> None:
    lib = "mod a;\nmod b;\npub use b::Y;\n"
    files = {"lib.rs": lib, "a/mod.rs": "pub mod x;\n", "a/x.rs": "use crate::Y;\n"}
    back = {"b/mod.rs": "mod y;\npub use y::Y;\n", "b/y.rs": "use crate::a::x::X;\n"}
    code, out = check(files | back)
    assert code == 1
    assert "a::x -> b::y" in out


def test_cycles_within_one_folder_are_allowed(check: Check) -> None:
    inner = {"a/mod.rs": "pub mod x;\nmod z;\nuse x::X;\n", "a/x.rs": "use super::z::Z;\nuse crate::a::W;\n"}
    assert check(FOLDERS | inner | {"a/z.rs": "use super::x::X;\n", "b/y.rs": ""}) == (0, "")


def test_cycles_between_subfolders_are_found(check: Check) -> None:
    files = {
        "lib.rs": "mod a;\n",
        "a/mod.rs": "mod p;\nmod q;\n",
        "a/p/mod.rs": "mod one;\n",
        "a/p/one.rs": "use crate::a::q::two::T;\n",
        "a/q/mod.rs": "pub mod two;\n",
        "a/q/two.rs": "use crate::a::p::P;\n",
    }
    assert check(files)[0] == 1


def test_comments_strings_and_test_modules_do_not_count(check: Check) -> None:
    quiet = (
        "// use crate::a::x::X;\n"
        'const S: &str = "crate::a::x";\n'
        'const R: &str = r#"use crate::a::x::X;"#;\n'
        "#[cfg(test)]\nmod tests {\n    use crate::a::x::X;\n    mod deeper { fn f() {} }\n}\n"
        "#[cfg(test)]\nmod more;\n"
    )
    files = {"a/x.rs": "use crate::b::y::Y;\n", "b/y.rs": quiet, "b/y/more.rs": "use crate::a::x::X;\n"}
    assert check(FOLDERS | files) == (0, "")
