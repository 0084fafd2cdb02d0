"""Tests of Delta CV: matching and estimates against naive references, simulators, bad input, the command."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from examples.simulators.adoption import AdoptionWorld, simulate_adoption
from scorer.causal import checks
from scorer.causal import settings as causal_settings
from scorer.causal.analysis import analyse, delta_cv
from scorer.causal.estimate import Pairs, interval, mean_effect, median_effect, studentised
from scorer.causal.judging import judge
from scorer.causal.matching import MatchedBlock, match, variables
from scorer.causal.merchants import MerchantSettings, merchant_tables
from scorer.causal.notebook import delta_cv as in_notebook
from scorer.causal.page import causal_page, check_rows
from scorer.causal.panel import NEVER, Panel
from scorer.causal.reading import read_panel
from scorer.causal.regression import reversion
from scorer.causal.results import Bounded, ChainedProduct, DeltaCV, from_document, read_result
from scorer.causal.settings import CausalSettings
from scorer.cli import app
from scorer.config.problems import InvalidSettingsError
from scorer.learn.errors import DataError

SMALL = CausalSettings(replications=199)


def world(**changes: object) -> AdoptionWorld:
    return replace(AdoptionWorld(units=1_500, adopting=3, share=0.12, seed=5), **changes)  # type: ignore[arg-type]


def random_panel(seed: int, units: int = 60) -> Panel:
    pick = np.random.default_rng(seed)
    adopted = np.where(pick.random(units) < 0.3, 12, NEVER)
    adopted[:2] = (12, NEVER)
    return Panel(
        months=tuple(f"2024-{at:02d}" for at in range(1, 13))
        + tuple(f"2025-{at:02d}" for at in range(1, 13)),
        values=pick.gamma(2.0, 3.0, (units, 24)).astype(np.float32),
        adopted=adopted.astype(np.int64),
        features={"visits": pick.poisson(4.0, (units, 24)).astype(np.float32)},
        groups=pick.integers(0, 2, units),
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 6), st.floats(0.05, 2.0))
def test_neighbours_are_those_of_a_brute_force_search(seed: int, neighbours: int, threshold: float) -> None:
    """Each adopter has the nearest controls of its group within the threshold, in order of distance."""
    panel = random_panel(seed)
    chosen = CausalSettings(neighbours=neighbours, threshold=threshold)
    treated, controls = panel.adopters(12), panel.controls
    block = match(panel, treated, controls, (0, 12), chosen, month=12)
    assert panel.groups is not None
    weights = np.sqrt(np.array([2.0, 1.0]) / 3.0)

    def scaled(rows: np.ndarray) -> np.ndarray:
        raw = variables(panel, rows, 0, 12)
        return np.stack([scale.apply(raw[:, at]) for at, scale in enumerate(block.scales)], axis=1) * weights

    expected = {}
    for unit in treated:
        distances = np.linalg.norm(scaled(controls) - scaled(np.array([unit])), axis=1)
        fits = (distances <= threshold) & (panel.groups[controls] == panel.groups[unit])
        order = np.argsort(np.where(fits, distances, np.inf), kind="stable")[:neighbours]
        expected[unit] = [controls[at] for at in order if fits[at]]
    found = {
        unit: [one for one in row if one >= 0]
        for unit, row in zip(block.treated, block.neighbours, strict=True)
    }
    assert found == {unit: row for unit, row in expected.items() if row}
    assert sorted(block.alone) == sorted(unit for unit, row in expected.items() if not row)


def test_a_pretended_adopter_is_not_its_own_neighbour() -> None:
    panel = random_panel(3)
    panel = replace(panel, groups=None)
    block = match(panel, panel.controls, panel.controls, (0, 12), CausalSettings(threshold=9.0), month=12)
    assert (block.neighbours != block.treated[:, None]).all()
    assert block.neighbours.shape[1] == 10 and (block.neighbours >= 0).all()


def test_without_regressors_the_effect_is_the_mean_of_differences() -> None:
    """Compare with a loop over adopters, and the error with a sum over units."""
    panel = replace(random_panel(7), groups=None)
    block = match(panel, panel.adopters(12), panel.controls, (0, 12), CausalSettings(neighbours=3), month=12)
    pairs = Pairs.of([block], panel.size)
    own, other = pairs.totals(panel, 0, 12)
    nothing = np.empty((len(own), 0)), np.empty((len(other), 0))
    effect = mean_effect(pairs, own, other, *nothing, panel.size)
    total = panel.values[:, 12:24].sum(axis=1, dtype=np.float64)
    differences = []
    for unit, row in zip(block.treated, block.neighbours, strict=True):
        differences.append(total[unit] - total[row[row >= 0]].mean())
    assert effect.value == pytest.approx(np.mean(differences))
    assert effect.corrected == pytest.approx(np.array(differences))
    # Each unit has one contribution, however often it is matched.
    assert len(effect.contributions) == len(own) + len(other)
    uses = np.zeros(panel.size)
    for row in block.neighbours:
        uses[row[row >= 0]] += 1.0 / (row >= 0).sum()
    mean = (total * uses).sum() / uses.sum()
    residual, weight = total - mean, uses / uses.sum()
    squares = ((total[block.treated] - total[block.treated].mean()) ** 2).sum() / (len(own) * (len(own) - 1))
    squares += (weight**2 * residual**2 / np.clip(1.0 - weight, 0.05, 1.0)).sum()
    assert effect.error == pytest.approx(np.sqrt(squares))


def test_a_linear_difference_before_adoption_is_corrected_exactly() -> None:
    """With outcomes that are linear in the regressors, the matched gap is taken off completely."""
    pick = np.random.default_rng(1)
    blocks = [
        MatchedBlock(12, 0, 12, np.arange(20), pick.integers(20, 90, (20, 4)), np.array([], int), 70, ())
    ]
    pairs = Pairs.of(blocks, 90)
    x = pick.normal(size=(90, 2)) + np.array([[1.0, 0.0]]) * (np.arange(90) < 20)[:, None]
    y = 3.0 + x @ np.array([2.0, -1.0]) + 5.0 * (np.arange(90) < 20)
    effect = mean_effect(
        pairs, y[pairs.treated], y[pairs.control_unit], x[pairs.treated], x[pairs.control_unit], 90
    )
    assert effect.value == pytest.approx(5.0)
    assert effect.error == pytest.approx(0.0, abs=1e-9)


def test_a_reused_control_counts_once_with_all_its_weight() -> None:
    """One control for all adopters gives an error of that control's own, which resampling pairs would "
    "miss."""
    blocks = [MatchedBlock(12, 0, 12, np.arange(4), np.tile([[4, 5]], (4, 1)), np.array([], int), 2, ())]
    pairs = Pairs.of(blocks, 6)
    own, other = np.array([1.0, 1.0, 1.0, 1.0]), np.array([3.0, 5.0])
    effect = mean_effect(pairs, own, other, np.empty((4, 0)), np.empty((2, 0)), 6)
    assert effect.value == pytest.approx(-3.0)
    # Residuals -1 and 1 with weight 1/2 each and leverage 1/2.
    assert effect.error == pytest.approx(np.sqrt(2 * (0.5 / np.sqrt(0.5)) ** 2))


def test_the_interval_covers_both_ends() -> None:
    draws = np.sort(np.random.default_rng(0).normal(size=200_000))
    low, high = interval((1.0, 1.0), (1.0, 1.0), draws, 0.95)
    assert (low, high) == pytest.approx((1.0 - 1.96, 1.0 + 1.96), abs=0.02)
    low, high = interval((0.0, 1.0), (50.0, 1.0), draws, 0.95)
    assert (low, high) == pytest.approx((-1.645, 51.645), abs=0.02)


def test_the_studentised_bootstrap_follows_skewed_contributions() -> None:
    pick = np.random.default_rng(2)
    skewed = pick.exponential(size=400) ** 2
    draws = studentised(skewed - skewed.mean(), 999, 1)
    assert draws[0] < -draws[-1]
    # Many contributions are added up in groups, with the same spread.
    many = studentised(pick.normal(size=20_000), 999, 1)
    assert np.std(many) == pytest.approx(1.0, abs=0.08)


def test_the_median_of_pairs_is_zero_for_skewed_values_without_an_effect() -> None:
    """The median difference to an average of skewed values is negative; that to each neighbour is not."""
    pick = np.random.default_rng(4)
    values = np.exp(1.5 * pick.normal(size=3_000))
    neighbours = pick.integers(600, 3_000, (600, 10))
    pairs = Pairs.of(
        [MatchedBlock(12, 0, 12, np.arange(600), neighbours, np.array([], int), 2_400, ())], 3_000
    )
    own, other = values[pairs.treated], values[pairs.control_unit]
    effect = mean_effect(pairs, own, other, np.empty((600, 0)), np.empty((len(other), 0)), 3_000)
    middle, low, high = median_effect(pairs, effect, 0.95)
    assert low <= 0.0 <= high and abs(middle) < 0.25
    assert np.median(own - pairs.average(other)) < -0.8


def test_gamma_grows_with_the_effect_and_needs_significance() -> None:
    pick = np.random.default_rng(5)
    blocks = [
        MatchedBlock(
            12, 0, 12, np.arange(200), np.arange(200, 400).reshape(-1, 1), np.array([], int), 200, ()
        )
    ]
    pairs = Pairs.of(blocks, 400)
    noise = pick.normal(size=400)

    def bound(effect: float) -> float | None:
        own = noise[pairs.treated] + effect
        other = noise[pairs.control_unit]
        found = mean_effect(pairs, own, other, np.empty((200, 0)), np.empty((200, 0)), 400)
        return checks.gamma(pairs, found, 0.05)

    assert bound(0.0) is None
    small, large = bound(0.5), bound(1.5)
    assert small is not None and large is not None and 1.0 < small < large


@pytest.mark.parametrize("selection", ["level", "value"])
def test_a_constant_effect_is_found_where_the_naive_difference_is_far_off(selection: str) -> None:
    """The interval of each of several seeds covers the effect, apart from one by chance."""
    covered = []
    for seed in range(6):
        simulated = simulate_adoption(world(selection=selection, seed=seed))
        found = analyse(simulated.panel, SMALL)
        one = found.effect(12)
        truth = simulated.truth[12]
        assert one.mean.low is not None and one.mean.high is not None
        covered.append(one.mean.low <= truth <= one.mean.high)
        assert abs(one.mean.value - truth) < 4 * one.error
        assert abs(one.naive - truth) > abs(one.mean.value - truth)
        assert min(one.by_value, one.by_level) <= one.mean.value <= max(one.by_value, one.by_level)
    assert sum(covered) >= 5


def test_hidden_growth_is_flagged_by_the_trend() -> None:
    found = analyse(simulate_adoption(world(effect="confounded", units=3_000)).panel, SMALL)
    assert found.verdict == "unreliable"
    assert {"pre-trend", "placebo in time"} & {one.name for one in found.reasons}


def test_a_chain_of_adoptions_is_flagged_with_the_product() -> None:
    found = analyse(simulate_adoption(world(effect="chained")).panel, SMALL)
    assert "chain" in {one.name for one in found.reasons}
    assert found.chains[0].name == "second" and found.chains[0].adopters > 0.3 > found.chains[0].controls
    assert found.several > 0.3


def test_a_chain_is_found_over_the_whole_horizon() -> None:
    """A product that adopters adopt half a year later is part of the value over 12 months."""
    panel = simulate_adoption(world(effect="none")).panel
    later = np.where((panel.adopted >= 0) & (np.arange(panel.size) % 2 == 0), panel.adopted + 6, NEVER)
    found = analyse(replace(panel, others={"later": later}), SMALL)
    assert "chain" in {one.name for one in found.reasons}
    after = np.where(later >= 0, panel.adopted + 12, NEVER)
    found = analyse(replace(panel, others={"after": after}), SMALL)
    assert "chain" not in {one.name for one in found.reasons} and found.several == 0.0


def test_chains_of_many_products_are_tested_together() -> None:
    """A difference that is significant for one product is not for the largest of fifty."""
    found = analyse(simulate_adoption(world(effect="none")).panel, SMALL)
    one, calm = ChainedProduct("x", 0.2, 0.1, 2.6), ChainedProduct("y", 0.1, 0.1, 0.0)

    def names(*chains: ChainedProduct) -> set[str]:
        return {reason.name for reason in judge(replace(found, chains=chains), SMALL).reasons}

    assert "chain" in names(one)
    assert "chain" not in names(one, *[calm] * 49)
    assert "chain" in names(replace(one, z=4.0), *[calm] * 49)


def test_regression_to_the_mean_is_a_reason_only_where_an_effect_is_claimed() -> None:
    """An interval that contains zero and both ends claims nothing that regression could explain."""
    found = analyse(simulate_adoption(world(effect="none")).panel, SMALL)
    base = replace(found.effect(12), by_value=2.0, by_level=0.4, error=0.2)

    def names(low: float, value: float = 1.2) -> set[str]:
        effect = replace(base, mean=Bounded(value, low, 2.4))
        return {reason.name for reason in judge(replace(found, effects=(effect,)), SMALL).reasons}

    assert "regression to the mean" in names(0.01)
    assert "regression to the mean" not in names(-0.01)
    # It is less than half of the effect.
    assert "regression to the mean" not in names(0.01, value=4.0)


def test_hidden_bias_is_tested_for_effects_that_are_significant_among_all_horizons(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An effect between the limits of one and of two tests is significant only if it has the only horizon."""
    panel = simulate_adoption(world(effect="none")).panel
    single = SMALL.model_copy(update={"horizons": (12,)})
    strict = single.model_copy(update={"confidence": 0.975})
    lows = [analyse(panel, one).effect(12).mean.low for one in (single, strict)]
    assert lows[0] is not None and lows[1] is not None and lows[0] > lows[1]
    monthly = -(lows[0] + lows[1]) / 2 / 12
    adopted = panel.adopted[:, None]
    since = (adopted >= 0) & (np.arange(panel.values.shape[1]) >= adopted)
    shifted = replace(panel, values=(panel.values + monthly * since).astype(np.float32))
    monkeypatch.setattr(checks, "gamma", lambda *_: 1.5)
    assert [one.gamma for one in analyse(shifted, single).hidden_bias] == [1.5]
    assert [one.gamma for one in analyse(shifted, SMALL).hidden_bias if one.horizon == 12] == [None]


def test_the_placebo_in_time_finds_early_growth_that_a_few_large_units_hide() -> None:
    """It is tested relative to the unit's value, too."""
    panel = simulate_adoption(world(effect="none", spread=1.6, strength=0.2, units=3_000)).panel
    values = panel.values.astype(np.float64)
    when = np.arange(values.shape[1])
    early = (when < panel.adopted[:, None]) & (when >= panel.adopted[:, None] - 3)
    values *= np.where(early & (panel.adopted[:, None] >= 0), 1.12, 1.0)
    found = analyse(replace(panel, values=values.astype(np.float32)), SMALL).in_time
    assert found is not None and found.p_value < 1e-4
    assert abs(found.value / found.error) < 3.0


@pytest.mark.parametrize("effect", [2.0, -2.0])
def test_growth_just_before_adoption_is_found_in_the_direction_of_the_effect(effect: float) -> None:
    """A cause that begins three months before adoption grows into the effect; the opposite does not."""
    panel = simulate_adoption(world(effect="none", units=3_000, noise=0.3)).panel
    since = np.arange(panel.values.shape[1]) - panel.adopted[:, None]
    adopts = panel.adopted[:, None] >= 0

    def found(monthly: float, rate: float) -> DeltaCV:
        values = panel.values * np.where(adopts & (since < 0), 1.0 + rate * np.maximum(since + 4, 0), 1.0)
        values += np.where(adopts & (since >= 0), monthly, 0.0)
        return analyse(replace(panel, values=values.astype(np.float32)), SMALL)

    rate = np.sign(effect) * 0.03
    same, opposite, calm = found(effect, rate), found(effect, -rate), found(effect, 0.0)
    assert "late growth" in {one.name for one in same.reasons}
    assert same.growth.value == pytest.approx(rate, abs=4 * same.growth.error)
    assert opposite.growth.p_value > 0.9
    assert "late growth" not in {one.name for one in (*opposite.reasons, *calm.reasons)}
    # Without an effect that excludes zero, nothing has to be explained.
    nothing = replace(same, effects=tuple(replace(one, mean=Bounded(0.1, -1.0, 1.0)) for one in same.effects))
    assert "late growth" not in {one.name for one in judge(nothing, SMALL).reasons}
    row = next(one for one in check_rows(same) if one[0] == "late growth")
    assert row[-1] == "failed" and "per month" in row[1] and "0.02" in row[2]


def test_a_cause_of_the_simulator_begins_before_adoption() -> None:
    """Months before the lead are those of a world without the cause."""
    calm = simulate_adoption(world(effect="late", growth=0.0))
    late = simulate_adoption(world(effect="late", lead=2))
    since = np.arange(36) - late.panel.adopted[:, None]
    adopts = late.panel.adopted >= 0
    assert np.array_equal(late.panel.adopted, calm.panel.adopted)
    differs = late.panel.values != calm.panel.values
    assert not differs[adopts][since[adopts] < -2].any()
    assert differs[adopts][since[adopts] == -2].mean() > 0.9


def test_regression_to_the_mean_follows_the_weight_of_each_adopter() -> None:
    panel = simulate_adoption(world(noise=0.6)).panel
    blocks = [
        match(panel, panel.adopters(at), panel.controls, (at - 12, at), SMALL, month=at) for at in (12, 13)
    ]
    back = reversion(panel, Pairs.of(blocks, panel.size), panel.controls, 1)
    value, error = back.mean()
    assert value > error > 0.0
    assert back.mean(3.0) == pytest.approx((3 * value, 3 * error))
    half = (np.arange(len(back.noise)) < len(back.noise) // 2).astype(np.float64)
    assert back.mean(half)[0] + back.mean(1.0 - half)[0] == pytest.approx(value)


def test_placebos_of_a_world_without_effect_raise_no_alarm() -> None:
    alarms = []
    for seed in range(5):
        found = analyse(simulate_adoption(world(effect="none", seed=seed)).panel, SMALL)
        assert found.in_time is not None and found.in_space is not None
        alarms += [found.in_time.p_value < 0.01, found.in_space.p_value < 0.01, found.trend.p_value < 0.01]
    assert sum(alarms) <= 1


def test_cohorts_may_be_left_out() -> None:
    panel = simulate_adoption(world(units=800, adopting=4)).panel
    quarters = analyse(panel, SMALL)
    together = analyse(panel, SMALL.model_copy(update={"cohort": "all"}))
    assert {one.cohort for one in quarters.effects} == {"", "2025-Q1", "2025-Q2"}
    assert together.effects == tuple(one for one in quarters.effects if not one.cohort)


def test_limits_give_reasons_by_name() -> None:
    panel = simulate_adoption(world()).panel
    strict = SMALL.model_copy(
        update={"pre_difference": 1e-6, "balance": 1e-6, "fewest_units": 10_000, "least_matched": 1.0}
    )
    tight = strict.model_copy(update={"threshold": 0.005})
    assert {"pre-period difference", "balance", "too few units"} <= {
        one.name for one in analyse(panel, strict).reasons
    }
    assert "overlap" in {one.name for one in analyse(panel, tight).reasons}
    with pytest.raises(DataError, match="raise `threshold`"):
        analyse(panel, SMALL.model_copy(update={"threshold": 1e-9}))


def test_tables_and_panel_give_the_same_result(tmp_path: Path) -> None:
    """Arrow tables, Parquet, CSV and a directory of files are read alike."""
    simulated = simulate_adoption(world(units=300))
    values, adoptions = simulated.values(), simulated.adoptions()
    pq.write_table(values, tmp_path / "values.parquet")
    csv.write_csv(values, tmp_path / "values.csv")
    (tmp_path / "parts").mkdir()
    half = values.num_rows // 2
    pq.write_table(values.slice(0, half), tmp_path / "parts" / "a.parquet")
    pq.write_table(values.slice(half), tmp_path / "parts" / "b.parquet")
    chosen = SMALL.model_copy(update={"features": ("transactions",), "exact": ("currency",)})
    for data in (values, tmp_path / "values.parquet", tmp_path / "values.csv", tmp_path / "parts"):
        read = read_panel(data, chosen, adoptions=adoptions)
        assert np.array_equal(read.panel.adopted, simulated.panel.adopted)
        assert np.allclose(read.panel.values, simulated.panel.values)
        assert np.allclose(read.panel.features["transactions"], simulated.panel.features["transactions"])
        assert read.panel.months == simulated.panel.months and not read.findings.rows()


def rows(*given: tuple[str | None, str, float | None]) -> pa.Table:
    names = ("unit", "period", "value")
    return pa.Table.from_pylist([dict(zip(names, one, strict=True)) for one in given])


def complete(units: int = 6, months: int = 16) -> list[tuple[str, str, float | None]]:
    return [
        (f"u{unit}", f"{2024 + at // 12}-{at % 12 + 1:02d}", 1.0 + unit)
        for unit in range(units)
        for at in range(months)
    ]


def adoption(*given: tuple[str, str | None]) -> pa.Table:
    schema = pa.schema([("unit", pa.string()), ("product", pa.string()), ("adopted", pa.string())])
    return pa.Table.from_pylist(
        [{"unit": unit, "product": "p", "adopted": when} for unit, when in given], schema=schema
    )


FIRST = ("u0", "2025-01-15")


@pytest.mark.parametrize(
    ("extra", "adoptions", "message"),
    [
        ([("u1", "2024-02", None)], [FIRST], "missing value: 1"),
        ([("u1", "2024-02", float("nan"))], [FIRST], "missing value: 1"),
        ([("u1", "2024-02", float("-inf"))], [FIRST], "missing value: 1"),
        ([("u1", "2025-05", 1e300)], [FIRST], "value out of range: 1 .*u1 2025-05"),
        ([(None, "2024-02", 1.0)], [FIRST], "no unit: 1"),
        ([("u1", "2024-02-01/2024-03-01", 1.0)], [FIRST], "unreadable period: 1 .*2024-02-01/2024-03-01"),
        ([], [("u0", "2020-01-01")], "no complete window"),
        ([], [("u0", "2030-01-01")], "no complete window"),
        ([("u1", "sometime", 1.0)], [FIRST], "unreadable period: 1"),
        ([("u1", "2024-02", 1.0)], [FIRST], "duplicate rows: 1 .*u1 in 2024-02"),
        ([("u1", "2024-02-15", 1.0)], [FIRST], "overlapping periods: 1 .*u1 in 2024-02"),
        ([], [(f"u{at}", "2025-01-01") for at in range(6)], "no controls"),
        ([], [("x", "2025-01-01")], "no complete window|adopters without values|no adopters"),
        ([], [FIRST, ("u0", None)], "in both groups: 1 .*u0"),
        ([], [("u0", "then")], "unreadable adoption: 1 .*u0"),
        ([], [("u0", "2024-03-01")], "no complete window"),
        ([], [("u0", "2025-03-01")], "no complete window"),
        ([], [], "no adopters"),
    ],
)
def test_bad_tables_are_rejected_by_name(
    extra: list[tuple[str | None, str, float | None]], adoptions: list[tuple[str, str | None]], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_panel(rows(*complete(), *extra), SMALL, adoptions=adoption(*adoptions))


def test_a_feature_that_no_number_can_hold_is_rejected() -> None:
    """It would be infinite among the values in memory."""
    table = rows(*complete())
    chosen = SMALL.model_copy(update={"features": ("visits",)})
    visits = [1.0] * table.num_rows
    for wrong, message in ((-1e38, "value out of range: 1"), (float("inf"), "missing feature: 1")):
        column = pa.array([*visits[:-1], wrong])
        with pytest.raises(DataError, match=message):
            read_panel(table.append_column("visits", column), chosen, adoptions=adoption(FIRST))


def test_adopters_without_controls_in_their_group_are_left_out_or_rejected() -> None:
    """Neighbours are of the same group only, so adopters of a country without controls have none."""
    table = rows(*complete(units=60))
    given = adoption(*[(f"u{at}", "2025-01-15") for at in range(20)])
    chosen = SMALL.model_copy(update={"exact": ("country",), "horizons": (3,), "threshold": 9.0})

    def countries(of_adopters: int) -> pa.Table:
        """The first adopters are in a country where no control is."""
        names = ["FR" if int(row[0][1:]) < of_adopters else "DE" for row in complete(units=60)]
        return table.append_column("country", pa.array(names))

    found = delta_cv(countries(8), chosen, adoptions=given)
    assert (found.effect(3).adopters, found.effect(3).matched) == (20, 12)
    assert "overlap" in {one.name for one in found.reasons}
    with pytest.raises(DataError, match=r"no adopter has a neighbour .*`exact`"):
        delta_cv(countries(20), chosen, adoptions=given)


def test_a_table_that_is_faulty_in_the_middle_is_rejected_in_one_line(tmp_path: Path) -> None:
    """A CSV file has its types from its first rows, and a Parquet file its schema at the end."""
    lines = [f"u{at},2025-{month:02d},1" for month in range(1, 13) for at in range(4_000)]
    late = tmp_path / "late.csv"
    late.write_text("\n".join(["unit,period,value", *lines, "u2,2026-01,many"]))
    pq.write_table(rows(*complete()), tmp_path / "whole.parquet")
    content = bytearray((tmp_path / "whole.parquet").read_bytes())
    content[4:300] = bytes(one ^ 0xFF for one in content[4:300])
    (tmp_path / "corrupt.parquet").write_bytes(content)
    for path in (late, tmp_path / "corrupt.parquet"):
        with pytest.raises(DataError, match="cannot be read to the end") as refused:
            read_panel(path, SMALL, adoptions=adoption(FIRST))
        assert "\n" not in str(refused.value)


def test_rejected_tables_leave_an_earlier_report_as_it_is(tmp_path: Path) -> None:
    table = rows(*complete(), ("u1", "2024-02", -1.0), ("u2", "2024-02", None))
    pq.write_table(table, tmp_path / "values.parquet")
    pq.write_table(adoption(FIRST, ("u1", None)), tmp_path / "adoptions.parquet")
    report = tmp_path / "report.html"
    report.write_text("earlier")
    given = ["causal", "delta-cv", str(tmp_path / "values.parquet"), "-o", str(report)]
    done = CliRunner().invoke(app, [*given, "--adoptions", str(tmp_path / "adoptions.parquet")])
    assert isinstance(done.exception, DataError) and "missing value: 1 (such as u2" in str(done.exception)
    assert report.read_text() == "earlier" and not (tmp_path / "report.json").exists()


def test_units_without_complete_windows_are_left_out_and_counted() -> None:
    given = [FIRST, ("u1", "2022-01-01"), ("u2", "2024-06-01"), ("u3", "2025-04-01"), ("z", "2025-01-01")]
    read = read_panel(rows(*complete()), SMALL, adoptions=adoption(*given, ("u0", "2025-02-01")))
    assert {one.name: one.count for one in read.findings.rows()} == {
        "adopted before the data": 1,
        "too few months before": 1,
        "too few months after": 1,
        "adopters without values": 1,
        "repeated adoptions": 1,
    }
    assert list(read.panel.adopted) == [12, -2, -2, -2, NEVER, NEVER]


def test_currencies_negative_values_and_absent_months_have_stated_behaviour() -> None:
    table = rows(*complete())
    mixed = table.append_column("money", pa.array(["USD"] * (table.num_rows - 1) + ["EUR"]))
    columns = SMALL.columns.model_copy(update={"currency": "money"})
    with pytest.raises(DataError, match=r"mixed currencies: 2 \(such as EUR, USD\)"):
        read_panel(mixed, SMALL.model_copy(update={"columns": columns}), adoptions=adoption(FIRST))
    partly = table.append_column("money", pa.array([*["USD"] * (table.num_rows - 1), None]))
    with pytest.raises(DataError, match=r"mixed currencies: 2 \(such as \(empty\), USD\)"):
        read_panel(partly, SMALL.model_copy(update={"columns": columns}), adoptions=adoption(FIRST))
    same = table.append_column("money", pa.array(["USD"] * table.num_rows))
    stated = SMALL.model_copy(update={"columns": columns, "currency": "EUR"})
    with pytest.raises(DataError, match=r"mixed currencies: 2 \(such as USD in the rows, EUR in the"):
        read_panel(same, stated, adoptions=adoption(FIRST))
    read = read_panel(same, SMALL.model_copy(update={"columns": columns}), adoptions=adoption(FIRST))
    assert read.currency == "USD"
    sparse = rows(*[one for one in complete() if one[:2] != ("u3", "2024-05")])
    found = read_panel(sparse, SMALL, adoptions=adoption(FIRST))
    assert [one.name for one in found.findings.rows()] == ["absent months"]
    assert found.panel.values[3, 4] == 0.0
    with pytest.raises(DataError, match="absent months rejected: 1"):
        read_panel(sparse, SMALL.model_copy(update={"absent": "reject"}), adoptions=adoption(FIRST))
    losses = rows(*complete()[:-1], ("u5", "2025-04", -2.0))
    assert "negative values" in {
        one.name for one in read_panel(losses, SMALL, adoptions=adoption(FIRST)).findings.rows()
    }
    with pytest.raises(DataError, match="negative value: 1"):
        read_panel(losses, SMALL.model_copy(update={"negative": "reject"}), adoptions=adoption(FIRST))


def test_the_adoption_date_may_be_a_column_of_the_data() -> None:
    table = rows(*complete())
    dates = pa.array([date(2025, 1, 3) if one[0] == "u0" else None for one in complete()])
    read = read_panel(table.append_column("adopted", dates), SMALL)
    assert list(read.panel.adopted) == [12, *[NEVER] * 5]
    partly = pa.array([date(2025, 1, 3) if at == 0 else None for at in range(table.num_rows)])
    with pytest.raises(DataError, match="in both groups: 1"):
        read_panel(table.append_column("adopted", partly), SMALL)


def test_controls_are_drawn_by_a_hash_and_adopters_are_all_kept() -> None:
    simulated = simulate_adoption(world(units=2_000))
    limited = SMALL.model_copy(update={"most_controls": 500})
    read = read_panel(simulated.values(), limited, adoptions=simulated.adoptions())
    assert (read.panel.adopted >= 0).sum() == (simulated.panel.adopted >= 0).sum()
    assert 350 < len(read.panel.controls) < 650
    assert "controls drawn" in {one.name for one in read.findings.rows()}
    again = read_panel(simulated.values(), limited, adoptions=simulated.adoptions())
    assert again.panel.units is not None and read.panel.units is not None
    assert list(again.panel.units) == list(read.panel.units)


def test_settings_are_read_with_paths_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_text('[causal]\nadoptions = "a.parquet"\nhorizons = [6]\n')
    assert causal_settings.load(file).adoptions == str(tmp_path / "a.parquet")
    file.write_text("[causal]\nhorizons = [6, 6]\nneighbours = 0\n")
    with pytest.raises(InvalidSettingsError):
        causal_settings.load(file)
    file.write_text(causal_settings.example())
    assert causal_settings.load(file) == CausalSettings()


def test_the_command_writes_report_and_result(tmp_path: Path) -> None:
    simulated = simulate_adoption(world(effect="chained"))
    pq.write_table(simulated.values(), tmp_path / "values.parquet")
    pq.write_table(simulated.adoptions(), tmp_path / "adoptions.parquet")
    task = tmp_path / "task.toml"
    task.write_text(
        '[causal]\nadoptions = "adoptions.parquet"\nproduct = "product"\ncurrency = "USD"\n'
        "replications = 199\n"
    )
    evaluation = tmp_path / "evaluation.json"
    evaluation.write_text(
        json.dumps(
            {
                "difference": {"value": 0.01, "low": 0.0, "high": 0.02},
                "baseline": None,
                "candidate": {"digest": "sha256:abc"},
                "logged": {"rows": 1000},
            }
        )
    )
    given = ["causal", "delta-cv", str(tmp_path / "values.parquet"), "--task", str(task)]
    report = tmp_path / "report.html"
    done = CliRunner().invoke(app, [*given, "-o", str(report), "--logged", str(evaluation)])
    assert done.exit_code == 0, done.output
    assert "unreliable: chain:" in done.output and "not additive" in done.output
    found = read_result(tmp_path / "report.json")
    assert found.currency == "USD" and found.logged[0].difference.value == 0.01
    assert from_document(found.document()) == found
    page = report.read_text()
    assert "The estimate is unreliable" in page and "From logged propensities" in page
    assert "http://" not in page.split("<body>")[1].split("<script>")[0]
    assert {one.name for one in found.reasons} == {
        line.split(": ")[1] for line in done.output.splitlines() if line.startswith("unreliable: ")
    }
    missing = CliRunner().invoke(app, ["causal", "delta-cv", str(tmp_path / "no.parquet")])
    assert isinstance(missing.exception, DataError)


def test_the_notebook_helper_gives_table_chart_and_page() -> None:
    simulated = simulate_adoption(world(units=600))
    found = in_notebook(simulated.values(), task=SMALL, adoptions=simulated.adoptions())
    table = found.table()
    assert table.column("horizon").to_pylist()[:2] == [3, 12] and "mean_low" in table.column_names
    assert found.chart("path").layout.title.text == "Value by month"
    assert causal_page(found.result) == found._repr_html_()
    with pytest.raises(DataError, match="no chart"):
        found.chart("x")


def test_merchants_adopt_with_the_first_month_of_another_policy(tmp_path: Path) -> None:
    """Value is outcome times amount; a fallback, or a small share of another policy, is no adoption."""
    decisions = []
    for month in range(1, 5):
        for merchant in ("a", "b", "c"):
            for at in range(10):
                adopts = merchant == "a" and month >= 3
                decisions.append(
                    {
                        "entity": merchant,
                        "decided_at": f"2024-{month:02d}-{at + 1:02d}T10:00:00Z",
                        "bundle": "sha256:new" if adopts or (merchant, at) == ("c", 0) else "sha256:old",
                        "fallback_source": "bundle" if (merchant, at) == ("c", 0) else None,
                        "outcome_authorised": None if (merchant, at) == ("b", 9) else float(at % 2),
                        "feature_amount": 10.0,
                    }
                )
    table = pa.Table.from_pylist(decisions)
    when = pa.compute.cast(
        pa.compute.strptime(table.column("decided_at"), "%Y-%m-%dT%H:%M:%SZ", "us"), pa.timestamp("us", "UTC")
    )
    table = table.set_column(1, "decided_at", when)
    pq.write_table(table, tmp_path / "decisions.parquet")
    counts = merchant_tables(
        tmp_path / "decisions.parquet",
        tmp_path / "out",
        MerchantSettings(("old",), margin=0.5, currency="EUR"),
    )
    assert (counts.merchants, counts.months, counts.adopters, counts.without_outcome) == (3, 4, 1, 4)
    values = pq.read_table(tmp_path / "out" / "values.parquet").to_pylist()
    assert values[0] == {"unit": "a", "period": date(2024, 1, 1), "value": 25.0, "decisions": 10}
    assert values[4]["value"] == 20.0
    assert pq.read_table(tmp_path / "out" / "adoptions.parquet").to_pylist() == [
        {"unit": "a", "product": "policy", "adopted": date(2024, 3, 1)}
    ]
    assert causal_settings.load(tmp_path / "out" / "task.toml").currency == "EUR"
    with pytest.raises(DataError, match="no merchant"):
        merchant_tables(tmp_path / "decisions.parquet", tmp_path / "x", MerchantSettings(("old", "new")))
    assert not (tmp_path / "x").exists()


def test_an_analysis_of_tables_names_product_and_findings() -> None:
    simulated = simulate_adoption(world(units=800))
    found = delta_cv(simulated.values(), SMALL, adoptions=simulated.adoptions())
    assert found.product == "product" and found.findings == ()
    assert [one.cohort for one in found.effects] == ["", ""]
    assert found.path[0].month == -12 and found.path[-1].month == 11
