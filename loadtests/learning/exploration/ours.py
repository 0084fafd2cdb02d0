"""Our exploration rule: probabilities by the server's own code."""

from __future__ import annotations

import numpy as np

from loadtests.learning.exploration.view import Floats, Rule, View

SCALE = 40.0


def fast_cb(view: View) -> Floats:
    """FastCB on losses; gamma = c sqrt(K / E), at most doubled from one generation to the next."""
    gamma = SCALE * float(np.sqrt(view.k.mean() / view.excess()))
    return engine(view, rule="fastcb", gamma=gamma)


def engine(view: View, **spec: object) -> Floats:
    """The probabilities that the server would give."""
    from scorer.bundle import Action, Policy, PolicySpec

    actions = [Action(id=f"a{number}") for number in range(view.scores.shape[1])]
    policy = Policy(PolicySpec.model_validate({"salt": "00" * 16, **spec}), actions)
    return np.asarray(policy.pmf(view.scores, view.eligible))


SETS = PAYMENTS = Rule("ours", "ours", fast_cb)
