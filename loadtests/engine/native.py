"""Programs without Python: ours in Rust, and C programs linked to the libraries of the peers' wheels."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, Final

from loadtests.figures import ROOT
from loadtests.options import WORK

PROGRAMS: Final = Path(__file__).parent / "programs"


@functools.cache
def program(name: str, crate: str = "scorer-core") -> Path:
    """Build the example `name` of `crate` in release mode and return the path of its binary."""
    command = ["cargo", "build", "--release", "--locked", "--quiet", "-p", crate, "--example", name]
    subprocess.run([*command, "--message-format", "short"], cwd=ROOT, check=True)
    directory = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--locked", "--no-deps", "--format-version", "1"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
    )["target_directory"]
    return Path(directory, "release/examples", name)


@functools.cache
def peer_program(name: str, package: str, pattern: str) -> Path:
    """Compile a C program with a library of an installed wheel and return its path.

    Args:
        name: The program, `programs/NAME.c`.
        package: The installed package that contains the library.
        pattern: Glob pattern of the library's file in the package.

    Raises:
        FileNotFoundError: The package has no such library.
        subprocess.CalledProcessError: The compiler failed.
    """
    libraries = sorted(Path(sysconfig.get_paths()["platlib"], package).glob(pattern))
    if not libraries:
        raise FileNotFoundError(f"{package} holds no {pattern}")
    library, source = libraries[-1], PROGRAMS / f"{name}.c"
    text = source.read_bytes() + (PROGRAMS / "turns.h").read_bytes() + str(library).encode()
    built = WORK / "programs" / f"{name}-{hashlib.sha256(text).hexdigest()[:16]}"
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        options = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=c11", "-D_POSIX_C_SOURCE=200809L"]
        # The wheel has only the file itself, without the link with the major version that the loader needs.
        named = built.with_name(f"lib-{built.name}") / re.sub(r"(\.so\.\d+)\..*", r"\1", library.name)
        named.parent.mkdir(exist_ok=True)
        named.unlink(missing_ok=True)
        named.symlink_to(library)
        paths = f"-Wl,-rpath,{library.parent}:{named.parent}"
        link = [str(library), paths, "-Wl,--allow-shlib-undefined"]
        subprocess.run(["cc", *options, source, *link, "-o", built], check=True)
    return built


@functools.cache
def isa_names(forest: Path, rows: Path) -> frozenset[str]:
    """Return the vector instruction sets that this machine supports."""
    command = [str(program("turns")), "--forest", str(forest), "--rows", str(rows)]
    found = []
    for isa in ("avx2", "avx512", "neon"):
        done = subprocess.run(
            [*command, "--isa", isa], stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        found += [isa] if done.returncode == 0 else []
    return frozenset(found)


def measured(name: str, *arguments: object, crate: str = "scorer-core") -> dict[str, Any]:
    """Run one of our Rust programs and return the JSON object that it prints.

    Raises:
        RuntimeError: The program failed.
    """
    command = [str(program(name, crate)), *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def kept(name: str, data: bytes) -> Path:
    """Write an input file of a program and return its path."""
    path = WORK / "given" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
