"""The demo's models: two versions of each, the second trained on later data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.narrate import Narrator
from examples.demo.plan import DemoPlan
from examples.fraud.split import Days, SplitPlan
from examples.fraud.training import FraudModel, FraudPlan, train_fraud
from examples.fraud.transactions import Transactions
from examples.oracle import train_oracle
from examples.routing_log import RoutingLog
from examples.simulators.actions import catalogue
from examples.simulators.payments import Logged, Payments, baseline_pmf, contexts, log_baseline
from examples.simulators.task import authorise_task, choices, context_rows
from scorer.learn.experience import Experience, State
from scorer.learn.oracle import Oracle, OraclePlan

# How much older the first version's data is, where the data is long enough.
DAYS_BETWEEN = 14
# What the routing oracle may learn from; the rest of the log judges.
ROUTING_TRAINING = 0.6


@dataclass(frozen=True)
class Trained:
    """Everything that was trained.

    Attributes:
        fraud: first and second version.
        oracle: first and second version.
        logged: the baseline's log that taught the oracles.
        logged_ms: `[n]` when each of its payments was made, Unix time.
        routing: for the real log, if there is one.
    """

    fraud: tuple[FraudModel, FraudModel]
    oracle: tuple[Oracle, Oracle]
    logged: Logged
    logged_ms: npt.NDArray[np.int64]
    routing: Oracle | None

    def experience(self, until_ms: int) -> Experience:
        """The baseline's log as learning reads logs, moved in time so that it ends at `until_ms`.

        The transactions are of another year; what the server decides comes right after them.
        """
        logged, n = self.logged, len(self.logged)
        time_ms = self.logged_ms + (until_ms - 1 - int(self.logged_ms.max()))
        parts = [logged.contexts.take(part) for part in np.array_split(np.arange(n), max(1, n // 8192))]
        return Experience(
            decision_id=np.char.add("baseline-", np.arange(n).astype(np.str_)),
            entity=np.full(n, ""),
            time_ms=time_ms,
            settled_ms=time_ms,
            context=context_rows(logged.contexts),
            eligible=np.concatenate([part.eligible() for part in parts]),
            pmf=np.concatenate([baseline_pmf(part).astype(np.float32) for part in parts]),
            action=logged.action,
            propensity=logged.propensity,
            reward=logged.authorised.astype(np.float64),
            state=np.full(n, State.SETTLED, dtype=np.int8),
            bundle=np.zeros(n, dtype=np.int64),
            lane=np.zeros(n, dtype=np.int64),
            bundles=("baseline",),
            lanes=("baseline",),
            actions=tuple(action.id for action in catalogue()),
        )

    def summary(self) -> dict[str, Any]:
        """For summary.json: what training itself measured, on held-out data."""
        return {
            "fraud": [model.metrics.as_dict() for model in self.fraud],
            "oracle": [dict(oracle.metrics) for oracle in self.oracle],
            "routing": dict(self.routing.metrics) if self.routing else None,
        }


def train_frauds(
    narrator: Narrator, transactions: Transactions, rows: npt.NDArray[np.float32], plan: DemoPlan, seed: int
) -> tuple[FraudModel, FraudModel]:
    """Trains the fraud model as it would have been made earlier, and as it is made now."""
    splits = SplitPlan()
    now = splits.last(transactions)
    apart = max(1, min(DAYS_BETWEEN, transactions.days - splits.least))
    digest = transactions.digest()
    models = []
    for name, split in (("v1", splits.earlier(transactions, apart)), ("v2", now)):
        with narrator.busy(f"fraud {name}: {plan.trees} trees of depth {plan.depth}"):
            training = FraudPlan(trees=plan.trees, depth=plan.depth, seed=seed)
            models.append(train_fraud(transactions, rows, split, training, splits.delay, digest))
        found = models[-1].metrics
        narrator.say(f"  {split.describe(transactions)}")
        narrator.say(
            f"  AUC {found.auc:.3f} · AUCPR {found.average_precision:.3f}"
            f" · card precision@100 {found.card_precision_100:.3f}"
            f" on {found.rows:,} transactions ({found.frauds} frauds)"
        )
    return models[0], models[1]


def log_payments(
    transactions: Transactions,
    rows: npt.NDArray[np.float32],
    fraud: FraudModel,
    world: Payments,
    plan: DemoPlan,
    seed: int,
) -> tuple[Logged, npt.NDArray[np.int64]]:
    """The baseline's log, and when each payment was made.

    The payments lie between the first fraud model's training and the test days; their risk is that
    model's score, which has not seen them.
    """
    days = Days(fraud.split.calibration.end, fraud.split.test.first)
    stream = days.rows(transactions)
    wanted = min(plan.second_log, len(stream))
    # Spread over the whole period, in order of time.
    stream = stream[np.unique(np.linspace(0, len(stream) - 1, wanted).astype(np.intp))]
    made = transactions.take(stream)
    given = contexts(made, fraud.scores(rows[stream]).astype(np.float32), seed)
    return log_baseline(world, given, seed), made.time_ms


def train_oracles(narrator: Narrator, logged: Logged, plan: DemoPlan, seed: int) -> tuple[Oracle, Oracle]:
    """Trains the action oracle on the log's beginning, and on all of it."""
    task = authorise_task()
    every = choices(logged)
    oracles = []
    for name, part in (("v1", every.take(slice(0, plan.first_log))), ("v2", every)):
        with narrator.busy(
            f"oracle {name}: {plan.trees} trees of depth {plan.depth} on {len(part):,} choices"
        ):
            digest = part.digest()
            oracles.append(train_oracle(task, part, digest, OraclePlan(plan.trees, plan.depth, seed=seed)))
        found = oracles[-1].metrics
        narrator.say(
            f"  held out: AUC {found['auc']:.3f} · log loss {found['log_loss']:.3f}"
            f" · authorised {found['mean_reward']:.1%}, predicted {found['mean_predicted']:.1%}"
        )
    return oracles[0], oracles[1]


def train_routing(narrator: Narrator, log: RoutingLog, plan: DemoPlan, seed: int) -> Oracle:
    """Trains the provider oracle on the log's beginning. Small: there are few rows and four actions."""
    training = log.choices(slice(0, int(len(log) * ROUTING_TRAINING)))
    with narrator.busy(f"provider oracle: 200 trees of depth 4 on {len(training):,} attempts"):
        oracle = train_oracle(
            log.task("action-route"),
            training,
            log.digest,
            OraclePlan(min(200, plan.trees), min(4, plan.depth), seed=seed),
        )
    narrator.say(f"  held out: AUC {oracle.metrics['auc']:.3f} · log loss {oracle.metrics['log_loss']:.3f}")
    return oracle


def train_all(
    narrator: Narrator,
    transactions: Transactions,
    rows: npt.NDArray[np.float32],
    routing: RoutingLog | None,
    world: Payments,
    plan: DemoPlan,
    seed: int,
) -> Trained:
    """Trains everything: fraud models, the baseline's log with their scores as risk, oracles on that log."""
    frauds = train_frauds(narrator, transactions, rows, plan, seed)
    with narrator.busy("payments under the baseline policy"):
        logged, logged_ms = log_payments(transactions, rows, frauds[0], world, plan, seed)
    return Trained(
        fraud=frauds,
        oracle=train_oracles(narrator, logged, plan, seed),
        logged=logged,
        logged_ms=logged_ms,
        routing=train_routing(narrator, routing, plan, seed) if routing else None,
    )
