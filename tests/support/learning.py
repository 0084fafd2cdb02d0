"""A small world for learning: three actions, two context columns, a hidden truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from examples.columns import column
from scorer.bundle import Action
from scorer.learn.experience import Experience, State
from scorer.learn.oracle import OracleTask

DAY_MS = 86_400_000
START_MS = 1_767_225_600_000


def small_task(actions: int = 3, factor: str = "route") -> OracleTask:
    """Return a task with the context (amount, country) and one action per route."""
    names = tuple("ABCDEFGH"[:actions])
    return OracleTask(
        name="small",
        context=(
            column("amount", minimum=-10.0, maximum=10.0),
            column("country", "category", ("NL", "DE")),
        ),
        action=(column(f"action_{factor}", "category", names),),
        actions=tuple(
            Action(
                id=f"{factor}={name}",
                factors={factor: name},
                features=[float(code)],
                attributes={"fee": float(code)},
            )
            for code, name in enumerate(names)
        ),
    )


def contexts(count: int, seed: int = 0) -> Any:
    """Return `[count, 2]`: an amount from -3 to 3, and a country."""
    random = np.random.default_rng([seed, 1])
    return np.stack([random.uniform(-3, 3, count), random.integers(0, 2, count)], axis=1).astype(np.float32)


def even(count: int, actions: int = 3) -> Any:
    """Return a uniform pmf, `[count, actions]`."""
    return np.full((count, actions), 1.0 / actions)


def crossing(context: Any) -> Any:
    """Return the true rewards `[n, 3]`: A is best for small amounts, B for large ones, C never."""
    x = context[:, :1]
    return 1 / (1 + np.exp(-np.concatenate([0.5 - x, 0.5 + x, -0.5 + 0 * x], axis=1)))


def logged(
    count: int,
    *,
    truth: Callable[[Any], Any] = crossing,
    pmf: Callable[[Any], Any] | None = None,
    days: float = 28.0,
    seed: int = 0,
) -> Experience:
    """Return settled decisions over some days under a logging policy, which is uniform by default."""
    random = np.random.default_rng([seed, 2])
    context = contexts(count, seed)
    reward = truth(context)
    actions = reward.shape[1]
    probabilities = np.asarray(even(count, actions) if pmf is None else pmf(context), dtype=np.float64)
    chosen = (probabilities.cumsum(axis=1) < random.random(count)[:, None]).sum(axis=1)
    row = np.arange(count)
    time_ms = START_MS + np.sort(random.integers(0, int(days * DAY_MS), count))
    task = small_task(actions)
    return Experience(
        decision_id=np.array([f"d{at}" for at in row]),
        entity=np.array([f"shopper-{at % (count // 2 or 1)}" for at in row]),
        time_ms=time_ms,
        settled_ms=time_ms + 60_000,
        context=context,
        eligible=probabilities > 0,
        pmf=probabilities.astype(np.float32),
        action=chosen,
        propensity=probabilities[row, chosen],
        reward=(random.random(count) < reward[row, chosen]).astype(np.float64),
        state=np.full(count, State.SETTLED, dtype=np.int8),
        bundle=np.zeros(count, dtype=np.int64),
        lane=np.zeros(count, dtype=np.int64),
        bundles=("logger",),
        lanes=("live",),
        actions=tuple(action.id for action in task.actions),
    )
