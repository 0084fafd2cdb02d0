"""From `[train.policy]` to the policy of a bundle, and how greedy its inverse-gap rules may be."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

from scorer.bundle import Cap, PolicySpec
from scorer.learn.training.generation import Generation
from scorer.learn.training.settings import PolicySettings
from scorer.stats.arrays import Floats

# Stands for gamma where weights are judged before anything is measured.
_FIRST_GAMMA = 100.0


def policy_spec(
    policy: PolicySettings, gamma: float, members: int, salt_from: str, caps: Sequence[Cap] = ()
) -> PolicySpec:
    """The rule with its own setting alone, floors, caps and the key of the draw.

    Args:
        policy: the settings.
        gamma: of the inverse-gap rules.
        members: voters of the bagging rule.
        salt_from: what the key is derived from; policies with the same key draw alike.
        caps: prices on attributes of actions.
    """
    own: dict[str, float | int] = {}
    if policy.rule == "epsilon_greedy":
        own["epsilon"] = policy.epsilon
    elif policy.rule == "softmax":
        own["inverse_temperature"] = policy.inverse_temperature
    elif policy.rule in {"squarecb", "fastcb"}:
        own["gamma"] = gamma
    elif policy.rule == "loss_ratio":
        own["exponent"] = policy.exponent
    elif policy.rule == "bagging":
        own["voters"] = members
    return PolicySpec.model_validate(
        {
            "rule": policy.rule,
            **own,
            "floor": policy.floor,
            "action_floors": policy.action_floors,
            "caps": list(caps),
            "salt": hashlib.sha256(salt_from.encode()).hexdigest()[:32],
        }
    )


def judging_spec(policy: PolicySettings, gamma: float | None, caps: Sequence[Cap] = ()) -> PolicySpec:
    """The rule that progressive validation puts on each candidate.

    Gamma is the previous generation's; bagging, whose members are trained once the weights are
    chosen, is judged as epsilon-greedy.
    """
    rule = policy.model_copy(update={"rule": "epsilon_greedy"}) if policy.rule == "bagging" else policy
    return policy_spec(rule, gamma or policy.gamma_first or _FIRST_GAMMA, 0, "judging", caps)


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


def choose_gamma(
    probability: Floats,
    reward: Floats,
    actions: float,
    policy: PolicySettings,
    previous: Generation | None = None,
) -> GammaChoice:
    """Choose gamma from the oracle's measured excess error: `gamma = c sqrt(K / E)`, `E = Brier(q) - floor`.

    After FALCON (Simchi-Levi and Xu, 2020), whose epochs are retrainings: E is the squared error of the
    oracle beyond the noise. The floor is the Brier score after an isotonic recalibration on the same rows,
    so E is never negative, and large where the oracle is wrong about levels or has seen little. E does not
    see what no recalibration could correct (a feature that is missing), so c is a setting. Growth per
    generation is capped: logs of a greedier policy teach less, and a run of lucky weeks must not end
    exploration.

    Args:
        probability: `[n]` out-of-fold probabilities q of the actions taken.
        reward: `[n]` 0 or 1.
        actions: K, the mean number of eligible actions.
        policy: c and the caps.
        previous: the generation before; None: this is the first.
    """
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
