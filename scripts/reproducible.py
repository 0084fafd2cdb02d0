"""Build the wheel twice, in two directories, and compare the bytes (`make reproducible`).

Both builds use the last commit and no changes of the working tree. Their paths have different lengths, and
each has its own target directory.
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
    """Build twice, and return 1 if the wheels differ. The members that differ are printed."""
    with tempfile.TemporaryDirectory(prefix="reproducible-") as folder:
        wheels = [_built(Path(folder) / name) for name in ("one", "another/and/deeper")]
        sums = [hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels]
        for wheel, digest in zip(wheels, sums, strict=True):
            print(f"{digest}  {wheel.name}")
        if len(set(sums)) == 1:
            print("reproducible: both builds have the same bytes")
            return 0
        print(f"error: the builds differ in {', '.join(_different(*wheels))}", file=sys.stderr)
        return 1


def _built(place: Path) -> Path:
    """Build a wheel of the last commit below a directory, and return its path."""
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
