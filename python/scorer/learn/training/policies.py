"""From `[train.policy]` to the policy of a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from scorer.bundle import Cap, PolicySpec
from scorer.learn.training.settings import PolicySettings

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
