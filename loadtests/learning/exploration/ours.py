"""Our exploration rule with the setting of the product. The server's own code computes the probabilities."""

from __future__ import annotations

import numpy as np

from loadtests.learning.exploration.view import Floats, Rule, View

# One setting for all sets and for payments, chosen on tuning seeds (docs/exploration.md).
EXPONENT = 100.0


def loss_ratio(view: View) -> Floats:
    """Return probabilities in proportion to (least loss / loss)^100."""
    return engine(view, rule="loss_ratio", exponent=EXPONENT)


def engine(view: View, **spec: object) -> Floats:
    """Return the probabilities of the server for a policy with these settings."""
    from scorer.bundle import Action, Policy, PolicySpec

    actions = [Action(id=f"a{number}") for number in range(view.scores.shape[1])]
    policy = Policy(PolicySpec.model_validate({"salt": "00" * 16, **spec}), actions)
    return np.asarray(policy.pmf(view.scores, view.eligible))


OURS = Rule("ours", "ours", loss_ratio)
