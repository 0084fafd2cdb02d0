"""Compute figures from the replies of the traffic, each with its number of payments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.errors import DemoError
from examples.demo.models import Trained
from examples.demo.replay import Batch, RoutingReplay, Swap
from examples.demo.traffic import Answers, Measured, Traffic
from examples.fraud.metrics import Ranking, ranking
from examples.fraud.transactions import Transactions
from examples.loop.baselines import Baseline, FixedRanking, Greedy, IssuerLinear, Policy, Uniform
from examples.loop.rules import IssuerRules
from examples.oracle import SimpleOracle
from examples.routing_log import RoutingLog
from examples.simulators.payments import Contexts, Floats, Payments
from examples.simulators.weeks import blocks
from scorer.learn import ope
from scorer.learn.experience import Experience
from scorer.learn.ope import Estimate, paired_difference, share
from scorer.v1 import control_pb2 as pb

Rows = npt.NDArray[np.intp]
PERCENTILES = (50.0, 99.0, 99.9)
ROUTING_LABEL = "off-policy estimate of the success rate per attempt; propensities estimated given retry"
GREEDY, UNIFORM, BASELINE, RANKING, RULES, LINEAR = (
    "action v2 without its exploration",
    "uniform choice",
    "the payment team's rule, as logged",
    "one fixed ranking",
    "rules per issuer",
    "linear model per issuer",
)


def latency(values: Sequence[float] | Sequence[int]) -> dict[str, float]:
    """Return p50, p99 and p99.9 of `values` in their own unit, and their number as `calls`."""
    measured = np.percentile(np.asarray(values, dtype=np.float64), PERCENTILES)
    return {
        **{
            f"p{percentile:g}": round(float(value), 3)
            for percentile, value in zip(PERCENTILES, measured, strict=True)
        },
        "calls": len(values),
    }


def latencies(measured: Measured) -> dict[str, dict[str, dict[str, float]]]:
    """Return by method the client latency in ms and the server's evaluation time in µs, if any."""
    return {
        method: {
            "client_ms": latency(values),
            **(
                {"evaluation_us": latency(measured.execution_us[method])}
                if method in measured.execution_us
                else {}
            ),
        }
        for method, values in measured.latency_ms.items()
    }


@dataclass(frozen=True)
class Reference:
    """A policy that is compared with the bandit on the same payments.

    Attributes:
        rate: its authorisation rate by the simulator's hidden truth.
        difference: the bandit's rate minus its own, payment by payment.
    """

    rate: Estimate
    difference: Estimate


@dataclass(frozen=True)
class Authorisation:
    """How often payments are authorised, under the served policy and under simpler ones.

    Rates are means of the simulator's hidden P(authorised | payment, action) over the payments that version 2
    decided, so their intervals reflect the variety of payments and not the randomness of single outcomes.

    Attributes:
        outcomes: version 2's rate by the simulated outcomes.
        first: version 1's rate by the simulated outcomes, on its own payments.
        served: version 2's rate by the hidden truth.
        references: by name, policies estimated from the log that trained version 2.
        best: rate of the best possible choice.
        logged: payments in that log.
    """

    outcomes: Estimate
    first: Estimate | None
    served: Estimate
    references: Mapping[str, Reference]
    best: float
    logged: int

    @property
    def own_part(self) -> Estimate:
        """Difference of the bandit and a linear model per issuer from the same log."""
        return self.references[LINEAR].difference

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        return {
            "served": self.served.as_dict(),
            "outcomes": self.outcomes.as_dict(),
            "first": self.first.as_dict() if self.first else None,
            "references": {
                name: {"rate": one.rate.as_dict(), "difference": one.difference.as_dict()}
                for name, one in self.references.items()
            },
            "best": self.best,
            "logged": self.logged,
        }


def authorisation(
    answers: Answers,
    contexts: Contexts,
    world: Payments,
    log: Experience,
    oracle: SimpleOracle,
    first: Rows,
    second: Rows,
) -> Authorisation:
    """Compare the served choices with policies that are estimated from the same log.

    Args:
        answers: replies for `n` payments.
        contexts: `[n]` contexts of the payments; their risk is replaced by the served one.
        world: the simulator.
        log: the experience that trained version 2.
        oracle: version 2.
        first: positions of the payments that version 1 decided.
        second: positions of the payments that version 2 decided; at least two.
    """
    given = replace(contexts.take(second), risk=answers.risk[second])
    policies: dict[str, Policy] = {
        GREEDY: Greedy(oracle),
        UNIFORM: Uniform(),
        BASELINE: Baseline(),
        RANKING: FixedRanking(log),
        RULES: IssuerRules(log),
        LINEAR: IssuerLinear(log),
    }
    served, best = np.empty(len(given)), np.empty(len(given))
    value = {name: np.empty(len(given)) for name in policies}
    for part in blocks(len(given)):
        some = given.take(part)
        truth = world.probability(some)
        served[part] = truth[np.arange(len(some)), answers.action[second[part]]]
        best[part] = np.where(some.eligible(), truth, -1.0).max(axis=1)
        for name, policy in policies.items():
            value[name][part] = (policy.pmf(some) * truth).sum(axis=1)
    return Authorisation(
        outcomes=_outcomes(answers, second),
        first=_outcomes(answers, first) if len(first) else None,
        served=_mean(served),
        references={
            name: Reference(_mean(values), paired_difference(served, values))
            for name, values in value.items()
        },
        best=float(best.mean()),
        logged=len(log),
    )


def _mean(values: Floats) -> Estimate:
    return paired_difference(values, 0.0)


def _outcomes(answers: Answers, rows: Rows) -> Estimate:
    return share(int(answers.authorised[rows].sum()), len(rows))


@dataclass(frozen=True)
class RoutingValue:
    """The estimated value of the served routing policy on the log.

    Attributes:
        logged: success rate per attempt, as logged.
        snipw: the served policy's, self-normalised.
        ipw: the same, not normalised.
        chosen: provider to the share of attempts for which the server drew it.
        logged_shares: provider to its share in the log.
    """

    logged: Estimate
    snipw: Estimate
    ipw: Estimate
    chosen: Mapping[str, float]
    logged_shares: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of summary.json."""
        return {
            "label": ROUTING_LABEL,
            "logged": self.logged.as_dict(),
            "snipw": self.snipw.as_dict(),
            "ipw": self.ipw.as_dict(),
            "chosen_shares": dict(self.chosen),
            "logged_shares": dict(self.logged_shares),
        }


def routing_value(log: RoutingLog, replayed: RoutingReplay) -> RoutingValue:
    """Estimate the value of the served probabilities on the replayed part of the log."""
    rows = replayed.rows
    provider, success = log.provider[rows], log.success[rows]
    logging = ope.estimated_pmf(provider, log.is_retry[rows], len(log.providers))
    logged = ope.Logged(
        action=provider,
        reward=success.astype(np.float64),
        propensity=logging[np.arange(len(rows)), provider],
        pmf=logging,
        clusters=log.purchase[rows],
    )
    served = ope.Target(logged, replayed.pmf, name="served")
    return RoutingValue(
        logged=share(int(success.sum()), len(rows)),
        snipw=ope.snipw(served),
        ipw=ope.ipw(served),
        chosen=_shares(replayed.chosen, log.providers),
        logged_shares=_shares(provider, log.providers),
    )


def disagreements(answers: Answers, bundles: Sequence[str], batches: Mapping[str, Floats]) -> tuple[int, int]:
    """Compare scores that were served one by one with the batch on the same bundle.

    Args:
        answers: replies for `n` payments.
        bundles: digests by their position in `answers.fraud_bundle`.
        batches: digest to `[n]` scores of the same payments in a batch.

    Returns:
        How many scores were compared, and how many of them differ.
    """
    compared = different = 0
    for number, digest in enumerate(bundles):
        if digest in batches:
            own = answers.fraud_bundle == number
            compared += int(own.sum())
            different += int((answers.score[own] != batches[digest][own]).sum())
    return compared, different


def answers_by_bundle(measured: Measured, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the number of replies by checkpoint and bundle."""
    return [
        {
            "checkpoint": checkpoint,
            "bundle": names.get(digest, "?"),
            "digest": digest,
            "answers": count,
        }
        for (checkpoint, digest), count in sorted(
            measured.answers.items(), key=lambda entry: (entry[0][0], names.get(entry[0][1], ""))
        )
    ]


def _shares(chosen: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, float]:
    counts = np.bincount(chosen, minlength=len(names)) / max(len(chosen), 1)
    return {name: float(count) for name, count in zip(names, counts, strict=True)}


@dataclass(frozen=True)
class Results:
    """Figures of the traffic.

    Attributes:
        ranking: measures of the served scores, by version.
        decisions: label to its share of the rows, version 2.
        compared: single scores that were compared with the batch on the same bundle; all were equal.
        authorisation: rates of the served policy and of others.
        distinct: number of different actions chosen.
        routing: the off-policy estimate, if there is a routing log.
        names: readable names by digest.
        measured: counts and times.
        seconds: length of the traffic.
        payments: payments sent.
        swap: its times.
        resident_mb: the server's resident memory after the traffic.
    """

    ranking: Mapping[str, Ranking]
    decisions: Mapping[str, float]
    compared: int
    authorisation: Authorisation
    distinct: int
    routing: RoutingValue | None
    names: Mapping[str, str]
    measured: Measured
    seconds: float
    payments: int
    swap: Swap
    resident_mb: float

    @property
    def calls(self) -> int:
        """Number of calls of the traffic."""
        return sum(len(values) for values in self.measured.latency_ms.values())

    def takeover_ms(self) -> dict[str, float]:
        """Return by checkpoint the ms from the change of the alias to the new bundle's first reply."""
        return {
            checkpoint: round((at - self.swap.ordered_at) * 1e3, 1)
            for checkpoint, at in self.swap.first_answer.items()
        }

    def summary(self) -> dict[str, Any]:
        """Return the entries of summary.json."""
        return {
            "fraud_as_served": {name: one.as_dict() for name, one in self.ranking.items()},
            "decisions": dict(self.decisions),
            "single_scores_equal_to_the_batch": self.compared,
            "latency": latencies(self.measured),
            "traffic": {
                "payments": self.payments,
                "calls": self.calls,
                "seconds": round(self.seconds, 2),
                "errors": sum(self.measured.errors.values()),
                "fallbacks": self.measured.fallbacks,
                "unlogged": self.measured.unlogged,
            },
            "authorisation": self.authorisation.as_dict(),
            "distinct_actions": self.distinct,
            "routing": self.routing.as_dict() if self.routing else None,
            "swap": {
                "ordered_at_s": round(self.swap.ordered_at, 3),
                "takeover_ms": self.takeover_ms(),
                "answers": answers_by_bundle(self.measured, self.names),
            },
            "resident_mb_after_traffic": round(self.resident_mb, 1),
        }


def evaluate(
    transactions: Transactions,
    tested: Rows,
    stream: Rows,
    trained: Trained,
    names: Mapping[str, str],
    second: str,
    traffic: Traffic,
    swap: Swap,
    batches: tuple[Batch, Batch],
    routing: RoutingValue | None,
    status: pb.GetStatusResponse,
) -> Results:
    """Compute the figures of the finished traffic.

    Args:
        transactions: all transactions.
        tested: rows scored in the batches.
        stream: rows of the payments, a subset of `tested`.
        trained: trained models.
        names: readable names by digest.
        second: digest of version 2 of the action bundle.
        traffic: finished traffic.
        swap: times of the swap.
        batches: batches of versions 1 and 2.
        routing: estimate on the routing log.
        status: status of the server after the traffic.

    Raises:
        DemoError: calls failed, replies fell back or were not logged, a single score differs from the batch
            on the same bundle, or version 2 decided fewer than two payments.
    """
    measured, answers = traffic.measured, traffic.answers
    place = np.searchsorted(tested, stream)
    compared, different = disagreements(
        answers, traffic.bundles, {batch.digest: batch.scores[place] for batch in batches}
    )
    for what, count in (
        ("calls failed", sum(measured.errors.values())),
        ("replies came from a fallback", measured.fallbacks),
        ("action decisions were not logged", measured.unlogged),
        ("single scores differ from the batch on the same bundle", different),
    ):
        if count:
            raise DemoError(f"{count} {what}; see server.log in the output folder")
    labels = np.array(batches[1].labels)
    fraud, customer, day = (getattr(transactions, column)[tested] for column in ("fraud", "customer", "day"))
    decided = answers.authorised >= 0
    by_second = answers.action_bundle == traffic.bundles.index(second)
    rows = np.flatnonzero(decided & by_second)
    if len(rows) < 2:
        raise DemoError(f"version 2 decided {len(rows)} payments; two are needed, so send more payments")
    return Results(
        ranking={
            name: ranking(batch.scores, fraud, customer, day)
            for name, batch in zip(("v1", "v2"), batches, strict=True)
        },
        decisions={
            label: share(int((labels == label).sum()), len(labels)).value
            for _, label in trained.fraud[1].thresholds
        },
        compared=compared,
        authorisation=authorisation(
            answers,
            traffic.contexts,
            traffic.world,
            trained.experience(until_ms=0),
            trained.oracle[1],
            np.flatnonzero(decided & ~by_second),
            rows,
        ),
        distinct=len(np.unique(answers.action[decided])),
        routing=routing,
        names=names,
        measured=measured,
        seconds=max(at for at, _, _ in measured.timeline),
        payments=traffic.done,
        swap=swap,
        resident_mb=status.resident_bytes / 2**20,
    )
