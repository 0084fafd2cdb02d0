"""A result as one HTML page."""

from __future__ import annotations

from scorer.causal.figures import causal_charts
from scorer.causal.results import AdoptionEffect, Bounded, DeltaCV, PlaceboResult
from scorer.report import GOOD, STOP, Mark, ReportPage


def causal_page(found: DeltaCV) -> str:
    """Return a self-contained page: the verdict, the effects, the checks, and what the data had."""
    what = f"Value of adopting {found.product}" if found.product else "Value of adoption"
    page = ReportPage(
        what,
        f"Cumulative value per adopter against units that never adopted, {found.months[0]} to "
        f"{found.months[1]}. "
        f"{found.units:,} units, of which {found.controls:,} never adopted.",
    )
    reliable = found.verdict == "reliable"
    page.verdict(
        "The estimate passed all checks." if reliable else "The estimate is unreliable.",
        [f"{one.name}: {one.text}." for one in found.reasons] + list(found.notes),
        GOOD if reliable else STOP,
    )
    whole = [one for one in found.effects if not one.cohort]
    money = f" {found.currency}" if found.currency else ""
    page.tiles(
        [(_amount(one.mean) + money, f"mean over {one.horizon} months, per adopter") for one in whole]
        + [(_amount(one.median) + money, f"median over {one.horizon} months") for one in whole]
        + [
            (
                f"{one.mean.value * one.matched:+,.0f}{money}",
                f"{one.horizon} months, all {one.matched:,} matched adopters",
            )
            for one in whole
        ]
    )
    for chart in causal_charts(found):
        page.plotly(chart.name, chart.title, chart.words, chart.plotly, chart.columns, chart.rows)
    page.section(
        "Effects",
        "The mean is the middle between two assumptions: adopters were selected by their observed "
        "value, or by their "
        "lasting level (regression to the mean taken off). Its interval covers both.",
    )
    page.table(EFFECT_COLUMNS, [effect_row(one) for one in found.effects])
    page.section("Checks", f"Tests at the level {float(found.settings.get('placebo_level', 0.01)):g}.")
    page.table(CHECK_COLUMNS, [(*row[:-1], _mark(row[-1])) for row in check_rows(found)], texts=(0, 1, 2))
    if found.logged:
        page.section(
            "From logged propensities",
            "Where actions were drawn with known propensities, this is better evidence than matching. "
            "It is the "
            "difference in reward per decision, not in value per unit.",
        )
        page.table(
            ("estimate", "decisions", "difference per decision"),
            [(one.name, f"{one.decisions:,}", _amount(one.difference, 5)) for one in found.logged],
        )
    page.section("What the data had")
    page.table(
        ("finding", "effect", "count", "rule", "examples"),
        [
            (one.name, one.effect, f"{one.count:,}", one.rule, ", ".join(one.examples))
            for one in found.findings
        ],
        texts=(0, 1, 3, 4),
    )
    page.section("Settings")
    page.table(("key", "value"), [(name, str(value)) for name, value in found.settings.items()], texts=(0, 1))
    return page.text()


EFFECT_COLUMNS = (
    "cohort",
    "months",
    "adopters",
    "matched",
    "mean",
    "by value",
    "by level",
    "median",
    "without correction",
    "difference before",
)
"""Headings of the table of effects."""
CHECK_COLUMNS = ("check", "finding", "limit", "state")
"""Headings of the table of checks."""


def effect_row(one: AdoptionEffect) -> tuple[str, ...]:
    """Return the cells of an effect, by `EFFECT_COLUMNS`."""
    return (
        one.cohort or "all",
        str(one.horizon),
        f"{one.adopters:,}",
        f"{one.matched:,}",
        _amount(one.mean),
        f"{one.by_value:+,.2f}",
        f"{one.by_level:+,.2f}",
        _amount(one.median),
        f"{one.plain_mean:+,.2f}",
        f"{one.pre_difference:+,.2f}",
    )


def check_rows(found: DeltaCV) -> list[tuple[str, str, str, str]]:
    """Return the cells of all checks, by `CHECK_COLUMNS`: the last is `passed` or `failed`."""
    settings = found.settings
    failed = {one.name for one in found.reasons}
    whole = [one for one in found.effects if not one.cohort]
    level = f"p of at least {float(settings.get('placebo_level', 0.01)):g}"

    def test(one: PlaceboResult | None) -> str:
        if one is None:
            return "too few units for a test"
        return f"{one.value:+,.3g} ± {one.error:,.2g} (p = {one.p_value:.2g}), {one.units:,} units"

    growth = found.growth
    worst = max(abs(one.pre_difference) for one in whole)
    largest = max((abs(one.after) for one in found.balance), default=0.0)
    matched = min(one.matched / max(one.adopters, 1) for one in whole)
    fewest = min(min(float(one.matched), one.effective_controls) for one in whole)
    chain = max((one.adopters - one.controls for one in found.chains), default=0.0)
    gammas = ", ".join(
        f"{one.horizon} months: {'not significant' if one.gamma is None else f'{one.gamma:.2f}'}"
        for one in found.hidden_bias
    )
    rows = [
        ("pre-period difference", f"{worst:,.2f}", f"at most {settings['pre_difference']:g}"),
        ("pre-trend", test(found.trend), level),
        ("late growth", f"{growth.value:+.2%} ± {growth.error:.2%} of the value per month "
         f"(p = {growth.p_value:.2g})",
         f"p of at least {settings['growth_level']:g}, if the effect excludes zero"),
        ("placebo in time", test(found.in_time), level),
        ("placebo in space", test(found.in_space), level),
        ("balance", f"{largest:.3f} standard deviations", f"at most {settings['balance']:g}"),
        ("overlap", f"{matched:.1%} of adopters matched", f"at least {settings['least_matched']:.0%}"),
        ("too few units", f"{fewest:,.0f}", f"at least {settings['fewest_units']}"),
        ("chain", f"{chain:+.1%} to controls; {found.several:.0%} adopt others",
         f"at most {settings['chain']:.0%}"),
        ("regression to the mean", f"{found.reversion:+,.2f}", "half of an effect, or three errors"),
        ("hidden bias", gammas, f"an odds ratio of at least {settings['least_gamma']:g}"),
    ]  # fmt: skip
    return [(*row, "failed" if row[0] in failed else "passed") for row in rows]


def _mark(state: str) -> Mark:
    return Mark(state, GOOD if state == "passed" else STOP)


def _amount(one: Bounded, digits: int = 2) -> str:
    bounds = (
        "" if one.low is None or one.high is None else f" ({one.low:+,.{digits}f} to {one.high:+,.{digits}f})"
    )
    return f"{one.value:+,.{digits}f}{bounds}"
