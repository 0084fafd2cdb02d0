"""Compile the fuzz targets of rust/fuzz and run one on each processor: ``make fuzz``, docs/conformance.md.

Compiled targets are in target/fuzz, inputs that reach new code in .build/fuzz/corpus, and findings in
.build/fuzz/findings.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CRATE = ROOT / "rust/fuzz"
BUILT = ROOT / "target/fuzz"
KEPT = ROOT / ".build/fuzz"
# An input that takes longer is a finding. The time limits of the server are shorter.
SECONDS_PER_INPUT = 25
MEMORY_MB = 2048
REPORTED = re.compile(r"panicked|^ERROR|SUMMARY|Test unit written|internal error|^assertion")


def run(*command: str) -> str:
    """Run a command that must succeed, and return its output."""
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def build(toolchain: str) -> Path:
    """Compile every target, and return the directory of the programs."""
    environment = os.environ | {"PATH": f"{KEPT / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    command = [
        "cargo",
        f"+{toolchain}",
        "fuzz",
        "build",
        "--fuzz-dir",
        str(CRATE),
        "--target-dir",
        str(BUILT),
    ]
    subprocess.run(command, cwd=ROOT, check=True, env=environment)
    host = run("rustc", f"+{toolchain}", "--print", "host-tuple").strip()
    return BUILT / host / "release"


def fuzz(program: Path, seconds: int) -> bool:
    """Run one target for some seconds, print its figures, and return whether there were no findings."""
    target = program.name
    corpus, findings, log = KEPT / "corpus" / target, KEPT / "findings" / target, KEPT / f"{target}.log"
    for directory in (corpus, findings):
        directory.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={seconds}", f"-timeout={SECONDS_PER_INPUT}", f"-rss_limit_mb={MEMORY_MB}",
        "-print_final_stats=1", f"-artifact_prefix={findings}/",
    ]  # fmt: skip
    with log.open("wb") as output:
        seeds = CRATE / "seeds" / target
        code = subprocess.run(
            [program, *options, corpus, seeds], cwd=ROOT, stdout=output, stderr=output, check=False
        ).returncode
    lines = log.read_text(errors="replace").splitlines()
    executed = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "0")
    result = "no finding" if code == 0 else "a finding"
    print(f"{target:12} {executed:>10} inputs in {seconds} s: {result}", flush=True)
    if code:
        reported = [line for line in lines if REPORTED.search(line)]
        print(
            "\n".join([*reported, f"error: fuzzing {target} failed; {log} has the details"]), file=sys.stderr
        )
    return code == 0


def main() -> int:
    """Build and run the targets, and return 1 if there were findings."""
    targets = sorted(path.stem for path in (CRATE / "fuzz_targets").glob("*.rs"))
    parser = argparse.ArgumentParser(description="Fuzz the parsers of untrusted bytes.")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"targets to run, of {', '.join(targets)}; default: all"
    )
    parser.add_argument("--seconds", type=int, default=600, help="seconds for each target (0 compiles only)")
    parser.add_argument("--toolchain", default="nightly", help="installed nightly toolchain")
    arguments = parser.parse_args()
    if unknown := set(arguments.targets) - set(targets):
        parser.error(f"no target {', '.join(sorted(unknown))}; the targets are {', '.join(targets)}")
    programs = build(arguments.toolchain)
    if not arguments.seconds:
        return 0
    # Every target runs, also after findings of others.
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        chosen = arguments.targets or targets
        ended = list(pool.map(lambda target: fuzz(programs / target, arguments.seconds), chosen))
    return int(not all(ended))


if __name__ == "__main__":
    sys.exit(main())
