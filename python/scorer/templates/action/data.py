"""Write synthetic decisions of a uniform policy with their rewards: python data.py FILE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from scorer.learn import experience_files
from scorer.learn.experience import Experience, State

ROWS, DAYS = 6_000, 28
DAY_MS = 86_400_000
START_MS = 1_767_225_600_000
CATALOGUE = Path(__file__).parent / "task/@NAME@/actions.json"


def decisions(rows: int = ROWS, seed: int = 7) -> Experience:
    """Return decisions in the order of time, each with its action, propensity and reward.

    Args:
        rows: Number of decisions.
        seed: Seed of the random numbers.
    """
    random = np.random.default_rng(seed)
    actions = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    amount = np.round(random.gamma(1.5, 60.0, rows), 2)
    issuer = random.integers(0, 3, rows)
    is_retry = random.random(rows) < 0.1
    pmf = np.full((rows, len(actions)), 1 / len(actions))
    action = random.integers(0, len(actions), rows)
    codes = np.array([one["features"] for one in actions])[action]
    # The issuers differ in how they treat a challenge and an exemption.
    odds = (
        1.0
        + np.array([-1.5, 0.5, 1.5])[issuer] * codes[:, 0]
        + np.array([0.8, -0.5, 0.0])[issuer] * codes[:, 1]
    )
    reward = random.random(rows) < 1 / (1 + np.exp(amount / 400 + is_retry - odds))
    time_ms = START_MS + np.sort(random.integers(0, DAYS * DAY_MS, rows))
    return Experience(
        decision_id=np.array([f"payment-{row}" for row in range(rows)]),
        entity=np.array([f"shopper-{one}" for one in random.integers(0, rows // 4, rows)]),
        time_ms=time_ms,
        settled_ms=time_ms + 60_000,
        context=np.stack([amount, issuer, is_retry], axis=1).astype(np.float32),
        eligible=np.ones((rows, len(actions)), bool),
        pmf=pmf.astype(np.float32),
        action=action,
        propensity=pmf[np.arange(rows), action],
        reward=reward.astype(np.float64),
        state=np.full(rows, State.SETTLED, dtype=np.int8),
        bundle=np.zeros(rows, dtype=np.int64),
        lane=np.zeros(rows, dtype=np.int64),
        bundles=("uniform",),
        lanes=("live",),
        actions=tuple(one["id"] for one in actions),
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.parent.mkdir(parents=True, exist_ok=True)
    experience_files.write(decisions(), target)
