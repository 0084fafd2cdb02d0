"""Our exploration rule with the setting that the product ships: probabilities by the server's own code."""

from __future__ import annotations

import numpy as np

from loadtests.learning.exploration.view import Floats, Rule, View

# One setting for every set and for payments, chosen on tuning seeds (docs/exploration.md).
EXPONENT = 100.0


def loss_ratio(view: View) -> Floats:
    """Proportional to (least loss / loss)^100."""
    return engine(view, rule="loss_ratio", exponent=EXPONENT)


def engine(view: View, **spec: object) -> Floats:
    """The probabilities that the server would give."""
    from scorer.bundle import Action, Policy, PolicySpec

    actions = [Action(id=f"a{number}") for number in range(view.scores.shape[1])]
    policy = Policy(PolicySpec.model_validate({"salt": "00" * 16, **spec}), actions)
    return np.asarray(policy.pmf(view.scores, view.eligible))


OURS = Rule("ours", "ours", loss_ratio)
