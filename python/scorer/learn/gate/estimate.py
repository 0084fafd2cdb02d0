"""What the window says about both policies: weights, doubly robust values, their paired difference.

Per decision i, policy pi and an oracle q that learned before the window::

    phi_i(pi) = sum_a pi(a|x_i) q(x_i,a) + pi(a_i|x_i)/mu_i (r_i - q(x_i,a_i))
    d_i = phi_i(candidate) - phi_i(live)

Where both policies served side by side, as lanes of a mixture, mu_i is the probability under the lanes
together, share by share (balanced weights, Agarwal et al., 2017): the lane is drawn without looking at the
decision, so that is what chose, and no weight of a candidate with share a is above 1 / a.

Both policies and q are fixed before the window begins, so E[d_i | past] is the difference of the two
policies' values on decision i, whatever the logger did: the sequence may be judged by an anytime-valid
bound as it grows. What cross-fitting is for elsewhere, the order of time does here. q is the mean of both
bundles' oracles.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from scorer.bundle import Bundle, read_manifest
from scorer.learn.decisions import DecisionRows
from scorer.learn.experience import Experience, State
from scorer.learn.ope.estimators import dr_scores
from scorer.learn.ope.logged import Logged, Target
from scorer.learn.ruling import eligible_by_rules
from scorer.stats.arrays import Floats
from scorer.stats.means import mean_of_known

D = TypeVar("D", bound=DecisionRows)


@dataclass(frozen=True)
class PolicyComparison:
    """Both policies on the settled decisions of a window, `n` of them.

    Attributes:
        window: every decision of it.
        settled: those whose reward is known: the rows of everything below.
        candidate: `[n, K]` probabilities.
        live: `[n, K]`.
        oracle: `[n, K]` q; 0 where not eligible.
        candidate_oracle: `[n, K]` the candidate's own expected rewards; 0 where not eligible.
        logging: `[n, K]` what chose: the lanes together, or what each decision logged.
        lanes: share of the candidate among the decisions, where both served and nothing else did.
    """

    window: Experience
    settled: Experience
    candidate: Floats
    live: Floats
    oracle: Floats
    candidate_oracle: Floats
    logging: Floats
    lanes: float | None = None

    def weights(self, pmf: Floats) -> Floats:
        """`[n]` target over logging probability of the action taken."""
        return self._target(pmf).weight if len(self.settled) else np.zeros(0)

    def scores(self, pmf: Floats) -> Floats:
        """`[n]` doubly robust scores of a policy; their mean estimates its value."""
        return dr_scores(self._target(pmf)) if len(self.settled) else np.zeros(0)

    def difference(self) -> Floats:
        """Return pseudo-outcomes `[n]` of the candidate minus those of the live policy."""
        return self.scores(self.candidate) - self.scores(self.live)

    def support(self) -> float:
        """The candidate's mass on actions with a logging probability above 0."""
        return float(np.where(self.logging > 0, self.candidate, 0.0).sum(axis=1).mean())

    def _target(self, pmf: Floats) -> Target:
        """A policy for the estimators of `scorer learn evaluate`, with what chose as the logging policy."""
        settled = self.settled
        taken = self.logging[np.arange(len(settled)), settled.action]
        logged = Logged(
            action=settled.action,
            reward=settled.reward,
            # Where no lane could have chosen what was taken, the weight is huge and the checks refuse it.
            propensity=np.maximum(taken, np.finfo(np.float64).tiny),
            pmf=self.logging,
        )
        return Target(logged, pmf, self.oracle)

    def distance(self) -> float:
        """How far the policies are apart: the mean total variation, which no difference of values exceeds."""
        return float(np.abs(self.candidate - self.live).sum(axis=1).mean() / 2) if len(self.settled) else 1.0


def gather(window: Experience, candidate: Path, live: Path) -> PolicyComparison:
    """Evaluates both bundles on a window, with the code that serves them and with the rules of each."""
    settled = window.settled()
    pmfs, rewards, served = [], [], []
    for path in (candidate, live):
        bundle = Bundle.load(path)
        eligible = eligible_by_rules(bundle, settled)
        pmf, reward = bundle.evaluate(settled.context, eligible=eligible)
        pmfs.append(pmf)
        rewards.append(np.where(eligible, reward, np.nan))
        served.append(digests_of(path))
    share = lane_share(settled, served[0], served[1])
    rows = np.arange(len(settled))
    if share is None:
        logging = settled.pmf.astype(np.float64)
        # The propensity is what the draw used; the pmf beside it is rounded.
        logging[rows, settled.action] = settled.propensity
    else:
        logging = share * pmfs[0] + (1 - share) * pmfs[1]
    oracle = mean_of_known(rewards[0], rewards[1])
    own = np.nan_to_num(rewards[0])
    return PolicyComparison(window, settled, pmfs[0], pmfs[1], oracle, own, logging, share)


def lane_share(settled: Experience, candidate: Set[str], live: Set[str]) -> float | None:
    """The candidate's share where both bundles served, under any digest of theirs, and no other did."""
    used = {settled.bundles[at] for at in np.unique(settled.bundle)}
    if not used <= candidate | live or not used & candidate or not used & live:
        return None
    own = np.array([name in candidate for name in settled.bundles])
    return float(own[settled.bundle].mean())


def digests_of(path: Path) -> frozenset[str]:
    """What a bundle is logged as: its digest, and the one from before its last verdict was written in."""
    manifest = read_manifest(path)
    judged = manifest.lineage.metrics.get("gate")
    before = {judged["candidate"]["digest"]} if isinstance(judged, dict) else set()
    return frozenset({manifest.digest} | before)


def mature_window(experience: D, days: float, after_ms: int) -> D:
    """The last whole window of which every outcome is known or will never be.

    It ends with the first decision that is in flight: up to there every action family's maturity
    window has passed, so that none is judged by its early outcomes alone. It begins `days` before, or
    where both bundles had finished learning.

    Args:
        experience: in order of time.
        days: length.
        after_ms: decisions up to here taught one of the policies; they do not judge.
    """
    in_flight = np.flatnonzero(experience.state == State.IN_FLIGHT)
    end = int(experience.time_ms[in_flight].min()) if len(in_flight) else int(experience.time_ms.max()) + 1
    return experience.between(max(end - round(days * 86_400_000), after_ms + 1), end)
