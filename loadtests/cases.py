"""Run every load case (loadtests/cases/*/case.toml) on the demo's server."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from loadtests.figures import ROOT, Figures
from loadtests.options import Options
from loadtests.served import demo_settings, server

CASES = ROOT / "loadtests/cases"


def run(figures: Figures, options: Options) -> None:
    """Run all cases one after another on one server."""
    with server(demo_settings(options.demo)) as serving:
        figures.add(
            name="start to ready, the demo's two bundles",
            ours=serving["ready_after_ms"],
            unit="ms",
            command="make bench ARGS=cases",
        )
        target = next(address for address in serving["grpc"] if not address.startswith("unix:"))
        for case in sorted(path.parent for path in CASES.glob("*/case.toml")):
            found = _measured(case, target, options.seconds)
            report = found["report"]
            note = f"{report['answered']:,} of {report['requests']:,} answered; {found['verdict']['outcome']}"
            for share in ("p50", "p99"):
                figures.add(
                    name=f"load case {case.name}, {share}",
                    ours=report["latency_us"][share] / 1000,
                    unit="ms",
                    command="make bench ARGS=cases",
                    note=note,
                )


def _measured(case: Path, target: str, seconds: float | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch, "report.json")
        command = [sys.executable, "-m", "scorer.cli", "loadtest"]
        command += ["--case", str(case), "--target", target, "--json", str(report)]
        if seconds is not None:
            command += ["--seconds", str(seconds)]
        code = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode
        if not report.exists():
            raise RuntimeError(f"load case {case.name} could not be run (exit code {code})")
        found: dict[str, Any] = json.loads(report.read_text())
    return found
