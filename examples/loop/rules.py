"""The old solution: what A/B tests found per issuer, fixed by hand.

As in the article: single optimisations are A/B-tested per bank, and what wins
becomes a rule. The tests are read off a period in which some payments were
drawn evenly over all eligible actions; each compares one factor's levels at
one issuer, and a level that is better with significance is preferred there
from then on. Whatever no test decided stays as the payment team had it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from examples.simulators.actions import codes
from examples.simulators.payments import ISSUER_NAMES, NEVER, Contexts, baseline_rank
from scorer.learn.experience import Experience, State

Floats = npt.NDArray[np.float64]
_ISSUER_COLUMN = 2


class IssuerRules:
    """Rules per issuer.

    Args:
        tested: decisions of the test period, every eligible action with a known propensity.
        significance: a level is preferred if it beats the rest of its factor by so many standard errors.
    """

    def __init__(self, tested: Experience, significance: float = 1.96) -> None:
        known = tested.take(tested.state == State.SETTLED)
        # Weighted so that every eligible action counts alike: what even traffic would have measured.
        weight = 1 / (known.propensity * known.eligible.sum(axis=1))
        issuer = known.context[:, _ISSUER_COLUMN].astype(np.int64)
        table = codes()
        self.preference = np.zeros((len(ISSUER_NAMES), len(table)))
        for code in range(len(ISSUER_NAMES)):
            here = issuer == code
            for factor in range(table.shape[1]):
                of_action = table[:, factor]
                for level in range(int(of_action.max()) + 1):
                    has = of_action[known.action] == level
                    ours, theirs = here & has, here & ~has
                    if min(ours.sum(), theirs.sum()) < 30:
                        continue
                    (a, va), (b, vb) = (_rate(known.reward[rows], weight[rows]) for rows in (ours, theirs))
                    if abs(a - b) > significance * np.sqrt(va + vb):
                        self.preference[code, of_action == level] += a - b

    def pmf(self, given: Contexts) -> Floats:
        """`[n, K]` 1 for the rule's action."""
        rank = baseline_rank(given)
        # Equally preferred actions keep the payment team's order.
        score = np.where(rank < NEVER, self.preference[given.issuer] - rank * 1e-9, -np.inf)
        out = np.zeros(score.shape)
        out[np.arange(len(out)), score.argmax(axis=1)] = 1.0
        return out


def _rate(reward: Floats, weight: Floats) -> tuple[float, float]:
    """A weighted mean and its variance."""
    mean = float(weight @ reward / weight.sum())
    return mean, float((weight**2 * (reward - mean) ** 2).sum() / weight.sum() ** 2)
