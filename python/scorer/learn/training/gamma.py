"""How greedy the inverse-gap rules may be: gamma from the oracle's measured excess error.

    gamma = c sqrt(K / E),    E = Brier(q) - floor

after FALCON (Simchi-Levi and Xu 2020), whose epochs are retrainings: E is the
squared error of the oracle beyond the noise. q are the out-of-fold
probabilities; the floor is their Brier score after an isotonic recalibration
on the same rows, so E is never negative, and large where the oracle is wrong
about levels or has seen little. E does not see what no recalibration could
mend (a feature that is missing), so c is a setting. Growth per generation is
capped: logs of a greedier policy teach less, and a run of lucky weeks must not
end exploration.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.learn.training.generation import Generation
from scorer.learn.training.settings import PolicySettings

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class GammaChoice:
    """Gamma and what it came from.

    Attributes:
        gamma: to be used.
        measured: c sqrt(K / E) before caps.
        excess: E.
        brier: of the out-of-fold probabilities.
        floor: the same after recalibration.
        actions: K, the mean number of eligible actions.
        previous: the previous generation's gamma; None in the first.
        limited_by: `growth`, `first` or nothing.
    """

    gamma: float
    measured: float
    excess: float
    brier: float
    floor: float
    actions: float
    previous: float | None
    limited_by: str

    def as_dict(self) -> dict[str, Any]:
        """Return the choice as plain JSON for the lineage."""
        return asdict(self)


def choose_gamma(
    probability: Floats,
    reward: Floats,
    actions: float,
    policy: PolicySettings,
    previous: Generation | None = None,
) -> GammaChoice:
    """Gamma from `[n]` out-of-fold probabilities and what came true."""
    brier, floor = excess_error(probability, reward)
    # One decision's worth of doubt is left however well the oracle does.
    excess = max(brier - floor, 1.0 / len(reward))
    measured = policy.gamma_scale * math.sqrt(actions / excess)
    gamma, limited_by = measured, ""
    before = None if previous is None else previous.gamma
    if before is not None and gamma > policy.gamma_growth * before:
        gamma, limited_by = policy.gamma_growth * before, "growth"
    elif before is None and policy.gamma_first is not None and gamma > policy.gamma_first:
        gamma, limited_by = policy.gamma_first, "first"
    return GammaChoice(gamma, measured, excess, brier, floor, actions, before, limited_by)


def excess_error(probability: Floats, reward: Floats) -> tuple[float, float]:
    """Brier score, and what is left of it after isotonic recalibration."""
    from sklearn.isotonic import IsotonicRegression

    mended = IsotonicRegression(y_min=0.0, y_max=1.0).fit_transform(probability, reward)
    return float(((probability - reward) ** 2).mean()), float(((mended - reward) ** 2).mean())
