"""The old solution: rules that A/B tests found per issuer.

As in the article, single optimisations are A/B-tested per bank, and the results become rules. The tests are
evaluated on a period in which some payments were drawn uniformly over all eligible actions. Each test
compares the levels of one factor at one issuer. A level that is significantly better or worse than the others
is preferred or avoided there from then on. Where no test was significant, the payment team's order remains.
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
        tested: Decisions of the test period, in which every eligible action has a known propensity.
        significance: A level is preferred or avoided if it differs from the rest of its factor by more than
            this number of standard errors.
    """

    def __init__(self, tested: Experience, significance: float = 1.96) -> None:
        known = tested.take(tested.state == State.SETTLED)
        # The weights give every eligible action the same weight, as in uniform traffic.
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
        """Return `[n, K]` 1 for the action of the rules."""
        rank = baseline_rank(given)
        # Equally preferred actions keep the payment team's order.
        score = np.where(rank < NEVER, self.preference[given.issuer] - rank * 1e-9, -np.inf)
        out = np.zeros(score.shape)
        out[np.arange(len(out)), score.argmax(axis=1)] = 1.0
        return out


def _rate(reward: Floats, weight: Floats) -> tuple[float, float]:
    """Return a weighted mean and its variance."""
    mean = float(weight @ reward / weight.sum())
    return mean, float((weight**2 * (reward - mean) ** 2).sum() / weight.sum() ** 2)
