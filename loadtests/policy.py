"""Policy invariants: draw decisions under every rule and count those that break an invariant."""

from __future__ import annotations

import json
import subprocess

from loadtests.engine.native import program
from loadtests.figures import ROOT, Figures
from loadtests.options import Options


def run(figures: Figures, options: Options) -> None:
    """Run the checker, a Rust program that prints one line of JSON.

    Raises:
        RuntimeError: The checker ended without a result.
    """
    command = [str(program("policy_invariants")), str(options.decisions)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise RuntimeError(f"the checker said nothing (exit code {done.returncode})")
    found = json.loads(done.stdout)
    figures.add(
        name=f"policy invariants broken in {options.decisions:,} decisions over six rules",
        ours=found["broken"],
        unit="",
        target=0,
        command="make bench ARGS=policy",
    )
