"""Small logs of two actions, defined cell by cell."""

from __future__ import annotations

import numpy as np

from scorer.learn.experience import Experience, State


def two_actions_logged(eligible, pmf, action, *, propensity=None, time_ms=None) -> Experience:
    """Return an experience of the actions "a" and "b". Masks and pmfs are `[n, 2]`; every reward is 1."""
    n = len(action)
    action = np.array(action)
    pmf = np.array(pmf, dtype=np.float32)
    own = pmf[np.arange(n), action].astype(np.float64)
    return Experience(
        decision_id=np.array([f"d{i}" for i in range(n)]),
        entity=np.full(n, ""),
        time_ms=np.arange(n) if time_ms is None else np.array(time_ms),
        settled_ms=np.arange(n),
        context=np.zeros((n, 1), dtype=np.float32),
        eligible=np.array(eligible, dtype=bool),
        pmf=pmf,
        action=action,
        propensity=own if propensity is None else np.array(propensity),
        reward=np.ones(n),
        state=np.full(n, State.SETTLED, dtype=np.int8),
        bundle=np.zeros(n, dtype=np.int64),
        lane=np.zeros(n, dtype=np.int64),
        bundles=("sha256:b",),
        lanes=("live",),
        actions=("a", "b"),
    )
