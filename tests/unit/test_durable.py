"""Tests of the atomic replacement of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scorer.durable import write_atomically


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_a_written_file_has_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/inside").touch()
    with pytest.raises(OSError, match="taken"):
        write_atomically(tmp_path / "taken", b"content")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
