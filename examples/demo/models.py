"""Models of the demo, in two versions. Version 2 is trained on later data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.output import Output
from examples.demo.plan import DemoPlan
from examples.fraud.split import Days, SplitPlan
from examples.fraud.training import FraudModel, FraudPlan, train_fraud
from examples.fraud.transactions import Transactions
from examples.oracle import OraclePlan, SimpleOracle, train_oracle
from examples.routing_log import RoutingLog
from examples.simulators.actions import catalogue
from examples.simulators.payments import Logged, Payments, baseline_pmf, contexts, log_baseline
from examples.simulators.task import authorise_task, choices, context_rows
from scorer.learn.experience import Experience, State

# Days by which the first version's data is older, if there are enough days.
DAYS_BETWEEN = 14
# Share of the routing log that trains the provider oracle; the rest evaluates it.
ROUTING_TRAINING = 0.6


@dataclass(frozen=True)
class Trained:
    """The trained models and the log that trained them.

    Attributes:
        fraud: version 1 and 2.
        oracle: version 1 and 2.
        logged: the baseline's log, the training data of the oracles.
        logged_ms: `[n]` Unix times of its payments in milliseconds.
        routing: oracle of the real routing log, if there is one.
    """

    fraud: tuple[FraudModel, FraudModel]
    oracle: tuple[SimpleOracle, SimpleOracle]
    logged: Logged
    logged_ms: npt.NDArray[np.int64]
    routing: SimpleOracle | None

    def experience(self, until_ms: int) -> Experience:
        """Return the baseline's log as experience, shifted so that it ends at `until_ms`.

        The transactions are of another year. The server's decisions follow directly after the shifted ones.

        Args:
            until_ms: Unix time in milliseconds.
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
        """Return the entry of summary.json: metrics of the training on held-out data."""
        return {
            "fraud": [model.metrics.as_dict() for model in self.fraud],
            "oracle": [dict(oracle.metrics) for oracle in self.oracle],
            "routing": dict(self.routing.metrics) if self.routing else None,
        }


def train_frauds(
    output: Output, transactions: Transactions, rows: npt.NDArray[np.float32], plan: DemoPlan, seed: int
) -> tuple[FraudModel, FraudModel]:
    """Train the fraud model twice: on older days (version 1) and on the latest ones (version 2)."""
    splits = SplitPlan()
    latest = splits.last(transactions)
    apart = max(1, min(DAYS_BETWEEN, transactions.days - splits.least))
    digest = transactions.digest()
    models = []
    for name, split in (("v1", splits.earlier(transactions, apart)), ("v2", latest)):
        with output.busy(f"training fraud {name}"):
            training = FraudPlan(trees=plan.trees, depth=plan.depth, seed=seed)
            model = train_fraud(transactions, rows, split, training, splits.delay, digest)
        models.append(model)
        measured = model.metrics
        output.line(
            f"fraud {name}: {plan.trees} trees of depth {plan.depth}; AUC {measured.auc:.3f},"
            f" AUCPR {measured.average_precision:.3f} on {measured.rows:,} later transactions"
            f" ({measured.frauds} frauds); {split.describe(transactions)}"
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
    """Simulate the baseline's log; return it with the Unix times of its payments in milliseconds.

    The payments are between the training days of the first fraud model and the test days. Their risk is the
    score of that model, which was not trained on them.
    """
    days = Days(fraud.split.calibration.end, fraud.split.test.first)
    stream = days.rows(transactions)
    wanted = min(plan.second_log, len(stream))
    # Spread over the whole period, in order of time.
    stream = stream[np.unique(np.linspace(0, len(stream) - 1, wanted).astype(np.intp))]
    payments = transactions.take(stream)
    given = contexts(payments, fraud.scores(rows[stream]).astype(np.float32), seed)
    return log_baseline(world, given, seed), payments.time_ms


def train_oracles(
    output: Output, logged: Logged, plan: DemoPlan, seed: int
) -> tuple[SimpleOracle, SimpleOracle]:
    """Train the action oracle on the log's beginning (version 1) and on all of it (version 2)."""
    task = authorise_task()
    every = choices(logged)
    oracles = []
    for name, part in (("v1", every.take(slice(0, plan.first_log))), ("v2", every)):
        with output.busy(f"training action {name}"):
            oracle = train_oracle(task, part, part.digest(), OraclePlan(plan.trees, plan.depth, seed=seed))
        oracles.append(oracle)
        _print_oracle(output, f"action {name}", oracle, len(part), "logged choices")
    return oracles[0], oracles[1]


def _print_oracle(output: Output, name: str, oracle: SimpleOracle, rows: int, what: str) -> None:
    measured = oracle.metrics
    output.line(
        f"{name}: {oracle.plan.trees} trees of depth {oracle.plan.depth} on {rows:,} {what};"
        f" held out: AUC {measured['auc']:.3f}, mean reward {measured['mean_reward']:.1%},"
        f" predicted {measured['mean_predicted']:.1%}"
    )


def train_routing(output: Output, log: RoutingLog, plan: DemoPlan, seed: int) -> SimpleOracle:
    """Train the provider oracle on the log's beginning. It is small: there are few rows and four actions."""
    training = log.choices(slice(0, int(len(log) * ROUTING_TRAINING)))
    with output.busy("training the provider oracle"):
        oracle = train_oracle(
            log.task("action-route"),
            training,
            log.digest,
            OraclePlan(min(200, plan.trees), min(4, plan.depth), seed=seed),
        )
    _print_oracle(output, "provider v1", oracle, len(training), "attempts")
    return oracle


def train_all(
    output: Output,
    transactions: Transactions,
    rows: npt.NDArray[np.float32],
    routing: RoutingLog | None,
    world: Payments,
    plan: DemoPlan,
    seed: int,
) -> Trained:
    """Train the fraud models, then the oracles on the baseline's log, whose risk is a fraud model's score."""
    frauds = train_frauds(output, transactions, rows, plan, seed)
    with output.busy("simulating payments under the baseline policy"):
        logged, logged_ms = log_payments(transactions, rows, frauds[0], world, plan, seed)
    return Trained(
        fraud=frauds,
        oracle=train_oracles(output, logged, plan, seed),
        logged=logged,
        logged_ms=logged_ms,
        routing=train_routing(output, routing, plan, seed) if routing else None,
    )
