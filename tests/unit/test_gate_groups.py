"""Group metrics: fairlearn's definitions, bounds that hold, and gates that advise by default."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import components
import fairlearn_metrics
import numpy as np
import pytest
from pydantic import ValidationError
from readouts import retrained

from scorer.bundle import Feature
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence
from scorer.release.gates.groups import ADVICE, METRICS, gates_of
from scorer.release.gates.metrics import measure
from scorer.release.model import GateSpec, Outcome
from scorer.release.segments.settings import SegmentPlan, SegmentSettings
from scorer.release.segments.split import SegmentSplit
from scorer.stats import groups

COUNTRIES = ("", "NL", "DE", "FR")
CHANNELS = ("", "web", "app")


def evidence(
    random: np.random.Generator,
    *,
    rows: int = 6_000,
    selected: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1),
    fraud: float = 0.2,
    plan: SegmentPlan | None = None,
    country: Any = None,
) -> ShadowEvidence:
    """Return observations in which a share of each country's requests is not approved."""
    base = retrained(rows)
    codes = random.integers(1, 4, rows) if country is None else country
    other = random.integers(1, 3, rows)
    labels = base.shadow.labels()
    rates = np.asarray(selected)[codes]
    is_fraud = random.random(rows) < fraud
    flagged = random.random(rows) < np.where(is_fraud, 4 * rates, rates)
    shadow = replace(
        base.shadow,
        label=np.where(flagged, labels.index("review"), labels.index("approve")),
        segments=np.stack([codes, other], axis=1).astype(np.int32),
        names={
            **base.shadow.names,
            "segments": ("country", "channel"),
            "segment:country": COUNTRIES,
            "segment:channel": CHANNELS,
        },
    )
    return replace(
        base,
        shadow=shadow,
        outcomes={"fraud": (shadow.key, is_fraud.astype(float))},
        outcome="fraud",
        matured_before=int(shadow.at.max()) + 1,
        segments=plan or SegmentPlan(groups=("country", "channel")),
    )


def naive(found: ShadowEvidence, feature: int, rate: str) -> dict[int, float]:
    """Return a rate by group, row by row: fairlearn's selection rate, true and false positive rate."""
    hits: dict[int, list[bool]] = {}
    rows = found.shadow
    truth = dict(zip(*found.outcomes["fraud"], strict=True))
    for at in range(len(rows)):
        positive = truth[rows.key[at]] > 0.5
        if (
            not np.isfinite(rows.score[at])
            or (rate == "tpr" and not positive)
            or (rate == "fpr" and positive)
        ):
            continue
        hits.setdefault(int(rows.segments[at, feature]), []).append(
            rows.labels()[int(rows.label[at])] != "approve"
        )
    return {group: float(np.mean(one)) for group, one in hits.items()}


def test_metrics_are_fairlearns_definitions() -> None:
    found = evidence(np.random.default_rng(1), selected=(0, 0.05, 0.1, 0.2))
    rates = {
        rate: [naive(found, feature, rate).values() for feature in (0, 1)]
        for rate in ("selection", "tpr", "fpr")
    }
    differences = {rate: max(max(one) - min(one) for one in both) for rate, both in rates.items()}
    ratios = {rate: min(min(one) / max(one) for one in both) for rate, both in rates.items()}
    differences["odds"] = max(differences["tpr"], differences["fpr"])
    ratios["odds"] = min(ratios["tpr"], ratios["fpr"])
    for name in ("selection", "tpr", "fpr", "odds"):
        assert measure(f"group_{name}_difference", found, "", False).value == pytest.approx(differences[name])
        assert measure(f"group_{name}_ratio", found, "", False).value == pytest.approx(ratios[name])
    assert {f"group_{name}_{kind}" for name in differences for kind in ("difference", "ratio")} == set(
        METRICS
    )


def test_metrics_equal_those_of_fairlearn(tmp_path: Path) -> None:
    components.require("learning peers")
    found = evidence(np.random.default_rng(2), selected=(0, 0.05, 0.1, 0.2))
    rows = found.shadow
    truth = dict(zip(*found.outcomes["fraud"], strict=True))
    kept = np.isfinite(rows.score)
    theirs = fairlearn_metrics.metrics(
        tmp_path,
        (rows.label != rows.labels().index("approve"))[kept],
        np.array([truth[key] > 0.5 for key in rows.key])[kept],
        rows.segments[kept],
    )
    for name in METRICS:
        values = [feature[name.removeprefix("group_")] for feature in theirs]
        worst = min(values) if name.endswith("ratio") else max(values)
        assert measure(name, found, "", False).value == pytest.approx(worst, abs=1e-12), name


def test_sentence_names_the_groups_with_the_extremes() -> None:
    found = evidence(np.random.default_rng(1), selected=(0, 0.02, 0.1, 0.2))
    remark = measure("group_selection_difference", found, "", False).remark
    assert remark.startswith("country: from NL ")
    assert " to FR " in remark
    assert "live's value is" in remark


@pytest.mark.parametrize("shares", [(0.1, 0.1, 0.1), (0.02, 0.05, 0.3), (0.0, 0.01, 0.5)])
def test_bounds_hold_as_often_as_they_state(shares: tuple[float, ...]) -> None:
    random = np.random.default_rng(7)
    sizes = (200, 60, 400)
    difference, ratio = max(shares) - min(shares), min(shares) / max(shares)
    missed = {"difference low": 0, "difference high": 0, "ratio low": 0, "ratio high": 0}
    rounds = 400
    for _ in range(rounds):
        counts = [[(int(random.binomial(n, p)), n) for n, p in zip(sizes, shares, strict=True)]]
        low, high = groups.difference_bounds(counts, 0.95)
        missed["difference low"] += low > difference + 1e-12
        missed["difference high"] += high < difference - 1e-12
        low, high = groups.ratio_bounds(counts, 0.95)
        missed["ratio low"] += low > ratio + 1e-12
        missed["ratio high"] += high < ratio - 1e-12
    # 5 % may be missed; 400 rounds have a standard error of 1.1 points.
    assert all(count <= 0.08 * rounds for count in missed.values()), missed


def test_bounds_contain_the_value_and_shrink_with_rows() -> None:
    few, many = [[(2, 20), (10, 20)]], [[(200, 2000), (1000, 2000)]]
    for value, bounds in ((groups.difference, groups.difference_bounds), (groups.ratio, groups.ratio_bounds)):
        wide, narrow = bounds(few, 0.95), bounds(many, 0.95)
        assert wide.low <= value(few) <= wide.high
        assert wide.low < narrow.low < value(many) < narrow.high < wide.high


@pytest.mark.parametrize("counts", [[], [[]], [[(3, 10)]], [[(3, 10)], [(1, 5)]]])
def test_without_two_groups_there_is_no_difference(counts: Any) -> None:
    assert groups.difference(counts) == 0
    assert groups.ratio(counts) == 1
    assert groups.difference_bounds(counts, 0.95) == (0, 1)
    assert groups.ratio_bounds(counts, 0.95) == (0, 1)


def test_groups_without_hits_are_equal() -> None:
    counts = [[(0, 50), (0, 80)]]
    assert (groups.difference(counts), groups.ratio(counts)) == (0, 1)
    low, high = groups.ratio_bounds(counts, 0.95)
    assert (low, high) == (0, 1)


def judged(found: ShadowEvidence, *specs: GateSpec) -> dict[str, Any]:
    return {one.metric: one for one in evaluate(specs, found)}


def test_gate_fails_on_a_large_difference_and_passes_on_none() -> None:
    spec = GateSpec("group_selection_difference", "<= 10% upper95")
    random = np.random.default_rng(3)
    unequal = judged(evidence(random, selected=(0, 0.02, 0.02, 0.2)), spec)[spec.metric]
    assert unequal.outcome is Outcome.FAIL
    assert unequal.low > 0.1
    equal = judged(evidence(random), spec)[spec.metric]
    assert equal.outcome is Outcome.PASS
    assert equal.low <= equal.value <= equal.high <= 0.1
    few = judged(evidence(random, rows=1_000, selected=(0, 0.05, 0.05, 0.08)), spec)[spec.metric]
    assert few.outcome is Outcome.INCONCLUSIVE


def test_small_groups_are_left_out_and_named() -> None:
    random = np.random.default_rng(4)
    country = np.where(np.arange(3_000) < 1, 3, random.integers(1, 3, 3_000))  # FR has one request
    found = evidence(random, rows=3_000, country=country, selected=(0, 0.1, 0.1, 1.0))
    result = measure("group_selection_difference", found, "", False)
    assert result.value < 0.1
    assert "too few rows: country FR" in result.remark


def test_without_two_large_groups_the_metric_is_not_known() -> None:
    random = np.random.default_rng(4)
    only = SegmentPlan(groups=("country",))
    alone = evidence(random, rows=1_000, country=np.ones(1_000, int), plan=only)
    assert measure("group_selection_difference", alone, "", False).missing == (
        "no named feature (country) has two groups with 300 rows"
    )
    unknown = evidence(random, rows=1_000, plan=SegmentPlan(groups=("city",)))
    assert "no named feature (city)" in measure("group_odds_ratio", unknown, "", False).missing
    none = evidence(random, rows=1_000, plan=SegmentPlan())
    assert "name no groups" in measure("group_selection_ratio", none, "", False).missing
    young = replace(evidence(random, rows=1_000), matured_before=0)
    assert "matured" in measure("group_tpr_difference", young, "", False).missing
    assert (
        judged(young, GateSpec("group_tpr_difference", "<= 10% upper95"))["group_tpr_difference"].outcome
        is Outcome.INCONCLUSIVE
    )


def test_missing_values_are_a_group() -> None:
    random = np.random.default_rng(5)
    found = evidence(random, country=random.integers(0, 3, 6_000), selected=(0.5, 0.05, 0.05, 0.05))
    remark = measure("group_selection_difference", found, "", False).remark
    assert " to (missing) " in remark


def test_gates_of_groups_advise_unless_they_are_set_to_decide() -> None:
    assert gates_of(SegmentPlan(), []) == []
    advice = gates_of(SegmentPlan(groups=("country",)), [])
    assert [(one.metric, one.dry_run) for one in advice] == [(one.metric, True) for one in ADVICE]
    decides = gates_of(SegmentPlan(groups=("country",), groups_decide=True), [])
    assert not any(one.dry_run for one in decides)
    own = [GateSpec("group_fpr_ratio", ">= 0.8 lower95")]
    assert gates_of(SegmentPlan(groups=("country",)), own) == []
    found = evidence(np.random.default_rng(3), selected=(0, 0.02, 0.02, 0.2))
    assert not judged(found, *advice)["group_selection_difference"].blocks
    assert judged(found, *decides)["group_selection_difference"].blocks


def test_rows_are_split_by_groups_too() -> None:
    schema = [
        Feature(name="amount"),
        Feature(name="country", type="category", categories=["NL"]),
        Feature(name="merchant", type="category", categories=[f"m{n}" for n in range(40)]),
    ]
    plan = SegmentSettings(features=["country"], groups=["merchant", "country"], groups_decide=True).plan()
    assert SegmentSplit(schema, plan).names == ("country", "merchant")
    assert SegmentSplit(schema, SegmentSettings(groups=["merchant"]).plan()).names == ("country", "merchant")
    banded = SegmentSettings(bands={"amount": [10.0]}, groups=["amount"]).plan()
    assert SegmentSplit(schema, banded).names == ("country", "amount")
    wrong = SegmentSplit(schema, SegmentSettings(groups=["amount"]).plan())
    assert wrong.notes == ["rows are not split by amount: it is a number; give it bands"]
    from dataclasses import asdict

    assert SegmentPlan.restored(asdict(plan)) == plan
    old = {name: value for name, value in asdict(plan).items() if not name.startswith("groups")}
    assert SegmentPlan.restored(old).groups == ()


def test_a_group_is_named_once() -> None:
    with pytest.raises(ValidationError, match='"country" is named twice'):
        SegmentSettings(groups=["country", "country"])
