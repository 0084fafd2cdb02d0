"""From answers to figures: what the replay showed, each number with what it rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from examples.demo.replay import RoutingReplay
from examples.demo.traffic import AUTHORISE, Answers, Measured
from examples.routing_log import RoutingLog
from examples.simulators.actions import catalogue
from examples.simulators.payments import Contexts, Logged, Payments, baseline_pmf, baseline_rule, draw
from scorer.learn import ope
from scorer.learn.ope import Estimate, paired_difference, share

PERCENTILES = (50.0, 99.0, 99.9)
ROUTING_LABEL = "off-policy estimate of the success rate per attempt; propensities estimated given retry"


def latency(values: Sequence[float] | Sequence[int]) -> dict[str, float]:
    """p50, p99, p99.9 and the number they rest on."""
    found = np.percentile(np.asarray(values, dtype=np.float64), PERCENTILES)
    return {
        **{
            f"p{percentile:g}": round(float(value), 3)
            for percentile, value in zip(PERCENTILES, found, strict=True)
        },
        "calls": len(values),
    }


def latencies(measured: Measured) -> dict[str, dict[str, dict[str, float]]]:
    """By method: what the client saw, and what the server says its evaluation took."""
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
class Authorisation:
    """How often payments were authorised, under the served policy and beside it.

    Attributes:
        served: as chosen by the server, measured in the environment.
        by_bundle: the same for each action bundle, by digest.
        logged: the baseline in its log, which taught the oracle (earlier payments).
        baseline: the baseline on the served payments, with the same luck.
        uplift: served minus baseline, payment by payment.
        rule: the baseline without its exploration, on the served payments.
        ceiling: the best possible choice, known only to the judge.
        expected: mean of what the oracle promised for its choices.
    """

    served: Estimate
    by_bundle: Mapping[str, Estimate]
    logged: Estimate
    baseline: Estimate
    uplift: Estimate
    rule: Estimate
    ceiling: float
    expected: float

    def as_dict(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "served": self.served.as_dict(),
            "by_bundle": {digest: found.as_dict() for digest, found in self.by_bundle.items()},
            "baseline_log": self.logged.as_dict(),
            "baseline_same_payments": self.baseline.as_dict(),
            "uplift_paired": self.uplift.as_dict(),
            "baseline_rule_only": self.rule.as_dict(),
            "ceiling": self.ceiling,
            "oracle_expected": self.expected,
        }


def authorisation(
    answers: Answers,
    given: Contexts,
    world: Payments,
    logged: Logged,
    bundles: Sequence[str],
    seed: int,
) -> Authorisation:
    """Compares the served choices with the baseline on equal payments and equal luck."""
    sent = np.flatnonzero(answers.authorised >= 0)
    given = replace(given.take(sent), risk=answers.risk[sent])
    authorised = answers.authorised[sent]
    rng = np.random.default_rng([seed, 99])
    theirs = world.authorised(given, draw(baseline_pmf(given), rng.random(len(given))))
    rule = world.authorised(given, baseline_rule(given))
    by_bundle = {}
    for number, digest in enumerate(bundles):
        own = answers.action_bundle[sent] == number
        if own.any():
            by_bundle[digest] = share(int(authorised[own].sum()), int(own.sum()))
    return Authorisation(
        served=share(int(authorised.sum()), len(sent)),
        by_bundle=by_bundle,
        logged=share(int(logged.authorised.sum()), len(logged)),
        baseline=share(int(theirs.sum()), len(sent)),
        uplift=paired_difference(authorised, theirs),
        rule=share(int(rule.sum()), len(sent)),
        ceiling=float(world.best(given).mean()),
        expected=float(answers.expected[sent].mean()),
    )


@dataclass(frozen=True)
class ActionUse:
    """One action: how often it was chosen and how it did, and how often the baseline chose it."""

    action: str
    share: float
    authorised: float
    baseline_share: float


def action_use(answers: Answers, logged: Logged, most: int = 10) -> tuple[list[ActionUse], int]:
    """The actions chosen most, and how many different ones were chosen at all."""
    sent = answers.action >= 0
    chosen, authorised = answers.action[sent], answers.authorised[sent]
    counts = Counter(chosen.tolist())
    theirs = np.bincount(logged.action, minlength=len(catalogue())) / len(logged)
    used = [
        ActionUse(
            action=catalogue()[index].id,
            share=count / len(chosen),
            authorised=float(authorised[chosen == index].mean()),
            baseline_share=float(theirs[index]),
        )
        for index, count in counts.most_common(most)
    ]
    return used, len(counts)


@dataclass(frozen=True)
class RoutingValue:
    """What the served routing policy would have earned on the log: an estimate, not a measurement.

    Attributes:
        logged: success rate per attempt, as logged.
        snipw: the served policy's, self-normalised.
        ipw: the same, not normalised.
        chosen: provider to the share of attempts that the server drew it for.
        logged_shares: provider to its share in the log.
        success: provider to its logged success rate.
    """

    logged: Estimate
    snipw: Estimate
    ipw: Estimate
    chosen: Mapping[str, float]
    logged_shares: Mapping[str, float]
    success: Mapping[str, float]

    def as_dict(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "label": ROUTING_LABEL,
            "logged": self.logged.as_dict(),
            "snipw": self.snipw.as_dict(),
            "ipw": self.ipw.as_dict(),
            "chosen_shares": dict(self.chosen),
            "logged_shares": dict(self.logged_shares),
            "logged_success": dict(self.success),
        }


def routing_value(log: RoutingLog, replayed: RoutingReplay) -> RoutingValue:
    """Judges the served probabilities on the replayed part of the log."""
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
        success={
            name: float(success[provider == code].mean()) if (provider == code).any() else float("nan")
            for code, name in enumerate(log.providers)
        },
    )


def disagreements(
    answers: Answers, bundles: Sequence[str], batches: Mapping[str, npt.NDArray[np.float64]]
) -> tuple[int, int]:
    """Scores served one by one against the same rows in a batch on the same bundle: (compared, different)."""
    compared = different = 0
    for number, digest in enumerate(bundles):
        if digest in batches:
            own = answers.fraud_bundle == number
            compared += int(own.sum())
            different += int((answers.score[own] != batches[digest][own]).sum())
    return compared, different


def answers_by_bundle(measured: Measured, names: Mapping[str, str]) -> list[dict[str, Any]]:
    """How many answers each bundle gave."""
    return [
        {
            "checkpoint": checkpoint,
            "bundle": names.get(digest, "?"),
            "digest": digest,
            "answers": count,
            "kind": "action" if checkpoint == AUTHORISE else "score",
        }
        for (checkpoint, digest), count in sorted(
            measured.answers.items(), key=lambda e: (e[0][0], names.get(e[0][1], ""))
        )
    ]


def _shares(codes: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, float]:
    counts = np.bincount(codes, minlength=len(names)) / max(len(codes), 1)
    return {name: float(count) for name, count in zip(names, counts, strict=True)}
