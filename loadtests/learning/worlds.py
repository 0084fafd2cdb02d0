"""Regret in comparison with learners that learn as fast, in simulated worlds on which nothing was tuned.

The real Vowpal Wabbit and LinUCB learn online, and a linear model per issuer is retrained weekly like our
forest. Our solution is measured with and without its overlay, which learns between two trainings. A world is
a round of the figure. The regret by world and week is written to a file next to the lines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from examples.loop import vowpal, worlds
from examples.loop.worlds import LINEAR, LINUCB, OURS, PLAIN, RULES, VW, Measured, Play, measure_all
from examples.simulators.worlds import standard

if TYPE_CHECKING:
    from loadtests.figures import Figures
    from loadtests.learning.options import Options

COMMAND: Final = "make bench-learning ARGS=worlds"
WEEKS: Final = 9
A_WEEK: Final = 5000
SEED: Final = 1
# Our solution with its overlay is compared with online learners, without it with those that are retrained
# weekly.
PAIRS: Final = (
    (OURS, VW, 1.0),
    (OURS, LINUCB, 1.0),
    (PLAIN, LINEAR, 1.0),
    (PLAIN, RULES, 1.0),
    (OURS, LINEAR, None),
    (PLAIN, VW, None),
)
SOLUTIONS: Final = (OURS, PLAIN, LINEAR, RULES, LINUCB, VW)


def run(figures: Figures, options: Options) -> None:
    """Measure every solution in every world and add the ratios of comparable solutions.

    Raises:
        RuntimeError: Vowpal Wabbit is not installed in this environment.
    """
    if not vowpal.is_installed():
        raise RuntimeError("Vowpal Wabbit is not installed; `make learning-peers` installs it")
    specs = standard(2 if options.quick else 11)
    weeks, a_week = (3, 1200) if options.quick else (WEEKS, A_WEEK)
    measured = measure_all(specs, Play(weeks, a_week, SEED), os.cpu_count() or 1, SOLUTIONS)
    settings = {"weeks": weeks, "payments": a_week, "seed": SEED, "first_world": 1}
    worlds.write(figures.path.with_suffix(".worlds.json"), worlds.as_dict(specs, measured, settings))
    add_figures(figures, measured, [spec.name for spec in specs if spec.drift == "none"])


def add_figures(figures: Figures, measured: list[Measured], calm: list[str]) -> None:
    """Add a figure for each pair. Its rounds are the worlds.

    Args:
        figures: Receives the figures.
        measured: Every solution in each of several worlds.
        calm: The worlds without drift.
    """
    regret: dict[str, list[float]] = {}
    for one in measured:
        regret.setdefault(one.solution, []).append(one.mean)
    for ours, peer, target in PAIRS:
        (of_means,) = (one for one in worlds.ratios(measured, ours) if one.peer == peer)
        figures.add(
            name=f"regret per payment over {len(regret[ours])} worlds, {ours}",
            ours=regret[ours],
            unit="",
            peer=peer,
            theirs=regret[peer],
            target=target,
            command=COMMAND,
            note="a round is a world; nothing was tuned on these worlds; regret over the peer's, by means:"
            f" {of_means.value:.2f} [{of_means.low:.2f}, {of_means.high:.2f}], less in {of_means.less_in} of"
            f" {of_means.worlds}",
        )
    for world in calm:
        found = {one.solution: one.mean for one in measured if one.world == world}
        figures.add(
            name=f"regret per payment where nothing drifts ({world}), {OURS}",
            ours=found[OURS],
            unit="",
            peer=LINEAR,
            theirs=found[LINEAR],
            command=COMMAND,
            note=f"one world; regret over the peer's: {found[OURS] / found[LINEAR]:.2f}",
        )
