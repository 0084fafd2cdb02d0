"""Choices and outcomes of simulated payments, and the times at which outcomes are known.

`decide` returns decisions with all outcomes that will ever be known. `as_of` returns what a learner may know
of them at a given time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.simulators.actions import catalogue, codes
from examples.simulators.payments import Floats, Ints, draw
from examples.simulators.weeks import HOUR_MS, Arrivals, Market, PolicyFunction, blocks
from scorer.learn.experience import Experience, State

# No outcome is later than this. An outcome that is not known by then is missing.
LATEST_HOURS = 72.0
# By `three_ds` (none, frictionless, challenge): mean hours of a prompt outcome; the share of late outcomes,
# which are uniform between 1 hour and the latest; the share of outcomes that are never reported.
PROMPT_HOURS = np.array([1 / 30, 1 / 10, 1 / 3])
LATE_SHARE = np.array([0.05, 0.10, 0.20])
MISSING_SHARE = np.array([0.017, 0.020, 0.026])
# A challenge that a shopper has left fails after a timeout, so failures under 3DS take longer.
FAILURE_TAKES = np.array([1.0, 2.0, 4.0])


def decide(
    market: Market,
    arrivals: Arrivals,
    policy: PolicyFunction | npt.NDArray[np.floating[Any]],
    bundle: str,
    lane: str = "live",
    truth: Floats | None = None,
) -> Experience:
    """Simulate the decisions of a policy and their outcomes.

    Args:
        market: The simulated market.
        arrivals: `n` payments.
        policy: The policy, or its `[n, K]` probabilities.
        bundle: Name of the policy's bundle in the log.
        lane: Name of the policy's lane in the log.
        truth: `market.truth(arrivals)`, if it has been computed.

    Returns:
        Every decision with its final outcome. `settled_ms` may be in the future, which `as_of` hides.
    """
    n, of_action = len(arrivals), codes()[:, 0]
    pmf = np.empty((n, len(of_action)), dtype=np.float32)
    action, worked = np.empty(n, dtype=np.int64), np.empty(n, dtype=bool)
    for part in blocks(n):
        some = arrivals.take(part)
        exact = policy(some.rows, arrivals.eligible[part]) if callable(policy) else policy[part]
        pmf[part] = exact
        action[part] = draw(np.asarray(pmf[part], dtype=np.float64), some.luck[:, 0])
        hidden = market.truth(some) if truth is None else truth[part]
        worked[part] = some.contexts.chance < hidden[np.arange(len(some)), action[part]]
    known, settled_ms = _known(arrivals, of_action[action], worked)
    return Experience(
        decision_id=np.char.add(f"payment-{market.seed}-", arrivals.number.astype(np.str_)),
        entity=arrivals.entity,
        time_ms=arrivals.time_ms,
        settled_ms=settled_ms,
        context=arrivals.rows,
        eligible=arrivals.eligible,
        pmf=pmf,
        action=action,
        propensity=pmf[np.arange(n), action].astype(np.float64),
        reward=np.where(known, worked.astype(np.float64), np.nan),
        state=np.where(known, State.SETTLED, State.MISSING).astype(np.int8),
        bundle=np.zeros(n, dtype=np.int64),
        lane=np.zeros(n, dtype=np.int64),
        bundles=(bundle,),
        lanes=(lane,),
        actions=tuple(action.id for action in catalogue()),
    )


def as_of(experience: Experience, now_ms: int) -> Experience:
    """Return what is known at `now_ms` of the decisions made before it."""
    seen = experience.take(experience.time_ms < now_ms)
    settled = (seen.state == State.SETTLED) & (seen.settled_ms <= now_ms)
    waiting = ~settled & (seen.time_ms + int(LATEST_HOURS * HOUR_MS) > now_ms)
    state = np.where(settled, State.SETTLED, np.where(waiting, State.IN_FLIGHT, State.MISSING))
    return replace(
        seen,
        settled_ms=np.where(settled, seen.settled_ms, -1),
        reward=np.where(settled, seen.reward, np.nan),
        state=state.astype(np.int8),
    )


def _known(
    arrivals: Arrivals, three_ds: Ints, worked: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Return whether each outcome will be reported, and when (-1: never)."""
    late, how_late, reported = arrivals.luck[:, 1], arrivals.luck[:, 2], arrivals.luck[:, 3]
    mean = PROMPT_HOURS[three_ds] * np.where(worked, 1.0, FAILURE_TAKES[three_ds])
    hours = np.where(
        late < LATE_SHARE[three_ds], 1 + how_late * (LATEST_HOURS - 1), -mean * np.log1p(-how_late)
    )
    known = reported >= MISSING_SHARE[three_ds]
    after = (np.minimum(hours, LATEST_HOURS) * HOUR_MS).astype(np.int64)
    return known, np.where(known, arrivals.time_ms + after, -1)
