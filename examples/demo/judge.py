"""Everything found out in the replay, in one place: for the terminal, the summary and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.errors import DemoError
from examples.demo.models import Trained
from examples.demo.replay import Batch, Swap
from examples.demo.results import (
    ActionUse,
    Authorisation,
    RoutingValue,
    action_use,
    answers_by_bundle,
    authorisation,
    disagreements,
    latencies,
)
from examples.demo.traffic import Measured, Traffic
from examples.fraud.metrics import Ranking, ranking
from examples.fraud.transactions import Transactions
from examples.simulators.payments import Logged
from scorer.learn.ope import share
from scorer.v1 import control_pb2 as pb

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Findings:
    """What the replay showed.

    Attributes:
        ranking: measures of the scores as served, by version.
        scores: the served scores, by version.
        fraud: labels of the same rows.
        bands: thresholds of the second version.
        decisions: label to the share of rows, second version.
        unary_compared: single answers compared with the batch on the same bundle.
        unary_different: of which different; must be 0.
        authorisation: rates, served and beside it.
        used: the actions chosen most.
        distinct: different actions chosen at all.
        logged: the baseline's log.
        routing: the off-policy estimate, if there is a routing log.
        names: digest to a name for people.
        measured: counts and times.
        seconds: length of the traffic.
        payments: paid for.
        swap: its moments.
        status: the server's own words at the end.
    """

    ranking: Mapping[str, Ranking]
    scores: Mapping[str, npt.NDArray[np.float64]]
    fraud: npt.NDArray[np.int64]
    bands: Sequence[tuple[float, str]]
    decisions: Mapping[str, float]
    unary_compared: int
    unary_different: int
    authorisation: Authorisation
    used: Sequence[ActionUse]
    distinct: int
    logged: Logged
    routing: RoutingValue | None
    names: Mapping[str, str]
    measured: Measured
    seconds: float
    payments: int
    swap: Swap
    status: pb.GetStatusResponse

    @property
    def errors(self) -> int:
        """Calls that failed."""
        return sum(self.measured.errors.values())

    @property
    def calls(self) -> int:
        """Calls made in the traffic."""
        return sum(len(values) for values in self.measured.latency_ms.values())

    @property
    def resident_mb(self) -> float:
        """Of the server, after the traffic."""
        return self.status.resident_bytes / 2**20

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "fraud_as_served": {name: found.as_dict() for name, found in self.ranking.items()},
            "decisions": dict(self.decisions),
            "single_and_batch": {"compared": self.unary_compared, "different": self.unary_different},
            "latency": latencies(self.measured),
            "traffic": {
                "payments": self.payments,
                "calls": self.calls,
                "seconds": round(self.seconds, 2),
                "errors": self.errors,
                "fallbacks": self.measured.fallbacks,
                "unlogged": self.measured.unlogged,
            },
            "authorisation": self.authorisation.as_dict(),
            "actions": [vars(use) for use in self.used],
            "distinct_actions": self.distinct,
            "routing": self.routing.as_dict() if self.routing else None,
            "swap": {
                "ordered_at_s": round(self.swap.ordered_at, 3),
                "takeover_ms": {
                    checkpoint: round((at - self.swap.ordered_at) * 1e3, 1)
                    for checkpoint, at in self.swap.first_answer.items()
                },
                "answers": answers_by_bundle(self.measured, self.names),
            },
            "resident_mb_after_traffic": round(self.resident_mb, 1),
        }


def judge(
    transactions: Transactions,
    judged: Rows,
    stream: Rows,
    trained: Trained,
    names: Mapping[str, str],
    traffic: Traffic,
    swap: Swap,
    batches: tuple[Batch, Batch],
    routing: RoutingValue | None,
    status: pb.GetStatusResponse,
    seed: int,
) -> Findings:
    """Turns answers into findings.

    Args:
        transactions: all of them.
        judged: rows scored in the batches.
        stream: rows paid for, a subset of `judged`.
        trained: the models.
        names: digest to a name for people.
        traffic: finished.
        swap: its moments.
        batches: under the first and under the second version.
        routing: estimate on the routing log.
        status: the server's, at the end.
        seed: of the baseline's draws.

    Raises:
        DemoError: answers failed, fell back, were not logged, or a single
            answer differs from the batch on the same bundle.
    """
    measured, answers = traffic.measured, traffic.answers
    place = np.searchsorted(judged, stream)
    compared, different = disagreements(
        answers, traffic.bundles, {batch.digest: batch.scores[place] for batch in batches}
    )
    for what, count in (
        ("calls failed", sum(measured.errors.values())),
        ("answers came from a fallback", measured.fallbacks),
        ("action decisions were not logged", measured.unlogged),
        ("single scores differ from the batch on the same bundle", different),
    ):
        if count:
            raise DemoError(f"{count} {what}; see server.log in the output folder")
    labels = np.array(batches[1].labels)
    fraud, customer, day = (getattr(transactions, column)[judged] for column in ("fraud", "customer", "day"))
    used, distinct = action_use(answers, trained.logged)
    return Findings(
        ranking={
            name: ranking(batch.scores, fraud, customer, day)
            for name, batch in zip(("v1", "v2"), batches, strict=True)
        },
        scores={"v1": batches[0].scores, "v2": batches[1].scores},
        fraud=fraud,
        bands=trained.fraud[1].thresholds,
        decisions={
            label: share(int((labels == label).sum()), len(labels)).value
            for _, label in trained.fraud[1].thresholds
        },
        unary_compared=compared,
        unary_different=different,
        authorisation=authorisation(
            answers, traffic.contexts, traffic.world, trained.logged, traffic.bundles, seed
        ),
        used=used,
        distinct=distinct,
        logged=trained.logged,
        routing=routing,
        names=names,
        measured=measured,
        seconds=max(at for at, _, _ in measured.timeline),
        payments=traffic.done,
        swap=swap,
        status=status,
    )
