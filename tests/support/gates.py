"""Worlds for the learning gate in which the true value of every action is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from scorer.bundle import Action, Feature
from scorer.learn.experience import Experience, State
from scorer.learn.gate.estimate import PolicyComparison
from scorer.learn.gate.judge import weigh
from scorer.learn.gate.settings import GateSettings
from scorer.learn.gate.verdict import JudgedBundle, Verdict
from scorer.learn.guardrails.settings import GuardrailSettings

COUNTRIES = ("NL", "DE", "FR", "ES")
K = 5
CHALLENGE = np.array([0.0, 0.0, 1.0, 0.0, 1.0])
ACTIONS = [
    Action(
        id=f"route={name}",
        factors={"route": name, "step": "up" if CHALLENGE[at] else "none"},
        features=[float(at)],
        attributes={"challenge": float(CHALLENGE[at])},
    )
    for at, name in enumerate("ABCDE")
]
FEATURES = [
    Feature(name="country", type="category", categories=list(COUNTRIES)),
    Feature(name="amount"),
]
DAY_MS = 86_400_000
START_MS = 20_000 * DAY_MS


def greedy(best: Any, n: int, epsilon: float) -> Any:
    """Return an epsilon-greedy pmf `[n, K]` with one greedy action per row."""
    pmf = np.full((n, K), epsilon / K)
    pmf[np.arange(n), best] += 1 - epsilon
    return pmf


def log(
    truth: Any,
    *,
    n: int,
    seed: int,
    epsilon: float = 0.3,
    best: Any = 0,
    missing: float = 0.0,
    days: float = 7.0,
) -> Experience:
    """Return decisions of an epsilon-greedy policy with success rates `truth[country, action]`."""
    rng = np.random.default_rng(seed)
    country = rng.integers(0, len(COUNTRIES), n)
    pmf = greedy(best, n, epsilon)
    action = (np.cumsum(pmf, axis=1) < rng.random(n)[:, None]).sum(axis=1).clip(max=K - 1)
    state = np.where(rng.random(n) < missing, State.MISSING, State.SETTLED).astype(np.int8)
    reward = (rng.random(n) < truth[country, action]).astype(np.float64)
    time = START_MS + np.sort(rng.integers(0, int(days * DAY_MS), n))
    return Experience(
        decision_id=np.array([f"d{i}" for i in range(n)]),
        entity=np.full(n, ""),
        time_ms=time,
        settled_ms=np.where(state == State.SETTLED, time + 1000, -1),
        context=np.column_stack([country, rng.gamma(2.0, 40.0, n)]).astype(np.float32),
        eligible=np.ones((n, K), dtype=bool),
        pmf=pmf.astype(np.float32),
        action=action,
        propensity=pmf[np.arange(n), action],
        reward=np.where(state == State.SETTLED, reward, np.nan),
        state=state,
        bundle=np.zeros(n, dtype=np.int64),
        lane=np.zeros(n, dtype=np.int64),
        bundles=("sha256:live",),
        lanes=("live",),
        actions=tuple(action.id for action in ACTIONS),
    )


def _logging(settled: Experience) -> Any:
    pmf = settled.pmf.astype(np.float64)
    pmf[np.arange(len(pmf)), settled.action] = settled.propensity
    return pmf


def judged(name: str, learned_until_ms: int | None = START_MS - 1) -> JudgedBundle:
    """Return a bundle that was trained before the log started."""
    digest = f"sha256:{name}"
    return JudgedBundle(name="pay", digest=digest, content=digest, learned_until_ms=learned_until_ms)


def weighed(
    logged: Experience,
    candidate: Any,
    truth: Any,
    *,
    live: Any = None,
    wrong: Any = 0.0,
    guardrails: GuardrailSettings | None = None,
    one: JudgedBundle | None = None,
    findings: Any = (),
    **gate: Any,
) -> Verdict:
    """Return the verdict on a candidate pmf `[K]` or `[n, K]`.

    The oracle predicts `truth` plus the error `wrong`, a number or `[K]`.
    """
    settled = logged.settled()
    country = settled.context[:, 0].astype(int)
    oracle = np.clip(truth[country] + wrong, 0, 1)
    n = len(settled)
    comparison = PolicyComparison(
        logged,
        settled,
        np.broadcast_to(np.asarray(candidate, dtype=np.float64), (n, K)),
        settled.pmf.astype(np.float64) if live is None else live,
        oracle,
        oracle,
        _logging(settled),
    )
    return weigh(
        comparison,
        one or judged("candidate"),
        judged("live"),
        GateSettings(**gate),
        guardrails or GuardrailSettings(),
        actions=ACTIONS,
        features=FEATURES,
        findings=findings,
        experience_digest="sha256:experience",
    )


def bundle(
    directory: Path,
    *,
    prefers: int,
    learned_until_ms: int | None = START_MS - 1,
    epsilon: float = 0.3,
    policy: dict[str, Any] | None = None,
) -> str:
    """Build a real bundle whose oracle prefers one action; return its digest."""
    from datetime import UTC, datetime

    import xgboost

    from scorer.bundle import Lineage, PolicySpec, SchemaFile, build_action_bundle

    rng = np.random.default_rng(prefers)
    rows = np.column_stack(
        [rng.integers(0, len(COUNTRIES), 2_000), rng.gamma(2.0, 40.0, 2_000), rng.integers(0, K, 2_000)]
    ).astype(np.float32)
    label = (rng.random(2_000) < np.where(rows[:, 2] == prefers, 0.9, 0.6)).astype(np.float32)
    types = ["c", "q", "c"]
    model = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 2, "nthread": 1, "seed": 0},
        xgboost.DMatrix(rows, label, feature_types=types, enable_categorical=True),
        num_boost_round=10,
    )
    metrics: dict[str, Any] = {}
    if learned_until_ms is not None:
        metrics = {"learning": {"decisions": {"first_ms": 0, "last_ms": learned_until_ms}}}
    route = Feature(name="route", type="category", categories=list("ABCDE"))
    return build_action_bundle(
        directory,
        name="pay",
        model=model,
        schema=SchemaFile(features=FEATURES, action_features=[route]),
        actions=ACTIONS,
        policy=PolicySpec(**(policy or {"rule": "epsilon_greedy", "epsilon": epsilon}), salt="0" * 32),
        training=rows[:1_500, :2],
        validation=rows[1_500:, :2],
        lineage=Lineage(
            data_digest="sha256:" + "0" * 64, code_version="test", run_id="test", metrics=metrics
        ),
        golden_cases=256,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    ).digest
