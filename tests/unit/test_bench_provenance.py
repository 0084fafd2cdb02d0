"""A group is stale if the code that it measures has changed, and not if only comments have."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from loadtests import provenance
from loadtests.uncommented import uncommented

PYTHON = b'''"""About."""

LIMIT = 3
"""The limit."""


def twice(value: int) -> int:
    """Return it twice."""
    return 2 * value  # doubled
'''
RUST = b"""//! About.
/// Returns it twice.
pub fn twice(value: u32) -> u32 {
    // Doubled.
    2 * value
}
"""


@pytest.mark.parametrize(
    ("path", "content", "old", "new"),
    [
        ("a.py", PYTHON, b"Return it twice.", b"Return the value twice."),
        ("a.py", PYTHON, b"The limit.", b"Limit on calls."),
        ("a.py", PYTHON, b"  # doubled", b""),
        ("a.rs", RUST, b"/// Returns it twice.\n", b"/// Returns the value\n/// twice.\n"),
        ("a.rs", RUST, b"    // Doubled.\n", b""),
        ("a.proto", b"// Old.\nmessage A {}\n", b"Old", b"New"),
        ("a.toml", b"# Old.\nrate = 1\n", b"Old", b"New"),
    ],
)
def test_comments_do_not_count(path: str, content: bytes, old: bytes, new: bytes) -> None:
    assert old in content
    assert uncommented(path, content) == uncommented(path, content.replace(old, new))


@pytest.mark.parametrize(
    ("path", "content", "old", "new"),
    [
        ("a.py", PYTHON, b"LIMIT = 3", b"LIMIT = 4"),
        ("a.py", PYTHON, b"2 * value", b"3 * value"),
        ("a.rs", RUST, b"2 * value", b"3 * value"),
        ("a.proto", b"message A {}\n", b"A", b"B"),
        ("a.bin", b"# old", b"old", b"new"),
        ("broken.py", b"def (  # old", b"old", b"new"),
    ],
)
def test_code_counts(path: str, content: bytes, old: bytes, new: bytes) -> None:
    assert old in content
    assert uncommented(path, content) != uncommented(path, content.replace(old, new))


def test_a_group_is_stale_once_its_code_has_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def git(*arguments: str) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.strip()

    is_current: Callable[[str, str], bool] = provenance.is_current.__wrapped__
    monkeypatch.setattr(provenance, "ROOT", tmp_path)
    monkeypatch.setattr(provenance, "SOURCES", {"engine": ("rust",)})
    code = tmp_path / "rust" / "lib.rs"
    code.parent.mkdir()
    code.write_bytes(RUST)
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "measured")
    commit = git("rev-parse", "HEAD")

    assert is_current(commit, "engine")
    code.write_bytes(RUST.replace(b"Doubled", b"Twice"))
    assert is_current(commit, "engine")
    code.write_bytes(RUST.replace(b"2 * value", b"3 * value"))
    assert not is_current(commit, "engine")
    code.unlink()
    assert not is_current(commit, "engine")
    assert not is_current("0" * 40, "engine")
