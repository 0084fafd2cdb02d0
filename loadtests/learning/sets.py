"""Regret of exploration rules on six classification sets, all on the same oracle (docs/exploration.md)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Final

import numpy as np

from loadtests.learning.exploration import datasets
from loadtests.learning.exploration.compared import Compared
from loadtests.learning.exploration.ours import OURS
from loadtests.learning.exploration.peers import PEERS, REFERENCES
from loadtests.learning.exploration.play import Played, play

if TYPE_CHECKING:
    from loadtests.figures import Figures
    from loadtests.learning.options import Options

COMMAND: Final = "make bench-learning ARGS=sets"
# Largest number of decisions of a set. The sets letter and shuttle are larger.
MOST: Final = 5000
RULES: Final = {rule.name: rule for rule in (OURS, *PEERS, *REFERENCES)}
_LOADED: dict[str, datasets.Classes] = {}


def run(figures: Figures, options: Options) -> None:
    """Measure every rule on every set with every seed, then the peers with their own learners."""
    from loadtests.learning.exploration import shipped

    found, lost = datasets.available(("digits", "vowel") if options.quick else datasets.NAMES)
    for name, why in lost.items():
        print(f"   not measured: {name}: {why}")
    regret = measure([classes.name for classes in found], list(RULES), options.seeds, quick=options.quick)
    peers = [rule.name for rule in PEERS]
    shipped_settings = [rule.name for rule in PEERS if rule.setting == "default"]
    wins = untuned = 0
    for at, classes in enumerate(found):
        of = {name: np.array([run.regret for run in regret[classes.name, name]]) for name in RULES}
        result = Compared.of(of, OURS.name, peers)
        wins += result.ours <= result.theirs
        untuned += result.ours <= Compared.of(of, OURS.name, shipped_settings).theirs
        figures.add(
            name=f"regret per decision on {classes.name}",
            ours=result.ours,
            unit="",
            peer=f"best peer: {result.best}",
            theirs=result.theirs,
            target=1.0,
            command=COMMAND,
            note=result.note(len(options.seeds)),
        )
        for rule in (*PEERS, *REFERENCES):
            figures.add(
                name="regret per decision, same oracle",
                ours=result.ours,
                unit="",
                peer=rule.name,
                theirs=float(of[rule.name].mean()),
                command=COMMAND,
                note=classes.name,
                plot="exploration-sets" if rule.setting == "tuned" else "exploration-sets-defaults",
                x=1.0 + at,
            )
    if found:
        figures.add(
            name=f"sets on which no peer's rule as it ships has less regret, of {len(found)}",
            ours=float(untuned),
            unit="sets",
            higher_is_better=True,
            command=COMMAND,
        )
        figures.add(
            name=f"sets on which no peer's rule has less regret, of {len(found)}",
            ours=float(wins),
            unit="sets",
            target=5.0 if len(found) == len(datasets.NAMES) else None,
            higher_is_better=True,
            command=COMMAND,
            note=_missing(lost),
        )
    vw = [rule.name for rule in PEERS if rule.family == "VW"]
    shipped.run(
        figures,
        found,
        {classes.name: _mean(regret[classes.name, OURS.name]) for classes in found},
        {classes.name: min(_mean(regret[classes.name, name]) for name in vw) for classes in found},
        options,
    )


def measure(
    sets: list[str], rules: list[str], seeds: Iterable[int], *, quick: bool = False
) -> dict[tuple[str, str], list[Played]]:
    """Return one result per seed, by set and rule."""
    jobs = [(name, rule, seed, quick) for seed in seeds for name in sets for rule in rules]
    for name in sets:
        _LOADED.setdefault(name, datasets.load(name))
    out: dict[tuple[str, str], list[Played]] = {}
    # The workers are forked so that the sets are loaded once. Every XGBoost call has one thread.
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("fork")) as pool:
        for (name, rule, _, _), played in zip(jobs, pool.map(_job, jobs, chunksize=4), strict=True):
            out.setdefault((name, rule), []).append(played)
    return out


def _job(job: tuple[str, str, int, bool]) -> Played:
    name, rule, seed, quick = job
    classes = datasets.sampled(_LOADED[name], 300 if quick else MOST, seed)
    return play(classes, RULES[rule], seed)


def _mean(played: list[Played]) -> float:
    return float(np.mean([one.regret for one in played]))


def _missing(lost: dict[str, str]) -> str | None:
    return f"not measured: {'; '.join(f'{name}: {why}' for name, why in lost.items())}" if lost else None
