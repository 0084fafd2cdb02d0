"""Builds the wheel twice, in two directories, and compares the bytes. `make reproducible`.

Both trees are of the last commit; nothing of the working tree is in them. They have paths of different
lengths, and each has a target directory of its own.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from wheels import ROOT, build


def main() -> int:
    """Build twice; 1 if the wheels differ, with the members that do."""
    with tempfile.TemporaryDirectory(prefix="reproducible-") as folder:
        wheels = [_built(Path(folder) / name) for name in ("one", "another/and/deeper")]
        sums = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
        for wheel, digest in zip(wheels, sums, strict=True):
            print(f"{digest}  {wheel.name}")
        if len(set(sums)) == 1:
            print("reproducible: both builds gave the same bytes")
            return 0
        print(f"error: the builds differ in {', '.join(_different(*wheels))}", file=sys.stderr)
        return 1


def _built(place: Path) -> Path:
    """A wheel of the last commit, built below a directory."""
    tree = place / "tree"
    tree.mkdir(parents=True)
    archive = subprocess.Popen(["git", "-C", str(ROOT), "archive", "HEAD"], stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    if archive.wait():
        sys.exit("error: git archive failed; commit first")
    build(platform.machine(), place / "out", source=tree)
    shutil.rmtree(tree / "target", ignore_errors=True)
    [wheel] = (place / "out").glob("*.whl")
    return wheel


def _different(one: Path, other: Path) -> list[str]:
    def members(wheel: Path) -> dict[str, bytes]:
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    first, second = members(one), members(other)
    names = [name for name in {*first, *second} if first.get(name) != second.get(name)]
    return sorted(names) or ["the archive's own headers"]


if __name__ == "__main__":
    sys.exit(main())
