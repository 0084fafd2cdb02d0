"""Regret beside learners that learn as fast as ours, in simulated worlds that nothing was tuned on.

The real Vowpal Wabbit learns online, a linear model per issuer is retrained weekly as our forest is, and ours
is shown with and without its overlay, which learns between two trainings. A world is a round of the figure.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from examples.loop import vowpal
from examples.loop.worlds import LINEAR, OURS, PLAIN, RULES, VW, Measured, measure_all
from examples.simulators.worlds import standard

if TYPE_CHECKING:
    from loadtests.figures import Figures
    from loadtests.learning.options import Options

COMMAND: Final = "make bench-learning ARGS=worlds"
WEEKS: Final = 8
A_WEEK: Final = 5000
SEED: Final = 1
# Ours with its overlay beside the online learner, ours without it beside those that are retrained weekly.
PAIRS: Final = (
    (OURS, VW, 1.0),
    (PLAIN, LINEAR, 1.0),
    (PLAIN, RULES, 1.0),
    (OURS, LINEAR, None),
    (PLAIN, VW, None),
)


def run(figures: Figures, options: Options) -> None:
    """Measure every solution in every world and add the ratios of like solutions.

    Raises:
        RuntimeError: Vowpal Wabbit is not installed in this environment.
    """
    if not vowpal.is_installed():
        raise RuntimeError("Vowpal Wabbit is not installed; `make learning-peers` installs it")
    specs = standard(2 if options.quick else 11)
    weeks, a_week = (3, 1200) if options.quick else (WEEKS, A_WEEK)
    add_figures(figures, measure_all(specs, weeks, a_week, SEED, os.cpu_count() or 1))


def add_figures(figures: Figures, measured: list[Measured]) -> None:
    """Add a figure for each pair; its rounds are the worlds."""
    regret: dict[str, list[float]] = {}
    for one in measured:
        regret.setdefault(one.solution, []).append(one.mean)
    for ours, peer, target in PAIRS:
        figures.add(
            name=f"regret per payment over {len(regret[ours])} worlds, {ours}",
            ours=regret[ours],
            unit="",
            peer=peer,
            theirs=regret[peer],
            target=target,
            command=COMMAND,
            note="a round is a world; nothing was tuned on these worlds",
        )
