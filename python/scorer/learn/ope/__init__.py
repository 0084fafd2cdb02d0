"""What another policy would have earned on a log: estimates, intervals, diagnostics.

These are estimates, not measurements. They hold as far as the logged choices depended on nothing but
what the propensities were computed from.

    logged = Logged.read(experience)
    target = Target(logged, pmf, model=cross_fit(...))
    found = dr(target)                                   # value, interval, pseudo-outcomes
    better = paired(dr(target), dr(logged_target(target)))
    sequences.asymptotic(better.pseudo, side="lower")    # scorer.stats; may be read at any time

docs/off-policy.md says which to use when, with formulas and sources.
"""

from scorer.learn.ope.crossfit import Trees, cross_fit, estimated_pmf, folds_by_name, folds_by_time
from scorer.learn.ope.diagnostics import Diagnostics, diagnose
from scorer.learn.ope.estimate import Choice, Estimate, paired, paired_difference, share, slope
from scorer.learn.ope.estimators import (
    dm,
    dr,
    dr_os,
    ipw,
    logged_target,
    sndr,
    snipw,
    switch_dr,
)
from scorer.learn.ope.logged import Logged, Target
from scorer.learn.ope.value_bounds import value_bounds
from scorer.learn.ope.weighting import additive, balanced, marginal

__all__ = [
    "Choice",
    "Diagnostics",
    "Estimate",
    "Logged",
    "Target",
    "Trees",
    "additive",
    "balanced",
    "cross_fit",
    "diagnose",
    "dm",
    "dr",
    "dr_os",
    "estimated_pmf",
    "folds_by_name",
    "folds_by_time",
    "ipw",
    "logged_target",
    "marginal",
    "paired",
    "paired_difference",
    "share",
    "slope",
    "sndr",
    "snipw",
    "switch_dr",
    "value_bounds",
]
