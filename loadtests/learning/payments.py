"""Regret of exploration rules on simulated payments, all on the same weekly oracle (docs/exploration.md)."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loadtests.learning.exploration.compared import Compared
from loadtests.learning.exploration.ours import OURS
from loadtests.learning.exploration.peers import PEERS, REFERENCES
from loadtests.learning.exploration.weekly import Solution, prepared, solve

if TYPE_CHECKING:
    from loadtests.figures import Figures
    from loadtests.learning.options import Options

COMMAND: Final = "make bench-learning ARGS=payments"
WEEKS: Final = 12
A_WEEK: Final = 5000
# Every rule is measured on these seeds, then our rule and the best peers on all seeds of the part.
FIRST_SEEDS: Final = 4
# All twenty seeds would take twice the part's time.
SEEDS: Final = 12
FINALISTS: Final = 2

_PEERS: Final = [Solution(rule.name, rule) for rule in PEERS]
_PLAIN: Final = Solution("ours without overlay", OURS)
_OURS: Final = Solution("ours", OURS, overlay=True)
_REFERENCES: Final = [Solution(rule.name, rule) for rule in REFERENCES]
# Data for forked workers, because the world of a seed is too large to be sent to each of them.
_SHARED: dict[str, Any] = {}


def run(figures: Figures, options: Options) -> None:
    """Measure every rule on the first seeds, and the best of them on more."""
    weeks, a_week = (3, 600) if options.quick else (WEEKS, A_WEEK)
    seeds = options.seeds[:SEEDS]
    first, rest = seeds[:FIRST_SEEDS], seeds[FIRST_SEEDS:]
    asked = [_OURS, _PLAIN, *_PEERS, *_REFERENCES]
    regret = _measure(asked, first, weeks, a_week)
    overall = {name: np.mean(values, axis=0)[1:].mean() for name, values in regret.items()}
    best = sorted((peer for peer in _PEERS), key=lambda peer: float(overall[peer.name]))[:FINALISTS]
    borrowed = Solution(f"{best[0].name} + our overlay", best[0].rule, overlay=True)
    regret |= _measure([borrowed], first, weeks, a_week)
    finalists = [_OURS, _PLAIN, borrowed, *best]
    for name, values in _measure(finalists, rest, weeks, a_week).items():
        regret[name] += values
    _report(figures, regret, [peer.name for peer in best], borrowed.name, len(seeds))


def _report(
    figures: Figures, regret: dict[str, list[np.ndarray]], best: list[str], borrowed: str, seeds: int
) -> None:
    mean = {name: np.array([weeks[1:].mean() for weeks in values]) for name, values in regret.items()}
    # Rules are compared with rules that learn at the same times: first weekly ones, then those with the
    # overlay, which learns every six hours.
    for ours, peers, words, learner in (
        (_PLAIN.name, best, _PLAIN.name, "best peer without overlay"),
        (_OURS.name, [borrowed], "ours with overlay", "best peer with our overlay"),
    ):
        result = Compared.of(mean, ours, peers)
        figures.add(
            name=f"regret per payment, {words}",
            ours=mean[ours].tolist(),
            unit="",
            peer=f"{learner}: {result.best.removesuffix(' + our overlay')}",
            theirs=mean[result.best].tolist(),
            target=1.0,
            command=COMMAND,
            note=f"both learn at the same times; a round is a seed; {result.note(seeds)}",
        )
    result = Compared.of(mean, _OURS.name, best)
    figures.add(
        name="regret per payment, the overlay's part",
        ours=mean[_OURS.name].tolist(),
        unit="",
        peer=f"best peer without overlay: {result.best}",
        theirs=mean[result.best].tolist(),
        command=COMMAND,
        note=f"ours learns every six hours, the peer weekly: no comparison of rules; {result.note(seeds)}",
    )
    others = [name for name in mean if name not in {_OURS.name, _PLAIN.name, borrowed}]
    for place, name in enumerate(sorted(others, key=lambda name: float(mean[name].mean())), start=1):
        figures.add(
            name="regret per payment, same oracle",
            ours=float(mean[_OURS.name][: len(mean[name])].mean()),
            unit="",
            peer=name,
            theirs=float(mean[name].mean()),
            command=COMMAND,
            note=f"{len(mean[name])} seeds",
            plot="exploration-payments-rules",
            x=float(place),
        )
    for week in range(len(next(iter(regret.values()))[0])):
        for peer in (_PLAIN.name, borrowed, *best):
            figures.add(
                name="regret per payment by week",
                ours=float(np.mean([values[week] for values in regret[_OURS.name]])),
                unit="",
                peer=peer,
                theirs=float(np.mean([values[week] for values in regret[peer]])),
                command=COMMAND,
                plot="exploration-payments",
                x=float(week + 1),
            )


def _measure(
    asked: list[Solution], seeds: tuple[int, ...], weeks: int, a_week: int
) -> dict[str, list[np.ndarray]]:
    """Return the regret by week for each seed, by solution."""
    out: dict[str, list[np.ndarray]] = {solution.name: [] for solution in asked}
    for seed in seeds:
        # Traffic and truth are simulated once, before the workers are forked.
        _SHARED["world"], _SHARED["asked"] = prepared(seed, weeks, a_week), asked
        with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("fork")) as pool:
            for solution, weekly in zip(asked, pool.map(_job, range(len(asked))), strict=True):
                out[solution.name].append(weekly)
    return out


def _job(number: int) -> np.ndarray:
    return solve(_SHARED["world"], _SHARED["asked"][number])
