"""Peers with their own learners and rules, on the same rows.

Vowpal Wabbit learns online, from the outcome of a decision before the next decision. No payment system can do
that, so it is an advantage. MABWiser learns in the same generations as our rule. Both get standardised
features. Rows, order and random numbers are those of `play`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from loadtests.learning.exploration import datasets
from loadtests.learning.exploration.play import FIRST, drawn, generations
from loadtests.learning.exploration.view import Floats

if TYPE_CHECKING:
    from loadtests.figures import Figures
    from loadtests.learning.options import Options

# Options of each variant. `vowpal_wabbit` adds interactions of every feature with the action, without which a
# linear model ranks the actions alike in every context.
VW: Final = {
    "VW --squarecb as shipped": "--squarecb",
    "VW --regcb as shipped": "--regcb --cb_min_cost -1 --cb_max_cost 0",
    "VW --epsilon .05 as shipped": "--epsilon 0.05",
}
MABWISER: Final = ("MABWiser LinUCB as shipped",)
# Fewer seeds, because the Python calls of the peers take most of the part's time.
SEEDS: Final = 5


def run(
    figures: Figures,
    found: list[datasets.Classes],
    ours: Mapping[str, float],
    vw_here: Mapping[str, float],
    options: Options,
) -> None:
    """Measure peers with their own learners.

    Args:
        figures: Receives the figures.
        found: The sets.
        ours: Regret of our rule on our oracle, by set.
        vw_here: Regret of VW's best rule on our oracle, by set. The difference to VW as shipped is due to the
            learner.
        options: Seeds and size.
    """
    from loadtests.learning.sets import COMMAND, MOST

    seeds = options.seeds[:SEEDS]
    most = 300 if options.quick else MOST
    jobs = [(c.name, name, seed, most) for seed in seeds for c in found for name in (*VW, *MABWISER)]
    with ProcessPoolExecutor(os.cpu_count() or 1, mp_context=get_context("fork")) as pool:
        regrets = list(pool.map(_job, jobs))
    for classes in found:
        of = {
            name: float(
                np.mean([r for job, r in zip(jobs, regrets, strict=True) if job[:2] == (classes.name, name)])
            )
            for name in (*VW, *MABWISER)
        }
        best = min(of, key=lambda name: of[name])
        figures.add(
            name=f"regret on {classes.name}, learners as shipped",
            ours=ours[classes.name],
            unit="",
            peer=best,
            theirs=of[best],
            command=COMMAND,
            note=f"VW's best rule on our oracle {vw_here[classes.name]:.3f}; {len(seeds)} seeds of theirs: "
            + ", ".join(f"{name} {value:.3f}" for name, value in of.items()),
        )


def _job(job: tuple[str, str, int, int]) -> float:
    set_name, name, seed, most = job
    classes = datasets.sampled(datasets.load(set_name), most, seed)
    rows = classes.rows - classes.rows.mean(axis=0)
    rows = rows / np.maximum(rows.std(axis=0), 1e-6)
    if name in VW:
        return vowpal_wabbit(VW[name], rows, classes, seed)
    return mabwiser(rows, classes, seed)


def vowpal_wabbit(options: str, rows: Floats, classes: datasets.Classes, seed: int) -> float:
    """Return the mean expected regret after the first batch, from VW's own probabilities."""
    from vowpalwabbit import Workspace

    n, k = len(rows), classes.k
    luck = np.random.default_rng([seed, 11]).random(n)
    learner = Workspace(f"--cb_explore_adf {options} --quiet -q xa --ignore_linear x --random_seed {seed}")
    regret = np.zeros(n)
    actions = [f"|a a{number}" for number in range(k)]
    for at in range(n):
        shared = "shared |x " + " ".join(f"{i}:{v:.4g}" for i, v in enumerate(rows[at]) if v)
        if at < FIRST:
            pmf = np.full((1, k), 1 / k)
        else:
            pmf = np.array([learner.predict([shared, *actions])])
            pmf = np.maximum(pmf, 0) / np.maximum(pmf, 0).sum()
        regret[at] = 1 - pmf[0, classes.label[at]]
        chosen = int(drawn(pmf, luck[at : at + 1])[0])
        cost = -1 if chosen == classes.label[at] else 0
        labelled = actions.copy()
        labelled[chosen] = f"0:{cost}:{max(pmf[0, chosen], 1e-4):.6g} {actions[chosen]}"
        learner.learn([shared, *labelled])
    learner.finish()
    return float(regret[FIRST:].mean())


def mabwiser(rows: Floats, classes: datasets.Classes, seed: int) -> float:
    """Return the mean regret of MABWiser's LinUCB after the first batch. It returns no probabilities."""
    from mabwiser.mab import MAB, LearningPolicy

    n, k = len(rows), classes.k
    luck = np.random.default_rng([seed, 11]).random(n)
    mab: Any = MAB(list(range(k)), LearningPolicy.LinUCB(alpha=1.0, l2_lambda=1.0), seed=seed)
    regret = np.zeros(n)
    chosen = drawn(np.full((min(FIRST, n), k), 1 / k), luck[:FIRST])
    mab.fit(chosen, (chosen == classes.label[:FIRST]).astype(float), rows[:FIRST])
    for low, high in generations(n):
        label = classes.label[low:high]
        chosen = np.asarray(mab.predict(rows[low:high])).reshape(-1)
        regret[low:high] = chosen != label
        mab.partial_fit(chosen, (chosen == label).astype(float), rows[low:high])
    return float(regret[FIRST:].mean())
