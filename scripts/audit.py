"""Check dependencies for known vulnerabilities, licences, sources and duplicates (`make audit`).

Advisories of Rust come from a copy of the RustSec database at a pinned commit, those of Python from the
index's vulnerability service. `ADVISORY_DB=PATH` sets the path of an existing copy of the database, for a
machine without access to GitHub. `UPDATE=1` uses the newest commit instead of the pinned one.

Exit code 0: no findings, and every check ran. 1: findings. 3: no findings, but a check that needs the network
could not run; its name is printed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".build" / "audit-tools"
DATABASE = "https://github.com/rustsec/advisory-db"
# Update it at least before every release.
COMMIT = "bf5c0d245a92671908518d7e765914d437954ed6"
TOOLS = {"cargo-deny": "0.20.2", "cargo-audit": "0.22.2"}
# The workspace of the product, and the separate workspace of the fuzz targets.
WORKSPACES = [ROOT, ROOT / "rust" / "fuzz"]
LOCKS = [f"requirements/{part}.txt" for part in ("serve", "train", "platform")]
FOUND, NOT_RUN = 1, 3


def main() -> int:
    """Run every check, print those that failed, and return the exit code."""
    found: list[str] = []
    missing: list[str] = []
    _say("Licences, sources and duplicates of the crates (cargo-deny)")
    for workspace in WORKSPACES:
        manifest = str(workspace / "Cargo.toml")
        if _run(
            _tool("cargo-deny"), "--locked", "--manifest-path", manifest, "--config", str(ROOT / "deny.toml"),
            "check", "--hide-inclusion-graph", "licenses", "bans", "sources",
        ):  # fmt: skip
            found.append(f"cargo-deny of {manifest}")
    _say("Advisories for the crates (cargo-audit)")
    database = _database()
    for workspace in WORKSPACES:
        lock = str(workspace / "Cargo.lock")
        if database is None:
            missing.append(
                f"cargo-audit of {lock}: {DATABASE} cannot be cloned; set ADVISORY_DB=PATH to a copy"
            )
        elif _run(
            _tool("cargo-audit"),
            "audit",
            "--db",
            str(database),
            "--no-fetch",
            "--deny",
            "unsound",
            "--file",
            lock,
        ):
            found.append(f"cargo-audit of {lock}")
    _say("Advisories for the Python packages (pip-audit)")
    for lock in LOCKS:
        code = _pip_audit(ROOT / lock)
        if code is None:
            missing.append(f"pip-audit of {lock}: the index has no data on some packages")
        elif code:
            found.append(f"pip-audit of {lock}")
    for line in missing:
        print(f"NOT RUN  {line}")
    if found:
        print(f"error: findings of {', '.join(found)}; see above", file=sys.stderr)
        return FOUND
    print("audit: no findings" + (f"; {len(missing)} checks did not run" if missing else ""))
    return NOT_RUN if missing else 0


def _tool(name: str) -> str:
    """Return the path of a tool of exactly the pinned version; build it if it is missing."""
    version = TOOLS[name]
    own = WORK / "bin" / name
    for candidate in (own, shutil.which(name)):
        if candidate and _version(str(candidate)) == version:
            return str(candidate)
    if shutil.which("cargo") is None:
        sys.exit("error: cargo not found; install Rust (https://rustup.rs), then open a new shell")
    _say(f"{name} {version} (built once)")
    arguments = ["cargo", "install", "--quiet", "--locked", "--root", str(WORK), "--version", version]
    environment = {**os.environ, "CARGO_TARGET_DIR": str(WORK / "target")}
    if subprocess.run([*arguments, "--no-default-features", name], env=environment, check=False).returncode:
        sys.exit(f"error: {name} {version} cannot be built; put it on the PATH")
    return str(own)


def _version(program: str) -> str | None:
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return said.split()[-1]


def _database() -> Path | None:
    """Return the advisory database: the copy in ADVISORY_DB, or a clone at the pinned commit."""
    if named := os.environ.get("ADVISORY_DB"):
        path = Path(named).resolve()
        if (path / "crates").is_dir():
            return path
        return _checked_out(path) or sys.exit(
            f"error: ADVISORY_DB={named} is not a RustSec advisory database"
        )
    return _checked_out(None)


def _checked_out(source: Path | None) -> Path | None:
    """Check out the pinned commit of the database, from GitHub or from a git directory."""
    clone = WORK / "advisory-db"
    wanted = "HEAD" if os.environ.get("UPDATE") else COMMIT
    clone.mkdir(parents=True, exist_ok=True)
    steps = (
        ["init", "--quiet"],
        ["fetch", "--quiet", "--depth", "1", str(source or DATABASE), wanted],
        ["checkout", "--quiet", "--force", "FETCH_HEAD"],
    )
    present = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "--verify", "--quiet", "HEAD"],
        capture_output=True, text=True, check=False,
    ).stdout.strip()  # fmt: skip
    if present == COMMIT and wanted == COMMIT:
        return clone
    for step in steps:
        done = subprocess.run(["git", "-C", str(clone), *step], capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr.strip())
            return None
    return clone


def _pip_audit(lock: Path) -> int | None:
    """Return the number of known vulnerabilities; None if the service is not reachable."""
    program = Path(sys.executable).with_name("pip-audit")
    if not program.exists():
        sys.exit("error: pip-audit is not in this environment; run `make audit`")
    done = subprocess.run(
        [str(program), "--requirement", str(lock), "--disable-pip", "--require-hashes", "--format", "json",
         "--progress-spinner", "off"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(done.stderr.strip()[-500:])
        return None
    asked = [package for package in packages if "skip_reason" not in package]
    known = [(package, entry) for package in asked for entry in package["vulns"]]
    for package, entry in known:
        fixed = ", ".join(entry["fix_versions"]) or "no version"
        print(f"{lock.name}: {package['name']} {package['version']}: {entry['id']}, fixed in {fixed}")
    print(f"{lock.name}: {len(asked)} of {len(packages)} packages were looked up, {len(known)} advisories")
    return len(known) if len(asked) == len(packages) or known else None


def _run(*command: str) -> int:
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _say(what: str) -> None:
    print(f"\n== {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
