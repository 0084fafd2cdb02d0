"""Build the wheels for both processors, and test each in empty environments (`make wheels`).

The wheel of a processor runs on every Python from 3.11 on (abi3) and every Linux with glibc 2.28 or newer
(manylinux_2_28). zig, installed from PyPI, compiles and links for both, so no container is needed. Each wheel
is installed with the pinned packages of a server, without a compiler and without a training library, on the
oldest and the newest available Python. Combinations that cannot be tested are printed.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from trial import ROOT, Trial, TrialError, clean_environment, sample_bundles

WHEELS = ROOT / "target" / "wheels"
TARGETS = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
PYTHONS = ["3.11", "3.14", "3.13", "3.12"]
"""The oldest version, then newer ones in the order of preference."""
DEBIAN = "bookworm"
MIRROR = os.environ.get("DEBIAN_MIRROR", "http://deb.debian.org/debian")
EMULATED_SECONDS = 600.0


def main() -> int:
    """Build and test the wheels, and return 1 if one does not work."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("machines", nargs="*", help=f"default: {' and '.join(TARGETS)}")
    parser.add_argument("--no-build", action="store_true", help="test existing wheels")
    options = parser.parse_args()
    left_out: list[str] = []
    failed = False
    for machine in options.machines or TARGETS:
        if machine not in TARGETS:
            parser.error(f"unknown machine {machine}; use {' or '.join(TARGETS)}")
        if not options.no_build:
            build(machine, WHEELS)
        wheels = sorted(WHEELS.glob(f"scorer-*{machine}.whl"))
        if not wheels:
            sys.exit(f"error: no wheel for {machine} in {WHEELS}")
        wheel = wheels[-1]
        print(f"== {wheel.name}, {wheel.stat().st_size / 2**20:.1f} MiB", flush=True)
        with sample_bundles() as bundles:
            tries = _tried if machine == platform.machine() else _emulated
            failed |= not tries(wheel, machine, bundles, left_out)
    for line in left_out:
        print(f"NOT TESTED  {line}")
    return int(failed)


def build(machine: str, out: Path, *, source: Path = ROOT) -> None:
    """Build one wheel from a source tree. The bytes depend on the commit and not on the directory."""
    target = TARGETS[machine]
    _need_target(target)
    cargo_home = os.environ.get("CARGO_HOME", str(Path.home() / ".cargo"))
    remaps = {str(source): "/scorer", cargo_home: "/cargo", str(_sysroot()): "/rust"}
    environment = {
        **os.environ,
        "SOURCE_DATE_EPOCH": commit_time(),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(
            f"--remap-path-prefix={path}={name}" for path, name in remaps.items()
        ),
        # C code of dependencies must not contain paths either.
        "CFLAGS": f"-ffile-prefix-map={source}=/scorer -ffile-prefix-map={cargo_home}=/cargo",
    }
    path = ROOT / ".build" / "wheels" / "bin"
    command = [
        str(path / "maturin"), "build", "--release", "--locked", "--zig", "--compatibility", "manylinux_2_28",
        "--target", target, "--out", str(out), "--quiet",
    ]  # fmt: skip
    environment["PATH"] = f"{path}:{environment['PATH']}"
    environment["VIRTUAL_ENV"] = str(path.parent)
    subprocess.run(command, cwd=source, env=environment, check=True)


def commit_time() -> str:
    """Return the time of the commit, for archives, so that it does not depend on the build."""
    said = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return said or "1700000000"


def _need_target(target: str) -> None:
    """Install Rust's standard library of a target with rustup if it is missing."""
    said = subprocess.run(
        ["rustc", "--print", "target-libdir", "--target", target], capture_output=True, text=True, check=True
    )
    if Path(said.stdout.strip()).is_dir():
        return
    if shutil.which("rustup") is None:
        sys.exit(f"error: no Rust for {target}, and rustup is missing; install rust-std for {target}")
    subprocess.run(["rustup", "target", "add", target], check=True)


def _sysroot() -> Path:
    said = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True)
    return Path(said.stdout.strip())


# --- this machine's processor ---


def _tried(wheel: Path, machine: str, bundles: Path, left_out: list[str]) -> bool:
    """Test the wheel on the oldest Python, and on the newest available one."""
    oldest, *newer = PYTHONS
    found = [oldest] if _interpreter(oldest) else []
    if not found:
        left_out.append(f"{machine} on Python {oldest}: no such interpreter, and uv cannot install one")
    for version in newer:
        if _interpreter(version):
            found.append(version)
            break
        left_out.append(f"{machine} on Python {version}: no such interpreter, and uv cannot install one")
    results = [_try_on(wheel, version, bundles) for version in found]
    return all(results)


def _interpreter(version: str) -> str | None:
    """Return an interpreter of this version: of the system, of pyenv, or installed by uv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    if kept := sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")):
        return str(kept[-1])
    uv = str(Path(sys.executable).with_name("uv"))
    for arguments in (["python", "find", "--system", version], ["python", "install", "--quiet", version]):
        subprocess.run([uv, *arguments], capture_output=True, check=False)
        found = subprocess.run(
            [uv, "python", "find", "--system", version], capture_output=True, text=True, check=False
        )
        if found.returncode == 0 and found.stdout.strip():
            return found.stdout.strip()
    return None


def _try_on(wheel: Path, version: str, bundles: Path) -> bool:
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        place = Path(folder)
        python = place / "env" / "bin" / "python"
        subprocess.run(
            [uv, "venv", "--quiet", "--python", _interpreter(version) or "", str(place / "env")], check=True
        )
        install = [uv, "pip", "install", "--quiet", "--python", str(python), "--only-binary", ":all:"]
        bare = {**os.environ, "CC": "/nonexistent", "CXX": "/nonexistent"}
        subprocess.run(
            [*install, "--require-hashes", "-r", str(ROOT / "requirements/serve.txt")], env=bare, check=True
        )
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], env=bare, check=True)
        return _report(Trial([str(python)], place, clean_environment()), bundles)


# --- another processor, emulated ---


def _emulated(wheel: Path, machine: str, bundles: Path, left_out: list[str]) -> bool:
    """Test the wheel on Debian's Python of the other processor, under qemu."""
    qemu = shutil.which(f"qemu-{machine}-static") or shutil.which(f"qemu-{machine}")
    needed = {"debootstrap": "debootstrap", "dpkg": "dpkg"}
    for program, package in needed.items():
        if shutil.which(program) is None:
            left_out.append(f"{machine}: no {program} (Debian: apt-get install {package})")
            return True
    if qemu is None:
        left_out.append(f"{machine}: no qemu-{machine} (Debian: apt-get install qemu-user-static)")
        return True
    uv = str(Path(sys.executable).with_name("uv"))
    with tempfile.TemporaryDirectory(prefix="wheel-") as folder:
        place = Path(folder)
        root = _debian_python(machine, place)
        site = place / "site"
        install = [
            uv, "pip", "install", "--quiet", "--target", str(site), "--only-binary", ":all:",
            "--python-platform", f"{machine}-manylinux_2_28", "--python-version", "3.11",
        ]  # fmt: skip
        subprocess.run([*install, "--require-hashes", "-r", str(ROOT / "requirements/serve.txt")], check=True)
        subprocess.run([*install, "--no-deps", "--no-index", str(wheel)], check=True)
        environment = clean_environment(PYTHONPATH=str(site), PYTHONHOME=str(root / "usr"))
        prefix = [qemu, "-L", str(root), str(root / "usr/bin/python3.11")]
        left_out.append(f"{machine} on a newer Python than Debian {DEBIAN}'s 3.11: none is available")
        return _report(Trial(prefix, place, environment, EMULATED_SECONDS), bundles)


def _debian_python(machine: str, place: Path) -> Path:
    """Unpack Debian's Python of another processor. Only the interpreter is run."""
    architecture = {"aarch64": "arm64", "x86_64": "amd64"}[machine]
    root = place / "root"
    subprocess.run(
        ["debootstrap", "--foreign", "--variant=minbase", f"--arch={architecture}",
         "--include=python3.11,libpython3.11-stdlib,ca-certificates", DEBIAN, str(root), MIRROR],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(root)], check=True)
    return root


def _report(trial: Trial, bundles: Path) -> bool:
    try:
        print(f"ok    {trial.run([str(bundles / 'fraud-checkout')])}", flush=True)
    except TrialError as error:
        print(f"FAIL  {' '.join(trial.prefix)}: {error}", flush=True)
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
