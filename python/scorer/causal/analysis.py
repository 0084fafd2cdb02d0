"""The analysis in order: match, estimate, check, judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scorer.causal import checks
from scorer.causal.estimate import (
    MatchedEffect,
    Pairs,
    block_covariates,
    interval,
    mean_effect,
    median_effect,
    studentised,
)
from scorer.causal.findings import CausalFinding
from scorer.causal.judging import judge
from scorer.causal.matching import MatchedBlock, match
from scorer.causal.panel import NEVER, Panel
from scorer.causal.reading import read_panel
from scorer.causal.regression import Reversion, reversion
from scorer.causal.results import AdoptionEffect, Bounded, DeltaCV, HiddenBias, LoggedEstimate
from scorer.causal.settings import CausalSettings
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

NOTES = (
    "The value is cumulative: it contains what adopters gain through other products that they adopt at about "
    "the same time.",
    "The values of several products are not additive: a unit that adopts two gains less than the sum.",
    "The value is that of past adopters, not of units that have not adopted.",
)


def delta_cv(
    data: str | Path | pa.Table,
    settings: CausalSettings | None = None,
    *,
    adoptions: str | Path | pa.Table | None = None,
    logged: Sequence[LoggedEstimate] = (),
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> DeltaCV:
    """Estimate what adopting a product is worth, from values by unit and month.

    Args:
        data: Parquet or CSV file, directory of Parquet files, or Arrow table: one row per unit and month.
        settings: The settings; None: all defaults.
        adoptions: Table of adoptions; None: the one of the settings, or a column of `data`.
        logged: Estimates from logged propensities, shown beside.
        advance: Receives the step and the share of it that is done.

    Raises:
        DataError: A table cannot be read, or breaks a rule that rejects it.
    """
    chosen = settings or CausalSettings()
    read = read_panel(data, chosen, adoptions=adoptions, advance=advance)
    return analyse(
        read.panel,
        chosen,
        product=read.product,
        currency=read.currency,
        findings=read.findings.rows(),
        logged=logged,
        advance=advance,
    )


def analyse(
    panel: Panel,
    settings: CausalSettings,
    *,
    product: str = "",
    currency: str = "",
    findings: Sequence[CausalFinding] = (),
    logged: Sequence[LoggedEstimate] = (),
    advance: Callable[[str, float], None] = lambda _step, _share: None,
) -> DeltaCV:
    """Estimate the effect of adoption on a panel.

    Raises:
        DataError: No adopter has a neighbour within the threshold.
    """
    blocks = _blocks(panel, settings, advance)
    matched = [one for one in blocks if len(one.treated)]
    if not matched:
        raise DataError(
            f"no adopter has a neighbour within the threshold {settings.threshold:g}; raise `threshold`, or "
            "leave out matching features or columns of `exact`"
        )
    months = len(panel.months)
    horizons = [
        one for one in sorted(settings.horizons) if any(block.month + one <= months for block in matched)
    ]
    cohorts = list(dict.fromkeys(_cohort(panel, one, settings) for one in matched))
    effects: list[AdoptionEffect] = []
    bias: list[HiddenBias] = []
    reversions: dict[tuple[int, ...], Reversion] = {}
    for at, horizon in enumerate(horizons):
        advance("estimating effects", at / len(horizons))
        estimated = _estimate(panel, blocks, settings, horizon, "", reversions)
        if estimated is None:
            continue
        effects.append(estimated[0])
        _, pairs, effect, significant = estimated
        gamma = checks.gamma(pairs, effect, 1.0 - settings.confidence) if significant else None
        bias.append(HiddenBias(horizon, gamma))
    if len(cohorts) > 1:
        for cohort in cohorts:
            own = [one for one in blocks if _cohort(panel, one, settings) == cohort]
            found = [_estimate(panel, own, settings, horizon, cohort, reversions) for horizon in horizons]
            effects += [one[0] for one in found if one is not None]
    advance("checking", 0.0)
    longest = max(horizons)
    complete = [one for one in matched if one.month + longest <= months]
    pairs, full = Pairs.of(matched, panel.size), Pairs.of(complete, panel.size)
    chained, several = checks.chains(panel, full, settings.pre_months, longest)
    advance("checking", 0.3)
    in_time = checks.in_time(panel, matched, settings)
    advance("checking", 0.6)
    in_space = checks.in_space(panel, complete, settings, longest)
    advance("checking", 0.9)
    whole = next(one for one in effects if one.horizon == longest and not one.cohort)
    result = DeltaCV(
        product=product,
        currency=currency,
        months=(panel.months[0], panel.months[-1]),
        units=panel.size,
        controls=int((panel.adopted == NEVER).sum()),
        effects=tuple(effects),
        balance=checks.balance(panel, pairs),
        path=checks.path(panel, full, -settings.pre_months, longest, settings.confidence),
        trend=checks.trend(panel, pairs, settings.pre_months),
        growth=checks.growth(panel, pairs, settings.pre_months, settings.placebo_months, whole.mean.value),
        in_time=in_time,
        in_space=in_space,
        reversion=whole.by_value - whole.by_level,
        chains=chained,
        several=several,
        hidden_bias=tuple(bias),
        verdict="reliable",
        reasons=(),
        findings=tuple(findings),
        notes=NOTES,
        settings=settings.model_dump(mode="json"),
        logged=tuple(logged),
    )
    advance("checking", 1.0)
    return judge(result, settings)


def _blocks(
    panel: Panel, settings: CausalSettings, advance: Callable[[str, float], None]
) -> list[MatchedBlock]:
    months = len(panel.months)
    last = months - min(settings.horizons)
    adopted = [int(one) for one in np.unique(panel.adopted) if settings.pre_months <= one <= last]
    if not adopted:
        raise DataError(
            f"no adopter has {settings.pre_months} months before and {min(settings.horizons)} from "
            "adoption on; "
            "give more months, or lower `pre_months` and `horizons`"
        )
    controls = panel.controls
    if not len(controls):
        raise DataError("no controls: every unit adopted the product; add units that never did")
    blocks = []
    for at, month in enumerate(adopted):

        def forward(share: float, at: int = at) -> None:
            advance("matching", (at + share) / len(adopted))

        forward(0.0)
        window = (month - settings.pre_months, month)
        blocks.append(
            match(panel, panel.adopters(month), controls, window, settings, month=month, advance=forward)
        )
    return blocks


def _cohort(panel: Panel, block: MatchedBlock, settings: CausalSettings) -> str:
    if settings.cohort == "all":
        return ""
    label = panel.months[block.month]
    if settings.cohort == "month" or "-" not in label:
        return label
    year, month = label.split("-")
    return f"{year}-Q{(int(month) - 1) // 3 + 1}"


def _estimate(
    panel: Panel,
    blocks: Sequence[MatchedBlock],
    settings: CausalSettings,
    horizon: int,
    cohort: str,
    reversions: dict[tuple[int, ...], Reversion],
) -> tuple[AdoptionEffect, Pairs, MatchedEffect, bool] | None:
    """Return the effect, what it is made of, and whether it is significant among all horizons.

    Regression to the mean is the same for all horizons with the same months of adoption; `reversions` keeps
    it.
    """
    complete = [one for one in blocks if one.month + horizon <= len(panel.months)]
    matched = [one for one in complete if len(one.treated)]
    if not matched:
        return None
    pairs = Pairs.of(matched, panel.size)
    own, other = pairs.totals(panel, 0, horizon)
    effect = mean_effect(pairs, own, other, *block_covariates(panel, pairs), panel.size)
    months = tuple(one.month for one in matched)
    if months not in reversions:
        reversions[months] = reversion(panel, pairs, panel.controls, settings.seed)
    back, back_error = (one * horizon for one in reversions[months].mean())
    by_level = (effect.value - back, math.hypot(effect.error, back_error))
    low, high = sorted(((effect.value, effect.error), by_level))
    draws = studentised(effect.contributions, settings.replications, settings.seed)
    bounds: tuple[float, float] | tuple[None, None] = (None, None)
    significant = False
    if len(own) > 1:
        bounds = interval(low, high, draws, settings.confidence)
        # With an interval for each horizon, one of them would exclude zero by chance more often than stated.
        below, above = interval(low, high, draws, 1.0 - (1.0 - settings.confidence) / len(settings.horizons))
        significant = not below <= 0.0 <= above
    median = median_effect(pairs, effect, settings.confidence)
    before_own, before_other = pairs.totals(panel, -settings.pre_months, 0)
    plain = own - pairs.average(other)
    naive, before = _unmatched(panel, matched, horizon, settings.pre_months)
    return (
        AdoptionEffect(
            horizon=horizon,
            cohort=cohort,
            adopters=sum(len(one.treated) + len(one.alone) for one in complete),
            matched=len(own),
            mean=Bounded(effect.value - back / 2, *bounds),
            by_value=effect.value,
            by_level=effect.value - back,
            error=effect.error,
            median=Bounded(*median),
            plain_mean=float(plain.mean()),
            plain_median=float(np.median(plain)),
            pre_difference=float((before_own - pairs.average(before_other)).mean()),
            naive=naive,
            differences=naive - before * horizon / settings.pre_months,
            effective_controls=effect.effective_controls,
        ),
        pairs,
        effect,
        significant,
    )


def _unmatched(
    panel: Panel, blocks: Sequence[MatchedBlock], horizon: int, before: int
) -> tuple[float, float]:
    """Return mean differences to all controls: after adoption, and before it."""
    controls = panel.controls
    after, earlier, count = 0.0, 0.0, 0
    for one in blocks:
        treated = np.concatenate([one.treated, one.alone])
        for begin, end, which in ((one.month, one.month + horizon, 0), (one.month - before, one.month, 1)):
            difference = panel.total(treated, begin, end).mean() - panel.total(controls, begin, end).mean()
            if which:
                earlier += float(difference) * len(treated)
            else:
                after += float(difference) * len(treated)
        count += len(treated)
    return after / count, earlier / count
