"""`make bench`: policy invariants, the forest beside its peers, then every load case on the demo's server.

One JSON line per measurement goes to loadtests/results/<time>.jsonl; the first is about the machine and the
build. A debug build is refused: its figures are worth nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CASES = ROOT / "loadtests/cases"
DEMO = ROOT / "demo-output"
READY_SECONDS = 60.0


class Results:
    """The file of this run: what was measured, on what."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}.jsonl"

    def add(self, kind: str, **values: Any) -> None:
        """Appends one measurement."""
        with self.path.open("a") as file:
            file.write(json.dumps({"kind": kind, "at": datetime.now(UTC).isoformat(), **values}) + "\n")


def environment() -> dict[str, Any]:
    """What the figures depend on."""
    from scorer import bridge

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    info = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line
    ]
    return {
        "cpu": models[0] if models else platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "version": bridge.__version__,
        "build_profile": bridge.build_profile,
        "commit": git("rev-parse", "HEAD"),
        "modified": bool(git("status", "--porcelain")),
    }


def check_policies(decisions: int, results: Results) -> bool:
    """Draws decisions under every rule and checks each; the program's own JSON line is what is kept."""
    title(f"Policy invariants over {decisions:,} decisions")
    command = ["cargo", "run", "--release", "--locked", "--quiet", "-p", "scorer-core"]
    command += ["--example", "policy_invariants", "--", str(decisions)]
    started = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(done.stdout)
    found = json.loads(done.stdout) if done.stdout else None
    took = round(time.monotonic() - started, 1)
    results.add("policy_invariants", hold=done.returncode == 0, seconds=took, found=found)
    return done.returncode == 0


def compare_engines(results: Results) -> None:
    """One row through the forest and through its peers, in turns."""
    title("One row, beside the peers")
    # A sibling of this script, whose folder Python searches first.
    from engine import compare

    for figure in compare():
        results.add("engine", command="make bench", **figure)
        sys.stdout.write(
            f"{figure['name']}: {figure['ours']} us; {figure['peer']} {figure['theirs']} us,"
            f" {figure['ratio']} times as long\n"
        )


@contextmanager
def server(settings: Path) -> Iterator[dict[str, Any]]:
    """The demo's server with its own, temporary log and state; yields what it announced when it was ready."""
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        variables = {
            "SCORER_SERVER__LISTEN": "127.0.0.1:0",
            "SCORER_SERVER__CONTROL_LISTEN": "127.0.0.1:0",
            "SCORER_SERVER__METRICS_LISTEN": "127.0.0.1:0",
            "SCORER_SERVER__STATE_DIR": f"{scratch}/state",
            "SCORER_LOG__DIR": f"{scratch}/decisions",
        }
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SCORER_")}
        events = Path(scratch, "events.jsonl")
        with events.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "scorer.cli", "serve", "--config", str(settings)],
                env=inherited | variables,
                stderr=sink,
            )
        try:
            yield announced(process, events)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def announced(process: subprocess.Popen[bytes], events: Path) -> dict[str, Any]:
    """Waits for the event `serving`."""
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        for line in events.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if event.get("event") == "serving":
                return event
        time.sleep(0.05)
    sys.exit(f"error: the demo's server does not serve; what it said:\n{events.read_text()}")


def run_case(case: Path, target: str, seconds: float | None, results: Results) -> list[str]:
    """One load case; returns its line of the table."""
    title(f"Load case {case.name}")
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, "-m", "scorer.cli", "loadtest"]
        command += ["--case", str(case), "--target", target, "--json", str(report)]
        if seconds is not None:
            command += ["--seconds", str(seconds)]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        if not report.exists():
            sys.exit(f"error: load case {case.name} could not be run (exit code {code})")
        found = json.loads(report.read_text())
    # Figures per second are for looking into one run; `scorer loadtest --json` keeps them.
    del found["report"]["windows"]
    results.add("load", case=case.name, exit_code=code, **found)
    latency, answered = found["report"]["latency_us"], found["report"]["answered"]
    figures = [f"{latency[share] / 1000:.2f}" for share in ("p50", "p99", "p999")]
    return [
        case.name,
        f"{found['report']['requests']:,}",
        f"{answered:,}",
        *figures,
        found["verdict"]["outcome"],
    ]


def show(rows: list[list[str]]) -> None:
    """Prints a table, numbers to the right."""
    rows = [["case", "requests", "answered", "p50 ms", "p99 ms", "p99.9 ms", "verdict"], *rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *figures, verdict in rows:
        right = [figure.rjust(width) for figure, width in zip(figures, widths[1:-1], strict=True)]
        sys.stdout.write("  ".join([name.ljust(widths[0]), *right, verdict]) + "\n")


def title(text: str) -> None:
    """Says what comes now."""
    sys.stdout.write(f"\n== {text}\n")
    sys.stdout.flush()


def main() -> int:
    """Measures everything; returns 1 if a policy broke an invariant. Load cases are told, not judged here."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = sorted(path.name for path in CASES.iterdir() if path.is_dir()) if CASES.is_dir() else []
    parser.add_argument(
        "cases", nargs="*", metavar="CASE", help=f"load cases, default all: {', '.join(names)}"
    )
    parser.add_argument(
        "--decisions", type=int, default=10_000_000, help="for the policies; 0: leave them out"
    )
    parser.add_argument("--seconds", type=float, help="length of each load case, instead of its own")
    parser.add_argument(
        "--demo", type=Path, default=DEMO, help="output folder of the demo whose bundles serve"
    )
    options = parser.parse_args()
    if unknown := sorted(set(options.cases) - set(names)):
        parser.error(f"no such case: {', '.join(unknown)}; there are: {', '.join(names)}")

    built = environment()
    if built["build_profile"] != "release":
        sys.exit(
            f"error: the extension is a {built['build_profile']} build; run `make build` for a release build"
        )
    results = Results(ROOT / "loadtests/results")
    results.add("environment", **built)

    hold = not options.decisions or check_policies(options.decisions, results)
    compare_engines(results)
    settings: Path = options.demo / "scorer.toml"
    if not settings.exists():
        title("The demo's bundles are what is measured; making them first")
        demo = [sys.executable, "-m", "scorer.demo", "--output", str(options.demo)]
        subprocess.run(demo, cwd=ROOT, check=True)
    with server(settings) as serving:
        results.add("server", **{name: serving.get(name) for name in ("ready_after_ms", "resident_mb")})
        target = next(address for address in serving["grpc"] if not address.startswith("unix:"))
        cases = [CASES / name for name in options.cases or names]
        rows = [run_case(case, target, options.seconds, results) for case in cases]
    title(f"All of it: {results.path.relative_to(ROOT)}")
    show(rows)
    return 0 if hold else 1


if __name__ == "__main__":
    sys.exit(main())
