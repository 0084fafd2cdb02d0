"""A real routing log: the value of each provider alone, and of a capped policy.

The log contains 26,000 card payment attempts with four providers (January 2019). It contains no propensities.
They are estimated as shares given retry or not. The part therefore also shows what they must not depend on:
Cramer's V between provider and covariate within first attempts and retries, which is near 0 for randomised
choices. All attempts at one purchase count as one draw. The capped policy learns on the first half of the log
which provider is best per card and 3DS, gives it at most half of all attempts, and is evaluated on the second
half.
"""

from __future__ import annotations

import math
import sys

import numpy as np

from examples.datasets import ROUTING, dataset
from examples.routing_log import RoutingLog, read_routing
from loadtests.figures import Figures
from loadtests.learning.options import Options
from scorer.learn import ope

_COMMAND = "make bench-learning ARGS=routing"
_CAP = 0.5
# By convention, Cramer's V is negligible below this value.
_BALANCED = 0.1


def run(figures: Figures, options: Options) -> None:
    """Measure the balance first, because the values have no meaning without it, then the values."""
    del options
    file = dataset(ROUTING)
    if not file.is_file():
        sys.stdout.write(f"   skipped: the routing log is not at {file}\n")
        return
    log = read_routing(file)
    for name, (strength, chance) in balance(log).items():
        figures.add(
            name=f"balance: Cramer's V of provider and {name}",
            ours=strength,
            unit="V",
            target=_BALANCED,
            command=_COMMAND,
            note=f"given retry or not; {chance:.3f} would be expected of random choices",
        )
    shares = np.bincount(log.provider, minlength=len(log.providers)) / len(log)
    logged = _logged(log, slice(None))
    measured = ope.snipw(ope.Target(logged, np.asarray(logged.pmf)))
    figures.add(
        name="success per attempt as logged",
        ours=100 * measured.value,
        unit="%",
        higher_is_better=True,
        command=_COMMAND,
        note=f"{_interval(measured)}; {len(log):,} attempts",
    )
    for code, name in enumerate(log.providers):
        alone = np.zeros_like(logged.pmf)
        alone[:, code] = 1
        found = ope.snipw(ope.Target(logged, alone, name=name))
        figures.add(
            name=f"success per attempt, always {name}",
            ours=100 * found.value,
            unit="%",
            higher_is_better=True,
            command=_COMMAND,
            note=f"{_interval(found)}; {100 * shares[code]:.0f} % of attempts as logged, "
            f"mean weight {found.mean_weight:.2f}, {found.effective_rows:,.0f} effective attempts",
        )
    _capped(figures, log)


def balance(log: RoutingLog) -> dict[str, tuple[float, float]]:
    """Return, by covariate, Cramer's V with the provider and its mean under independence.

    Both are computed within first attempts and retries.
    """
    amount = log.context[:, 0]
    covariates = {
        "amount (fifths)": np.searchsorted(np.quantile(amount, [0.2, 0.4, 0.6, 0.8]), amount),
        "hour (four-hour blocks)": log.context[:, 1] // 4,
        "weekday": log.context[:, 2],
        "country": log.context[:, 3],
        "card": log.context[:, 4],
        "3DS": log.context[:, 5],
    }
    found = {}
    for name, values in covariates.items():
        codes = np.unique(values, return_inverse=True)[1]
        statistic = freedom = 0.0
        for retry in (0, 1):
            rows = log.is_retry == retry
            table = np.zeros((len(log.providers), codes.max() + 1))
            np.add.at(table, (log.provider[rows], codes[rows]), 1)
            table = table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]
            expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / table.sum()
            statistic += float(((table - expected) ** 2 / expected).sum())
            freedom += (table.shape[0] - 1) * (table.shape[1] - 1)
        # The limit avoids a division by zero for a covariate with one value.
        smaller = max(1, min(len(log.providers), int(codes.max()) + 1) - 1)
        found[name] = (math.sqrt(statistic / len(log) / smaller), math.sqrt(freedom / len(log) / smaller))
    return found


def _logged(log: RoutingLog, rows: slice) -> ope.Logged:
    provider, retry = log.provider[rows], log.is_retry[rows]
    pmf = ope.estimated_pmf(provider, retry, len(log.providers))
    return ope.Logged(
        action=provider,
        reward=log.success[rows].astype(np.float64),
        propensity=pmf[np.arange(len(provider)), provider],
        pmf=pmf,
        clusters=log.purchase[rows],
    )


def _capped(figures: Figures, log: RoutingLog) -> None:
    """Measure a policy that ranks providers on the first half, each with at most half of the attempts."""
    middle = len(log) // 2
    # All attempts of a purchase belong to the same half.
    while log.purchase[middle] == log.purchase[middle - 1]:
        middle += 1
    cell = (log.context[:, 4] * 2 + log.context[:, 5]).astype(np.int64)
    first, second = slice(0, middle), slice(middle, len(log))
    pmf = np.zeros((len(log) - middle, len(log.providers)))
    for code in np.unique(cell[second]):
        rows = cell[first] == code
        tried = np.bincount(log.provider[first][rows], minlength=len(log.providers))
        won = np.bincount(
            log.provider[first][rows], weights=log.success[first][rows], minlength=len(log.providers)
        )
        best = np.argsort(-(won + 1) / (tried + 5), kind="stable")
        pmf[cell[second] == code, best[0]] = _CAP
        pmf[cell[second] == code, best[1]] = 1 - _CAP
    logged = _logged(log, second)
    target = ope.Target(logged, pmf, name="capped")
    found = ope.snipw(target)
    now = ope.snipw(ope.Target(logged, np.asarray(logged.pmf)))
    difference = ope.paired(found, now)
    shares = pmf.mean(axis=0)
    used = ", ".join(f"{name} {100 * share:.0f} %" for name, share in zip(log.providers, shares, strict=True))
    figures.add(
        name=f"success per attempt, no provider above {100 * _CAP:.0f} % of attempts",
        ours=100 * found.value,
        unit="%",
        peer="as logged, second half",
        theirs=100 * now.value,
        higher_is_better=True,
        command=_COMMAND,
        note=f"{_interval(found)}; {100 * difference.value:+.1f} points "
        f"({100 * difference.low:+.1f} to {100 * difference.high:+.1f}); {used}",
    )
    figures.add(
        name="largest share of a provider in the capped policy",
        ours=100 * float(shares.max()),
        unit="%",
        target=100 * _CAP,
        command=_COMMAND,
    )


def _interval(found: ope.Estimate) -> str:
    return f"{100 * found.low:.1f} to {100 * found.high:.1f}"
