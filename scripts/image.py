"""Build the serving image without a container engine, and test its entry point (`make image`).

buildah (isolation chroot) builds deploy/Dockerfile on a base image that debootstrap creates. The stages that
install and serve are those of the file. The stage that compiles is replaced by the wheel of `make wheels`.
The entry point then runs in the root file system of the image, read-only, as the image's unprivileged user.
The script writes the image to target/image as an OCI directory.

Exit code 0: the image answers a request. 1: it does not. 3: a tool is missing; its package is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trial import ROOT, Trial, TrialError, sample_bundles

WORK = ROOT / ".build" / "image"
OUT = ROOT / "target" / "image"
WHEELS = ROOT / "target" / "wheels"
DEBIAN = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "bwrap": "bubblewrap"}
BASE, IMAGE = "localhost/scorer-base:latest", "localhost/scorer:latest"
STORAGE = ["--root", str(WORK / "store"), "--runroot", str(WORK / "run"), "--storage-driver", "vfs"]
CONFINED = """
import os, pathlib
assert os.getuid() == 65532 and os.getgid() == 65532, (os.getuid(), os.getgid())
for place in ("/usr", "/opt/scorer", "/etc"):
    try:
        (pathlib.Path(place) / "written").write_text("x")
    except OSError:
        continue
    raise SystemExit(f"{place} can be written")
"""
LISTENERS = [f"SCORER_SERVER__{name}" for name in ("LISTEN", "METRICS_LISTEN", "CONTROL_LISTEN")]
NOT_RUN = 3


def main() -> int:
    """Build and test the image, and return the exit code."""
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
    _build(wheels[-1])
    try:
        with _mounted() as root, sample_bundles() as bundles:
            print(f"ok    {_try(root, bundles)}")
    except TrialError as error:
        print(f"error: the image does not answer: {error}", file=sys.stderr)
        return 1
    shutil.rmtree(OUT, ignore_errors=True)
    _buildah("push", "-q", IMAGE, f"oci:{OUT}:latest")
    size = sum(file.stat().st_size for file in OUT.rglob("*") if file.is_file())
    print(f"target/image: {size / 2**20:.0f} MiB")
    return 0


def _buildah(command: str, *arguments: str) -> str:
    done = subprocess.run(
        ["buildah", *STORAGE, command, *arguments], capture_output=True, text=True, check=False,
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


def _build(wheel: Path) -> None:
    """Build the stages of deploy/Dockerfile after the one that compiles."""
    print("== Image: deploy/Dockerfile", flush=True)
    context = WORK / "context"
    shutil.rmtree(context, ignore_errors=True)
    for name in ("requirements/serve.txt", "deploy/scorer.toml"):
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, context / name)
    (context / "wheels").mkdir()
    shutil.copy(wheel, context / "wheels")
    (context / "Dockerfile").write_text(without_compiling((ROOT / "deploy/Dockerfile").read_text()))
    # Packages are downloaded outside the build, so that layers contain no address or credential of an index.
    packages = context / "packages"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--require-hashes", "--only-binary", ":all:",
         "--python-version", "3.11", "--platform", "manylinux_2_28_x86_64",
         "--platform", "manylinux2014_x86_64", "--dest", str(packages),
         "-r", str(ROOT / "requirements/serve.txt")],
        check=True,
    )  # fmt: skip
    (context / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /packages\n")
    (context / ".dockerignore").write_text("packages\npip.conf\n")
    _buildah(
        "bud", "--isolation", "chroot", "--format", "oci", "-q", "-t", IMAGE,
        "--build-arg", f"PYTHON_IMAGE={BASE}", "--pull-never", "--timestamp", "1700000000",
        "--volume", f"{packages}:/packages:ro", "--volume", f"{context / 'pip.conf'}:/etc/pip.conf:ro",
        str(context),
    )  # fmt: skip


def without_compiling(dockerfile: str) -> str:
    """Remove the stage that compiles from a Dockerfile. The build context contains the wheel instead."""
    head, *stages = re.split(r"(?m)^(?=FROM )", dockerfile)
    kept = [stage for stage in stages if not re.match(r"FROM \S+ AS wheel\b", stage)]
    if len(kept) != len(stages) - 1:
        sys.exit("error: deploy/Dockerfile has no stage `wheel`; adapt scripts/image.py")
    return (head + "".join(kept)).replace("COPY --from=wheel /wheels /wheels", "COPY wheels /wheels")


@contextmanager
def _mounted() -> Iterator[Path]:
    container = _buildah("from", "--pull-never", IMAGE)
    try:
        yield Path(_buildah("mount", container))
    finally:
        _buildah("rm", container)


def _try(root: Path, bundles: Path) -> str:
    """Run the image's entry point, confined like in a hardened pod, and send it requests."""
    config = json.loads(_buildah("inspect", "--type", "image", IMAGE))["OCIv1"]["config"]
    user, _, group = config["User"].partition(":")
    variables = dict(pair.split("=", 1) for pair in config["Env"])
    # The ports are free ones. All other settings are those of the image.
    variables |= dict.fromkeys(LISTENERS, "127.0.0.1:0")
    variables["SCORER_REGISTRY__PATH"] = "/var/lib/scorer/registry"
    with tempfile.TemporaryDirectory(prefix="image-") as folder:
        confined = [
            "bwrap", "--ro-bind", str(root), "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",  # noqa: S108 - the image's own
            "--tmpfs", "/run/scorer", "--bind", folder, "/var/lib/scorer", "--ro-bind", str(bundles), "/srv",
            "--unshare-all", "--share-net", "--uid", user, "--gid", group or user, "--cap-drop", "ALL",
            "--die-with-parent", "--new-session", "--chdir", config["WorkingDir"], "--clearenv",
            *(part for name, value in variables.items() for part in ("--setenv", name, value)),
        ]  # fmt: skip
        python = [*confined, "/opt/scorer/bin/python"]
        done = subprocess.run([*python, "-c", CONFINED], capture_output=True, text=True, check=False)
        if done.returncode:
            raise TrialError(f"it is not confined: {done.stderr.strip()[-500:]}")
        trial = Trial(python, Path(folder), dict(os.environ), serve=[*confined, *config["Entrypoint"]])
        answered = trial.run(["/srv/fraud-checkout", "/srv/action-authorise"])
    return f"{answered}; user {user}, root file system read-only"


if __name__ == "__main__":
    sys.exit(main())
