"""Mean, variance and skewness of pseudo-outcomes as the logged pmf and a reward model imply them.

A pseudo-outcome is `direct(x) + w(x, a) (r - c(x, a))` with a control `c`. The logging policy's
whole pmf is known and the reward is 0 or 1, so given a model `q` of the reward its moments are
sums over actions, also over those with large weights that the log happens to lack. The empirical
variance sees such actions only once they have struck.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK = 8_192


@dataclass(frozen=True)
class PseudoOutcomeDesign:
    """How pseudo-outcomes of some rows depend on action and reward.

    Attributes:
        logging: `[rows, K]` the pmf that chose.
        model: `[rows, K]` predicted rewards.
        weight: `[rows, K]` what the reward is multiplied by; signed in a difference.
        drift: `[rows, K]` `weight * (model - control)`; None: nothing, the control is the model.
        direct: `[rows]`.
    """

    logging: Floats
    model: Floats
    weight: Floats
    drift: Floats | None
    direct: Floats

    def minus(self, other: PseudoOutcomeDesign) -> PseudoOutcomeDesign:
        """Of the difference of two pseudo-outcomes of the same rows under the same model."""
        drift = self.drift
        if other.drift is not None:
            drift = -other.drift if drift is None else drift - other.drift
        return PseudoOutcomeDesign(
            self.logging, self.model, self.weight - other.weight, drift, self.direct - other.direct
        )


@dataclass(frozen=True)
class Moments:
    """Of one pseudo-outcome, averaged over rows; the reward's own noise apart from the rest.

    Attributes:
        noise: variance that the rewards' coin tosses bring.
        rest: variance that contexts and actions bring.
        noise_skew: third central moment of the tosses.
        rest_skew: what is left of the third central moment.
        kurtosis: fourth cumulant of the tosses, for the reliability of an empirical variance.
    """

    noise: float
    rest: float
    noise_skew: float
    rest_skew: float
    kurtosis: float


def moments(design: Callable[[slice], PseudoOutcomeDesign], rows: int) -> Moments:
    """Over all rows, a block at a time."""
    total = np.zeros(5)
    means, spreads = np.empty(rows), np.empty(rows)
    for start in range(0, rows, _BLOCK):
        block = slice(start, min(start + _BLOCK, rows))
        given = design(block)
        toss = np.clip(given.model, 0.0, 1.0)
        toss = toss * (1 - toss)
        square = given.weight**2
        noise2 = given.logging * square * toss
        noise3 = noise2 * given.weight * (1 - 2 * np.clip(given.model, 0.0, 1.0))
        spread = noise2.sum(axis=1)
        mean = given.direct
        between2 = between3 = 0.0
        if given.drift is not None:
            shift = (given.logging * given.drift).sum(axis=1)
            off = given.drift - shift[:, None]
            mean = mean + shift
            variance = (given.logging * off**2).sum(axis=1)
            between2 = float(variance.sum())
            between3 = float((given.logging * off**3).sum() + 3 * (noise2 * off).sum())
            spread = spread + variance
        total += (
            float(noise2.sum()),
            between2,
            float(noise3.sum()),
            between3,
            float((noise2 * square * (1 - 3 * toss)).sum()),
        )
        means[block], spreads[block] = mean, spread
    noise, between, noise_skew, between_skew, kurtosis = total / rows
    centred = means - means.mean()
    return Moments(
        noise=noise,
        rest=between + float(centred.var(ddof=1)) if rows > 1 else between,
        noise_skew=noise_skew,
        rest_skew=between_skew + float(3 * (centred * spreads).mean() + (centred**3).mean()),
        kurtosis=max(kurtosis, 0.0),
    )
