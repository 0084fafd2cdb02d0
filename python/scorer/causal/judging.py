"""Which checks make an estimate unreliable, each by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scorer.causal.results import Bounded, DeltaCV, DoubtReason, PlaceboResult
from scorer.causal.settings import CausalSettings
from scorer.stats.distributions import normal_quantile

_REVERSION_ERRORS = 3.0
_REVERSION_SHARE = 0.5

REASONS = {
    "pre-period difference": "values before adoption differ by more than the limit",
    "pre-trend": "the difference changes before adoption",
    "late growth": "the difference grows in the last months before adoption, as the effect would",
    "placebo in time": "an earlier, pretended adoption has an effect",
    "placebo in space": "a pretended adoption of controls has an effect",
    "balance": "a matching variable differs after matching",
    "overlap": "too many adopters have no neighbour",
    "too few units": "too few adopters or controls",
    "chain": "adopters adopt other products more often than controls",
    "regression to the mean": "its possible size is a large part of the effect",
    "hidden bias": "a small hidden bias would explain the effect",
}
"""All reasons by name."""


def judge(result: DeltaCV, settings: CausalSettings) -> DeltaCV:
    """Return the result with its verdict."""
    reasons = tuple(DoubtReason(name, text) for name, text in _reasons(result, settings))
    return replace(result, verdict="unreliable" if reasons else "reliable", reasons=reasons)


def _reasons(result: DeltaCV, settings: CausalSettings) -> Iterator[tuple[str, str]]:
    money = f" {result.currency}" if result.currency else ""
    whole = [one for one in result.effects if not one.cohort]
    worst = max(whole, key=lambda one: abs(one.pre_difference))
    if abs(worst.pre_difference) > settings.pre_difference:
        yield (
            "pre-period difference",
            f"values differ by {worst.pre_difference:+,.2f}{money} over the {settings.pre_months} "
            "months before "
            f"adoption; the limit is {settings.pre_difference:g}",
        )
    yield from _tested("pre-trend", "the difference changes by {value}{money} per month before adoption",
                       result.trend, settings, money)  # fmt: skip
    longest = max(whole, key=lambda one: one.horizon)
    if result.growth.p_value < settings.growth_level and _excludes_zero(longest.mean):
        yield (
            "late growth",
            f"in the last {settings.placebo_months} months before adoption, the difference changes by "
            f"{result.growth.value:+.2%} of the value per month (p = {result.growth.p_value:.2g}). A cause "
            "that is not in the data may have begun then",
        )
    yield from _tested(
        "placebo in time",
        f"adoption pretended {settings.placebo_months} months earlier has an effect of {{value}}{{money}}",
        result.in_time, settings, money,
    )  # fmt: skip
    yield from _tested("placebo in space", "adoption pretended for controls has an effect of {value}{money}",
                       result.in_space, settings, money)  # fmt: skip
    for one in result.balance:
        if abs(one.after) > settings.balance:
            yield (
                "balance",
                f'"{one.name}" differs by {one.after:+.2f} standard deviations after matching; the limit is '
                f"{settings.balance:g}",
            )
    for effect in whole:
        over = f"over {effect.horizon} months"
        share = effect.matched / max(effect.adopters, 1)
        if share < settings.least_matched:
            yield (
                "overlap",
                f"{over}, {share:.0%} of {effect.adopters:,} adopters have neighbours; at least "
                f"{settings.least_matched:.0%} are needed",
            )
        fewest = min(float(effect.matched), effect.effective_controls)
        if fewest < settings.fewest_units:
            yield (
                "too few units",
                f"{over}, there are {effect.matched:,} matched adopters and {effect.effective_controls:,.0f} "
                f"effective controls; at least {settings.fewest_units} of each are needed",
            )
        # The interval contains both ends. Where it also contains zero, no effect is claimed.
        back = effect.by_value - effect.by_level
        large = max(_REVERSION_ERRORS * effect.error, _REVERSION_SHARE * abs(effect.mean.value))
        if abs(back) > large and _excludes_zero(effect.mean):
            yield (
                "regression to the mean",
                f"{over}, it can explain {back:+,.2f}{money} of {effect.by_value:+,.2f}",
            )
    # All products together raise a false alarm at the level of one placebo.
    critical = normal_quantile(1.0 - settings.placebo_level / max(len(result.chains), 1))
    for product in result.chains:
        if product.adopters - product.controls > settings.chain and product.z > critical:
            yield (
                "chain",
                f'{product.adopters:.0%} of adopters adopt "{product.name}" at about the same time, and '
                f"{product.controls:.0%} of controls",
            )
    for bound in result.hidden_bias:
        if bound.gamma is not None and bound.gamma < settings.least_gamma:
            yield (
                "hidden bias",
                f"over {bound.horizon} months, an odds ratio of {bound.gamma:.2f} would explain the "
                "effect; at "
                f"least {settings.least_gamma:g} is needed",
            )


def _excludes_zero(mean: Bounded) -> bool:
    return mean.low is not None and mean.high is not None and not mean.low <= 0.0 <= mean.high


def _tested(
    name: str, text: str, found: PlaceboResult | None, settings: CausalSettings, money: str
) -> Iterator[tuple[str, str]]:
    if found is not None and found.p_value < settings.placebo_level:
        yield name, text.format(value=f"{found.value:+,.3g}", money=money) + f" (p = {found.p_value:.2g})"
