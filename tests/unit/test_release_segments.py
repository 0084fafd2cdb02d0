"""Segments of reports: how rows are split, what is compared, what is found, and how seldom by chance."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from observing import ADMIN, START, World
from pydantic import ValidationError
from readouts import synthetic_readout

from loadtests.windows import observed
from scorer.bundle import Feature
from scorer.commands.following import print_readout
from scorer.release.answers import SegmentReport, SegmentResult
from scorer.release.changes.review import review
from scorer.release.gates.defaults import SCORE
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence, empty
from scorer.release.gates.names import SEGMENTS
from scorer.release.model import GateSpec, Outcome
from scorer.release.readout import keep
from scorer.release.readout.build import figure, figure_names
from scorer.release.readout.segments import gate_of, measured, segment_report
from scorer.release.segments.settings import SegmentPlan, SegmentSettings
from scorer.release.segments.split import MISSING, OTHER, SegmentSplit, band_codes, band_words, largest
from scorer.sdk.page import render

COUNTRIES = ("NL", "DE", "FR", "ES", "IT", "PL", "BE", "AT", "PT", "SE", "DK", "FI")
LABELS = ["", "approve", "review", "decline"]
PLAN = SegmentPlan(("country",), (("amount", (20.0, 100.0)),))
SCHEMA = [
    Feature(name="amount"),
    Feature(name="country", type="category", categories=["NL", "DE"]),
    Feature(name="is_new", type="flag"),
    Feature(name="merchant", type="category", categories=[f"m{n}" for n in range(40)]),
]


def logistic(values: Any) -> Any:
    return 1 / (1 + np.exp(-values))


def labels(scores: Any, flags: float = 0.1) -> Any:
    """Return codes of decisions. About 10 % are flagged, and 10 % of those are declined."""
    review, decline = np.quantile(scores, (1 - flags, 1 - flags / 10))
    return 1 + (scores >= review) + (scores >= decline)


def window(
    random: np.random.Generator,
    live: Any,
    own: Any,
    *,
    own_label: Any = None,
    plan: SegmentPlan = PLAN,
    **more: Any,
) -> ShadowEvidence:
    """Return paired rows of twelve countries, with very different shares, and of three bands of amounts."""
    rows = len(live)
    weights = np.geomspace(1, 0.1, len(COUNTRIES))
    segments = np.stack(
        [
            1 + random.choice(len(COUNTRIES), rows, p=weights / weights.sum()),
            random.integers(1, 4, rows),
        ],
        axis=1,
    ).astype(np.int32)
    shadow = replace(
        observed(rows, random, full=False),
        score=own,
        live_score=live,
        label=labels(own) if own_label is None else own_label,
        live_label=labels(live),
        segments=segments,
        names={
            "label": LABELS,
            "server": ["", "live-1", "live-2"],
            "error": [""],
            "live_fallback": [""],
            "segments": ["country", "amount"],
            "segment:country": ["", *COUNTRIES],
            "segment:amount": ["", *band_words((20.0, 100.0))],
        },
    )
    return ShadowEvidence(
        kind="score",
        sla_us=5_000,
        shadow=shadow,
        control=empty(),
        bands=LABELS[1:],
        segments=plan,
        **more,
    )


def reported(evidence: ShadowEvidence, **more: Any) -> SegmentReport:
    report = segment_report(evidence, **more)
    assert report is not None
    return report


def of(report: SegmentReport, level: str) -> SegmentResult:
    (segment,) = [one for one in report.segments if one.level == level]
    return segment


# --- splitting rows ---


def test_a_split_maps_categories_flags_and_bands() -> None:
    plan = SegmentPlan(("country", "is_new"), (("amount", (20.0, 100.0)),))
    split = SegmentSplit(SCHEMA, plan)
    rows = np.array(
        [[19.5, 0, 1, 0], [20, 1, 0, 0], [100, np.nan, np.nan, 0], [np.nan, 7, 1, 0], [50, -1, 0, 0]],
        np.float32,
    )
    assert split.levels == [
        ("country", ("NL", "DE")),
        ("is_new", ("no", "yes")),
        ("amount", ("below 20", "20 to 100", "from 100")),
    ]
    np.testing.assert_array_equal(
        split.codes(rows), [[0, 1, 0], [1, 0, 1], [-1, -1, 2], [-1, 1, -1], [-1, 0, 1]]
    )
    assert split.notes == []


def test_a_split_uses_flags_and_small_categories_by_default() -> None:
    assert SegmentSplit(SCHEMA, SegmentPlan()).names == ("country", "is_new")
    many = [Feature(name=f"f{n}", type="flag") for n in range(20)]
    assert len(SegmentSplit(many, SegmentPlan()).names) == 8


def test_a_split_names_the_features_that_it_cannot_use() -> None:
    split = SegmentSplit(SCHEMA, SegmentPlan(("amount", "issuer"), (("is_new", (0.5,)),)))
    assert split.names == ()
    assert split.codes(np.zeros((3, 4), np.float32)).shape == (3, 0)
    assert split.notes == [
        "rows are not split by amount: it is a number; give it bands",
        "rows are not split by issuer: the bundle has no such feature",
        "rows are not split by bands of is_new: it is a flag",
    ]


def test_a_value_at_a_limit_belongs_to_the_band_above_it() -> None:
    assert band_words((20.0,)) == ("below 20", "from 20")
    values = np.array([19.99, 20, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(band_codes(values, (20.0,)), [0, 1, -1, -1])


def test_small_segments_are_merged() -> None:
    random = np.random.default_rng(3)
    codes = random.integers(-1, 40, 5_000).astype(np.int32)
    codes[:1000] = 7
    result = largest(codes, [f"m{n}" for n in range(40)], 3)
    assert [name for name, _, _ in result][::3] == ["m7", OTHER]
    assert len(result) == 4
    whole = np.concatenate([rows for _, rows, _ in result])
    np.testing.assert_array_equal(np.sort(whole), np.arange(5_000))
    for name, rows, _ in result[:3]:
        assert (np.diff(rows) > 0).all(), "the rows keep their order in time"
        assert set(codes[rows]) == {-1 if name == MISSING else int(name[1:])}


def test_one_segment_too_many_is_shown_by_its_name() -> None:
    result = largest(np.array([0, 1, 2, -1], np.int32), ("a", "b", "c"), 3)
    assert sorted(name for name, _, _ in result) == [MISSING, "a", "b", "c"]


def test_two_lanes_are_split_equally() -> None:
    own, other = np.array([0, 0, 1], np.int32), np.array([2, 2, 2, 1], np.int32)
    result = {name: (len(a), len(b)) for name, a, b in largest(own, ("a", "b", "c"), 5, others=other)}
    assert result == {"a": (2, 0), "b": (1, 1), "c": (0, 3)}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bands": {"amount": [20.0, 20.0]}}, "write them in increasing order"),
        ({"features": ["country", "country"]}, "name it once"),
        ({"features": [f"f{n}" for n in range(9)]}, "at most 8"),
        ({"most": 51}, "less than or equal to 50"),
        ({"rows": 10}, "greater than or equal to 50"),
    ],
)
def test_settings_that_define_no_segments_are_refused(settings: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SegmentSettings.model_validate(settings)


def test_a_plan_is_read_unchanged_from_json() -> None:
    plan = SegmentSettings(features=["country"], bands={"amount": [20.0, 100.0]}, decides=True).plan()
    document = {"features": ["country"], "bands": [["amount", [20, 100]]], "most": 12, "rows": 300}
    assert SegmentPlan.restored(document | {"decides": True}) == plan
    assert hash(plan) == hash(replace(plan))


# --- comparisons ---


def broken(random: np.random.Generator, country: int, rows: int = 20_000) -> ShadowEvidence:
    """Return a candidate with random scores in one country, and live's scores with noise elsewhere."""
    margin = random.normal(0, 2, rows)
    evidence = window(random, logistic(margin), logistic(margin + random.normal(0, 0.2, rows)))
    own = evidence.shadow.score.copy()
    place = evidence.shadow.segments[:, 0] == country
    own[place] = random.permutation(own[place])
    return replace(evidence, shadow=replace(evidence.shadow, score=own, label=labels(own)))


def test_a_country_that_the_candidate_ranks_at_random_is_reported() -> None:
    report = reported(broken(np.random.default_rng(1), country=3))
    assert [one.level for one in report.segments if one.worse] == ["FR"]
    assert any("agreement on the flagged requests" in one for one in report.worse)
    assert "country FR" in report.words
    assert all(one.startswith("country FR: ") for one in report.worse)
    good, bad = of(report, "NL"), of(report, "FR")
    assert good.measures["flagged_agreement"].low > 0.35 > bad.measures["flagged_agreement"].high  # type: ignore[operator]
    assert bad.swapped_in is not None
    assert bad.swapped_in > 0
    assert abs(sum(good.live.values()) - 1) < 1e-9
    assert set(good.candidate) == {"approve", "review", "decline"}


def test_all_other_gates_pass_if_one_country_is_ranked_at_random() -> None:
    evidence = broken(np.random.default_rng(1), country=12)
    agreement = GateSpec("flagged_agreement", ">= 0.35 lower95", against="live")
    assert evaluate([agreement], evidence)[0].outcome is Outcome.PASS, "no gate on all traffic fails"


def test_bands_are_in_the_order_of_their_numbers_and_categories_by_rows() -> None:
    random = np.random.default_rng(1)
    evidence = window(random, *(logistic(random.normal(0, 2, 3_000)) for _ in range(2)))
    # The names are in the order in which they came, and the highest band has the most rows.
    bands = ["from 100", "below 20", "20 to 100"]
    segments = evidence.shadow.segments.copy()
    segments[:, 1] = random.choice([0, 1, 2, 3], len(segments), p=[0.3, 0.4, 0.1, 0.2])
    names = {**evidence.shadow.names, "segment:amount": ["", *bands]}
    report = reported(replace(evidence, shadow=replace(evidence.shadow, segments=segments, names=names)))
    amounts = [one.level for one in report.segments if one.feature == "amount"]
    assert amounts == ["below 20", "20 to 100", "from 100", MISSING]
    counts = [one.rows for one in report.segments if one.feature == "country" and one.level != OTHER]
    assert counts == sorted(counts, reverse=True)


def test_counts_equal_those_of_the_rows() -> None:
    evidence = broken(np.random.default_rng(5), country=2, rows=8_000)
    rows, segment = evidence.shadow, of(reported(evidence), "DE")
    place = rows.segments[:, 0] == 2
    own, live = rows.label[place] > 1, rows.live_label[place] > 1
    assert (segment.rows, segment.live_rows) == (place.sum(), place.sum())
    assert (segment.swapped_in, segment.swapped_out) == ((own & ~live).sum(), (live & ~own).sum())
    assert segment.candidate["approve"] == pytest.approx((~own).mean())
    assert segment.live["decline"] == pytest.approx((rows.live_label[place] == 3).mean())
    delta = segment.measures["approve_rate_delta"]
    assert delta.value == pytest.approx(live.mean() - own.mean())
    assert delta.low < delta.value < delta.high  # type: ignore[operator]


def test_a_segment_with_too_few_rows_is_not_compared() -> None:
    evidence = broken(np.random.default_rng(5), country=2, rows=2_000)
    evidence = replace(evidence, segments=replace(PLAN, rows=500))
    report = reported(evidence)
    assert report.judged == 3, "only the bands of the amount are compared"
    few = of(report, "DE")
    assert (few.judged, few.measures, few.worse, few.live) == (False, {}, (), {})
    assert few.rows > 0
    assert "fewer than 500 rows" in report.words


def test_the_number_of_segments_is_bounded() -> None:
    evidence = broken(np.random.default_rng(5), country=2)
    report = reported(replace(evidence, segments=replace(PLAN, most=3)))
    assert len(report.segments) == 4 + 3
    assert sum(one.rows for one in report.segments if one.feature == "country") == len(evidence.shadow)
    assert of(report, OTHER).rows > 0


def test_bounds_are_corrected_for_the_number_of_comparisons() -> None:
    evidence = broken(np.random.default_rng(5), country=2)
    few = reported(replace(evidence, segments=replace(PLAN, rows=2_000)))
    many = reported(evidence)
    assert few.judged < many.judged
    assert few.confidence < many.confidence
    narrow, wide = (of(one, "NL").measures["approve_rate_delta"] for one in (few, many))
    assert wide.low < narrow.low < narrow.high < wide.high  # type: ignore[operator]


def test_calibration_and_auc_use_matured_outcomes() -> None:
    random = np.random.default_rng(2)
    margin = random.normal(-2, 1.5, 30_000)
    evidence = window(random, logistic(margin), logistic(margin + 1.0))
    fraud = (random.random(30_000) < logistic(margin)).astype(np.float64)
    assert "calibration" not in of(reported(evidence), "NL").measures
    known = replace(
        evidence,
        outcomes={"fraud": (evidence.shadow.key, fraud)},
        matured_before=int(evidence.shadow.at.max()) + 1,
    )
    result = of(reported(known), "NL").measures
    live, own = result["calibration_live"], result["calibration"]
    assert live.low < 1 < live.high  # type: ignore[operator]
    assert own.low > 1.2  # type: ignore[operator]
    assert abs(result["auc_matured"].value or 0) < 1e-9, "a shifted score has the same ranking"


def test_rows_without_segment_features_have_no_report() -> None:
    random = np.random.default_rng(1)
    evidence = ShadowEvidence("score", 5_000, observed(100, random), empty())
    assert segment_report(evidence) is None
    assert measured(None).missing


# --- gates and advice ---


def judged(evidence: ShadowEvidence, *, decides: bool) -> tuple[SegmentReport, dict[str, Any]]:
    report = reported(evidence)
    specs = [*SCORE, *gate_of(report, SCORE, decides=decides)]
    results = evaluate(specs, evidence, segments=measured(report))
    return report, {one.metric: one for one in results}


def test_a_finding_is_advice_unless_the_settings_make_it_a_gate() -> None:
    evidence = broken(np.random.default_rng(1), country=3)
    report, advice = judged(evidence, decides=False)
    assert advice[SEGMENTS].outcome is Outcome.FAIL
    assert not advice[SEGMENTS].blocks
    (remark,) = [one for one in review(list(advice.values()), {}).remarks if one.metric == SEGMENTS]
    assert report.worse[0].removeprefix("c") in remark.reason
    assert report.worse[0].startswith("country FR: ")
    _, decided = judged(evidence, decides=True)
    assert decided[SEGMENTS].blocks


def test_a_segment_without_a_difference_adds_no_advice() -> None:
    random = np.random.default_rng(4)
    margin = random.normal(0, 2, 20_000)
    evidence = window(random, logistic(margin), logistic(margin))
    _, advice = judged(evidence, decides=False)
    assert SEGMENTS not in advice
    _, decided = judged(evidence, decides=True)
    assert decided[SEGMENTS].outcome is Outcome.PASS


def test_gates_and_deciding_segments_share_the_false_alarm_rate() -> None:
    random = np.random.default_rng(4)
    margin = random.normal(0, 2, 20_000)
    evidence = window(random, logistic(margin), logistic(margin))
    limits = []
    for decides in (False, True):
        specs = [GateSpec("score_psi_live", "< threshold(floor=0)"), *gate_of(None, (), decides=decides)]
        limits.append(evaluate(specs, evidence, segments=measured(reported(evidence)))[0].threshold)
    assert limits[0] < limits[1], "a smaller share of the false-alarm rate gives a higher threshold"  # type: ignore[operator]


# --- false alarms ---

WINDOWS = 300


def equally_good(random: np.random.Generator) -> ShadowEvidence:
    """Return two equally good models that differ by independent noise. All outcomes are known."""
    rows = 8_000
    truth = random.normal(-1, 1.5, rows)
    live, own = (logistic(truth + random.normal(0, 0.4, rows)) for _ in range(2))
    evidence = window(random, live, own)
    fraud = (random.random(rows) < logistic(truth)).astype(np.float64)
    return replace(
        evidence,
        outcomes={"fraud": (evidence.shadow.key, fraud)},
        matured_before=int(evidence.shadow.at.max()) + 1,
    )


def approving_less(random: np.random.Generator) -> ShadowEvidence:
    """Return a candidate that approves two points less in every segment, which is exactly at the limit."""
    rows = 8_000
    live = logistic(random.normal(0, 2, rows))
    before = labels(live)
    added = (before == 1) & (random.random(rows) < 0.02 / 0.9)
    return window(random, live, live, own_label=np.where(added, 2, before))


def agreeing_least(random: np.random.Generator) -> ShadowEvidence:
    """Return a candidate at the limit: in every segment it flags 35 % of the live flags beyond chance."""
    rows = 8_000
    live = logistic(random.normal(0, 2, rows))
    own = np.where(random.random(rows) < 0.35, live, logistic(random.normal(0, 2, rows)))
    return window(random, live, own)


@pytest.mark.parametrize("pair", [equally_good, approving_less, agreeing_least])
def test_a_segment_is_reported_by_chance_in_at_most_two_percent_of_windows(pair: Any) -> None:
    alarms, segments = 0, 0
    for seed in range(WINDOWS):
        report = reported(pair(np.random.default_rng(seed)))
        alarms += bool(report.worse)
        segments += report.judged
    assert segments > 8 * WINDOWS, "the windows must have many segments"
    assert alarms <= 0.02 * WINDOWS


def test_a_canary_with_many_analyses_keeps_its_false_alarm_rate() -> None:
    alarms = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        own, live = (
            window(random, score, score).shadow for score in logistic(random.normal(0, 2, (2, 6_000)))
        )
        # Two points less are exactly at the limit.
        added = (own.label == 1) & (random.random(6_000) < 0.02 / 0.9)
        evidence = ShadowEvidence(
            "score",
            5_000,
            replace(own, label=np.where(added, 2, own.label)),
            live,
            bands=LABELS[1:],
            segments=replace(PLAN, rows=100),
        )
        seen = False
        for rows in range(500, 6_001, 500):
            part = replace(evidence, shadow=own.take(slice(0, rows)), control=live.take(slice(0, rows)))
            seen |= bool(reported(part, stage="stage 1").worse)
        alarms += seen
    assert alarms <= 2


# --- from the log to the report ---


def segmented(tmp_path: Path, built_bundles: dict[str, Path], **settings: Any) -> World:
    world = World(tmp_path, built_bundles["score-1"], built_bundles["score-2"])
    own = SegmentSettings(bands={"amount": [70.0]}, rows=50, **settings)
    (name,) = world.settings.checkpoints
    changed = world.settings.checkpoints[name].model_copy(update={"segments": own})
    world.settings.replace(fleet=world.settings.fleet, checkpoints={name: changed})
    return world


def test_observations_contain_their_segments(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    world = segmented(tmp_path, built_bundles)
    records = world.records(400)
    world.logs["live-1"].append(records)
    world.readouts.collect()
    report = world.readouts.readout(ADMIN, "cr-000001").segments
    assert report is not None
    amounts = np.array(
        [one.observation.decision.features[0] for one in records if one.HasField("observation")][::2]
    )
    expected = {"below 70": int((amounts < 70).sum()), "from 70": int((amounts >= 70).sum())}
    assert {one.level: one.rows for one in report.segments} == expected
    assert all(one.judged for one in report.segments)
    assert report.stage == "shadow"


def test_a_final_report_keeps_its_segments(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    world = segmented(tmp_path, built_bundles, features=["issuer"])
    world.logs["live-1"].append(world.records(400))
    world.readouts.collect()
    before = world.readouts.readout(ADMIN, "cr-000001")
    assert before.segments is not None
    assert before.segments.notes == ("rows are not split by issuer: the bundle has no such feature",)
    world.readouts.finish(world.change, world.readouts.judge(world.change), Outcome.PASS)
    world.readouts = world.new_collector()
    report = world.readouts.readout(ADMIN, "cr-000001")
    assert report.is_final
    assert report.segments == before.segments
    assert keep.document(report)["segments"]["segments"][0]["level"]
    part = world.readouts.readout(ADMIN, "cr-000001", server="live-1")
    assert part.segments is not None
    assert sum(one.rows for one in part.segments.segments) == 400
    assert world.readouts.figure(ADMIN, "cr-000001", "segments").rows


def test_parts_of_earlier_versions_have_no_segments(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    world = World(tmp_path, built_bundles["score-1"], built_bundles["score-2"])
    world.logs["live-1"].append(world.records(100))
    world.readouts.collect()
    assert world.readouts.readout(ADMIN, "cr-000001").segments is None
    (name,) = world.settings.checkpoints
    own = SegmentSettings(bands={"amount": [70.0]}, rows=50)
    changed = world.settings.checkpoints[name].model_copy(update={"segments": own})
    world.settings.replace(fleet=world.settings.fleet, checkpoints={name: changed})
    world.readouts = world.new_collector()
    world.logs["live-1"].append(world.records(100, first=100))
    world.readouts.collect()
    report = world.readouts.readout(ADMIN, "cr-000001").segments
    assert report is not None
    assert {one.level: one.rows for one in report.segments}[MISSING] == 100


def test_a_canary_has_segments_of_both_lanes(tmp_path: Path, built_bundles: dict[str, Path]) -> None:
    world = segmented(tmp_path, built_bundles)
    world.release()
    records = []
    for one in world.records(1_200):
        if not one.HasField("decision"):
            continue
        own = int(one.decision.decision_id[-1]) % 2 == 0
        if own:
            one.decision.lane = "canary"
            one.decision.bundle = bytes.fromhex(world.change.bundle.removeprefix("sha256:"))
        records.append(one)
    world.logs["live-1"].append(records)
    world.readouts.collect()
    world.readouts.judge_canary(replace(world.change, step="stage 1"), START)
    world.readouts.finish(world.change, (), Outcome.PASS)
    world.readouts = world.new_collector()
    report = world.readouts.readout(ADMIN, "cr-000001").canary
    assert report is not None
    assert report.stage == "stage 1"
    result = {one.level: (one.rows, one.live_rows) for one in report.segments}
    # The interim analyses are at 200, 300, 450 rows of the canary's 600.
    assert sum(rows for rows, _ in result.values()) == 450
    assert all(live > 0 for _, live in result.values())
    assert all("approve_rate_delta" in one.measures for one in report.segments)


def test_a_figure_shows_the_segments() -> None:
    evidence = broken(np.random.default_rng(1), country=3)
    assert figure_names(evidence)[-1] == "segments"
    result = figure(evidence, "segments")
    drawn = {trace["name"]: trace["y"] for trace in result.plotly["data"]}
    assert drawn["clearly worse"] == ["country FR"]
    assert "country NL" in drawn["as live"]
    assert {row[1] for row in result.rows} == {*COUNTRIES, "below 20", "20 to 100", "from 100"}


# --- presentation ---


def test_the_command_prints_worse_segments_before_the_gates(capsys: pytest.CaptureFixture[str]) -> None:
    result = synthetic_readout(rows=12_000)
    assert result.segments is not None
    assert result.segments.worse
    few = replace(
        result.segments, segments=(replace(result.segments.segments[0], judged=False, measures={}),)
    )
    print_readout(replace(result, canary=replace(few, stage="stage 1", worse=())))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"worth a look (shadow): {result.segments.worse[0]}"
    (row,) = [line for line in lines if line.startswith(" country BE ")]
    assert "worse" in row
    assert "-0.09118 (-0.1601 to -0.03179)" in row, "there is one line per segment"
    few_rows = [" ".join(line.split()[:2]) for line in lines if "too few rows" in line]
    assert few_rows == ["country AT", "country PL", "country NL"], (
        "two segments are of the shadow and one of the canary"
    )


def test_the_html_report_has_the_segments() -> None:
    page = render(synthetic_readout(rows=12_000))
    assert "Worth a look: country BE: " in page
    assert page.index("Segments (shadow)") < page.index("Summary")
    assert "country PL" in page
    actions = render(synthetic_readout("action", rows=4_000))
    assert "same_action" in actions
