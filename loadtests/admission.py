"""Cost of admission control per request, and thousands of seeded scenarios in simulated time."""

from __future__ import annotations

import json
import subprocess
import sys

from loadtests.engine.native import measured, program
from loadtests.figures import ROOT, Figures
from loadtests.options import Options

COMMAND = "make bench ARGS=admission"
CRATE = "scorer-admission"
SEEDS = 10_000
MOST_NS = 200.0


def run(figures: Figures, _options: Options) -> None:
    """Measure the cost, and run the simulator."""
    cost = measured("admission_cost", crate=CRATE)
    for what, key, most in (
        ("admitted, started, finished, replied", "admit_start_finish_reply", MOST_NS),
        ("shed", "shed", None),
        ("two threads at once, each", "two_threads_median", None),
    ):
        figures.add(
            name=f"admission, per request: {what}", ours=cost[key], unit="ns", target=most, command=COMMAND
        )
    simulate(figures)


def simulate(figures: Figures) -> None:
    """Run the simulator, which prints a line per case and a line per seed that violated an invariant.

    Raises:
        RuntimeError: The simulator ended without a result.
    """
    command = [str(program("admission_sim", CRATE)), "--seeds", str(SEEDS)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    cases = []
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            cases.append(json.loads(line))
        else:
            sys.stdout.write(f"   {line}\n")
    if not cases:
        raise RuntimeError(f"the simulator counted nothing (exit code {done.returncode})")
    requests = sum(case["requests"] for case in cases)
    figures.add(
        name=f"admission, simulated: seeds of {SEEDS:,} that broke an invariant",
        ours=sum(case["failed"] for case in cases),
        unit="",
        target=0,
        command=COMMAND,
        note=f"{requests:,} requests in {len(cases)} kinds of scenario",
    )
    for case in cases:
        if case["goodput_median"] > 0:
            figures.add(
                name=f"admission, simulated: median goodput, {case['case']}",
                ours=100 * case["goodput_median"],
                unit="% of capacity",
                higher_is_better=True,
                command=COMMAND,
                note=f"{case['seeds']:,} seeds; the worst {100 * case['goodput_min']:.0f} %",
            )
