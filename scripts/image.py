"""Build images without a container engine, and test their entry points (`make image`, `make images`).

buildah (isolation chroot) builds deploy/Dockerfile on a base image that debootstrap creates. The stages that
install and run are those of the file. The stage that compiles is replaced by the wheel of `make wheels`.
Each image is then used in its own root file system (image_trials.py) and written as an OCI directory: the
server's to target/image, that of another process to target/image-NAME.

Exit code 0: the images do their work. 1: one does not. 3: a tool is missing; its package is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from image_trials import TRIALS, try_image
from trial import ROOT, TrialError

WORK = ROOT / ".build" / "image"
WHEELS = ROOT / "target" / "wheels"
DEBIAN = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "bwrap": "bubblewrap"}
BASE = "localhost/scorer-base:latest"
STORAGE = ["--root", str(WORK / "store"), "--runroot", str(WORK / "run"), "--storage-driver"]
NOT_RUN = 3


def main() -> int:
    """Build and test the images, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(TRIALS)}; default: serve")
    parser.add_argument("--all", action="store_true", help=f"build {', '.join(TRIALS)}")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(TRIALS)):
        parser.error(f"unknown image {unknown[0]}; use {', '.join(TRIALS)}")
    names = list(TRIALS) if options.all else options.names or ["serve"]
    if missing := [package for tool, package in TOOLS.items() if shutil.which(tool) is None]:
        print(
            f"NOT RUN  make image: install {', '.join(missing)} (Debian: apt-get install {' '.join(missing)})"
        )
        return NOT_RUN
    if os.getuid():
        print("NOT RUN  make image: debootstrap and buildah --isolation chroot need root")
        return NOT_RUN
    wheels = sorted(WHEELS.glob("scorer-*x86_64.whl"))
    if not wheels:
        sys.exit("error: no wheel for x86_64 in target/wheels; run `make wheels ARGS=x86_64`")
    WORK.mkdir(parents=True, exist_ok=True)
    _base()
    failed = [name for name in names if not _made(name, wheels[-1])]
    return int(bool(failed))


def _made(name: str, wheel: Path) -> bool:
    """Build, test and write an image, and print its size. Return whether it does its work."""
    _build(name, wheel)
    config = json.loads(_buildah("inspect", "--type", "image", tag(name)))["OCIv1"]["config"]
    try:
        with _mounted(name) as root:
            print(f"ok    {try_image(name, root, config)}", flush=True)
    except TrialError as error:
        print(f"error: image {name}: {error}", file=sys.stderr, flush=True)
        return False
    out = output(name)
    shutil.rmtree(out, ignore_errors=True)
    _buildah("push", "-q", tag(name), f"oci:{out}:latest")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out.relative_to(ROOT)}: {size / 2**20:.0f} MiB", flush=True)
    return True


def tag(name: str) -> str:
    """Return the tag of an image: `scorer` for the server, `scorer-NAME` for others."""
    return f"localhost/scorer{'' if name == 'serve' else f'-{name}'}:latest"


def output(name: str) -> Path:
    """Return the OCI directory of an image."""
    return ROOT / "target" / ("image" if name == "serve" else f"image-{name}")


@cache
def _driver() -> str:
    """Return how layers are stored: overlay shares their files; vfs copies them and works everywhere."""
    tried = subprocess.run(["buildah", *STORAGE, "overlay", "images"], capture_output=True, check=False)
    return "vfs" if tried.returncode else "overlay"


def _buildah(command: str, *arguments: str) -> str:
    done = subprocess.run(
        ["buildah", *STORAGE, _driver(), command, *arguments], capture_output=True, text=True, check=False,
        env={**os.environ, "BUILDAH_ISOLATION": "chroot"},
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: buildah {command}: {(done.stdout + done.stderr).strip()[-3000:]}")
    return done.stdout.strip()


def _base() -> None:
    """Create an image of a minimal Debian with Python, unless there is one."""
    if BASE in _buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
        return
    print(f"== Base: Debian {DEBIAN} with its Python", flush=True)
    root = WORK / "base"
    shutil.rmtree(root, ignore_errors=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", "--include=python3,python3-venv,ca-certificates", DEBIAN,
         str(root), MIRROR],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    container = _buildah("from", "scratch")
    _buildah("copy", "-q", container, str(root), "/")
    _buildah("commit", "-q", container, BASE)
    _buildah("rm", container)
    shutil.rmtree(root)


def _build(name: str, wheel: Path) -> None:
    """Build the stages of deploy/Dockerfile that an image needs, after the one that compiles."""
    print(f"== Image {name}: deploy/Dockerfile", flush=True)
    requirements = f"requirements/{name}.txt"
    context = WORK / "context" / name
    shutil.rmtree(context, ignore_errors=True)
    for needed in (requirements, "deploy/scorer.toml"):
        (context / needed).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / needed, context / needed)
    (context / "wheels").mkdir()
    shutil.copy(wheel, context / "wheels")
    (context / "Dockerfile").write_text(stages_of((ROOT / "deploy/Dockerfile").read_text(), name))
    # Packages are downloaded outside the build, so that layers contain no address or credential of an index.
    packages = context / "packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary", ":all:",
         "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64",
         "--platform", "manylinux2014_x86_64", "--dest", str(packages), "-r", str(ROOT / requirements)],
        check=True,
    )  # fmt: skip
    (context / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /packages\n")
    (context / ".dockerignore").write_text("packages\npip.conf\n")
    _buildah(
        "bud", "--isolation", "chroot", "--format", "oci", "-q", "-t", tag(name),
        "--build-arg", f"PYTHON_IMAGE={BASE}", "--build-arg", f"IMAGE={name}", "--pull-never",
        "--timestamp", "1700000000",
        "--volume", f"{packages}:/packages:ro", "--volume", f"{context / 'pip.conf'}:/etc/pip.conf:ro",
        str(context),
    )  # fmt: skip


def stages_of(dockerfile: str, name: str) -> str:
    """Return the stages of a Dockerfile that one image needs, without the one that compiles.

    The build context contains the wheel instead. The last stage, which only selects the image, is not needed.

    Args:
        dockerfile: The text of deploy/Dockerfile.
        name: The image.
    """
    head, *stages = re.split(r"(?m)^(?=FROM )", dockerfile)
    named = {stage.split(maxsplit=4)[3]: stage for stage in stages}
    wanted = ("packages", "common", name)
    if missing := [stage for stage in ("wheel", *wanted) if stage not in named]:
        sys.exit(f"error: deploy/Dockerfile has no stage `{missing[0]}`; adapt scripts/image.py")
    kept = "".join(named[stage].rstrip() + "\n\n" for stage in wanted)
    return (head + kept).replace("COPY --from=wheel /wheels /wheels", "COPY wheels /wheels")


@contextmanager
def _mounted(name: str) -> Iterator[Path]:
    container = _buildah("from", "--pull-never", tag(name))
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)


if __name__ == "__main__":
    sys.exit(main())
