"""Tests that the numbers of figures are those of the observations, and that the figures can be drawn."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from readouts import actions, retrained, synthetic_readout
from scipy import stats

from loadtests import windows
from scorer import figure_style as style
from scorer.bundle.statistics import distribution
from scorer.figure import Figure
from scorer.figure_style import log_axis, steps
from scorer.release.gates import counting
from scorer.release.gates.evidence import Counter, ShadowEvidence, empty
from scorer.release.readout import build
from scorer.release.readout.figures import choices, coverage, scores, times


def rows(figure: Figure, **where: Any) -> list[dict[str, Any]]:
    table = [dict(zip(figure.columns, row, strict=True)) for row in figure.rows]
    return [row for row in table if all(row[name] == value for name, value in where.items())]


@pytest.fixture(scope="module")
def evidence() -> ShadowEvidence:
    return retrained(12_000)


@pytest.mark.parametrize("kind", ["score", "action", "nothing"])
def test_every_figure_is_plain_json_and_has_its_numbers(kind: str) -> None:
    readout = synthetic_readout(kind, rows=3_000)
    names = [figure.name for figure in readout.figures]
    assert len(set(names)) == len(names)
    for figure in readout.figures:
        # NaN is not valid JSON, so a page could not draw it.
        json.dumps([figure.plotly, figure.rows], allow_nan=False)
        assert set(figure.plotly) == {"data", "layout"}
        assert all(len(row) == len(figure.columns) for row in figure.rows)
        assert figure.words.endswith(".")
        assert "title" not in figure.plotly["layout"]
    json.dumps([readout.summary, readout.examples], allow_nan=False)
    if kind == "nothing":
        assert {figure.words for figure in readout.figures} == {"Nothing has been observed yet."}


def test_plotly_accepts_every_figure() -> None:
    graph = pytest.importorskip("plotly.graph_objects", reason="needs scorer[platform]")
    for kind in ("score", "action"):
        for figure in synthetic_readout(kind, rows=2_000).figures:
            assert graph.Figure(figure.plotly).data or not figure.rows


def test_latency_over_time_equals_the_quantiles_of_numpy_by_bucket(evidence: ShadowEvidence) -> None:
    figure = times.execution(evidence)
    result = rows(figure, side="shadow")
    assert sum(row["rows"] for row in result) == 12_000
    shadow = evidence.shadow
    start = times.moment
    bucket, step = times.buckets(shadow.at, most=60)
    assert step == 60_000_000
    for row in result[:3]:
        own = shadow.exec_us[[start(int(one)) == row["time"] for one in bucket]]
        assert row["p50_us"] == np.quantile(own, 0.5, method="inverted_cdf")
        assert row["p99_us"] == np.quantile(own, 0.99, method="inverted_cdf")
    traces = {trace["name"]: trace for trace in figure.plotly["data"]}
    assert traces["SLA 5 ms"]["y"] == [5.0, 5.0]
    assert figure.plotly["layout"]["yaxis"]["type"] == "log"
    shown = {name for name, trace in traces.items() if trace.get("visible", True) is True}
    assert {"live p50", "live p99", "this bundle p50", "this bundle p99", "A/A control p99"} <= shown
    assert not {"live p99.9", "this bundle p99.9"} & shown


def test_errors_have_no_latency(evidence: ShadowEvidence) -> None:
    broken = replace(evidence.shadow, error=np.ones(12_000, np.int64), exec_us=np.full(12_000, 1e9))
    figure = times.execution(replace(evidence, shadow=broken))
    assert not rows(figure, side="shadow")
    assert rows(figure, side="live")


def test_the_latency_curve_is_the_empirical_distribution(evidence: ShadowEvidence) -> None:
    for row in rows(times.latency(evidence), side="shadow")[1:]:
        assert (evidence.shadow.exec_us <= row["exec_us"]).mean() >= row["share"] - 1e-9
        assert (evidence.shadow.exec_us < row["exec_us"]).mean() <= row["share"] + 1e-9


def test_histograms_add_up_and_the_reference_keeps_its_mass(evidence: ShadowEvidence) -> None:
    figure = scores.histogram(evidence)
    table = rows(figure)
    for side in ("live", "shadow", "control", "training"):
        assert sum(row[side] for row in table) == pytest.approx(1)
    counts, _ = np.histogram(evidence.shadow.score, [row["from"] for row in table] + [table[-1]["to"]])
    assert [row["shadow"] for row in table] == pytest.approx((counts / 12_000).tolist())


@pytest.mark.parametrize("shape", windows.SHAPES)
def test_the_bars_of_a_reference_equal_its_counts(shape: str) -> None:
    values = windows.fraud_scores(4_000, np.random.default_rng(2), shape=shape)
    own = distribution(values)
    edges = scores.bins(np.asarray(own.edges), float(values.min()), float(values.max()))
    assert len(edges) > 12
    expected = np.histogram(values, edges)[0] / len(values)
    result = scores.counted(np.asarray(own.edges), np.asarray(own.counts), edges)
    assert result == pytest.approx(expected, abs=1e-12)


def test_bins_without_scores_are_empty(evidence: ShadowEvidence) -> None:
    """A reference with two clusters has no values between them, and neither does its figure."""
    clumps = np.concatenate([np.linspace(0.01, 0.05, 900), np.linspace(0.93, 0.99, 100)])
    figure = scores.histogram(replace(evidence, training=distribution(clumps)))
    between = [row["training"] for row in rows(figure) if row["from"] >= 0.06 and row["to"] <= 0.92]
    assert len(between) > 10
    assert set(between) == {0.0}
    (line,) = (trace for trace in figure.plotly["data"] if trace["name"] == "training")
    drawn = [x for x in line["x"] if x is not None]
    assert not [x for x in drawn if 0.06 < x < 0.92]


def test_bins_of_different_widths_are_drawn_as_densities() -> None:
    edges = np.array([0.0, 0.01, 0.03, 0.1])
    what, (heights,) = style.heights(edges, np.array([0.2, 0.2, 0.6]))
    assert "per 0.01" in what
    assert heights.tolist() == pytest.approx([0.2, 0.1, 0.6 / 7])
    even, (same,) = style.heights(np.linspace(0, 1, 4), np.array([0.2, 0.2, 0.6]))
    assert (even, same.tolist()) == ("share", [0.2, 0.2, 0.6])


def test_the_sla_is_marked_above_the_bars_of_data_load_and_execution(evidence: ShadowEvidence) -> None:
    """An SLA near the longest bar is a line across the chart, one far above is a label."""
    near = times.data_load(replace(evidence, sla_us=500)).plotly["layout"]
    (shape,) = near["shapes"]
    assert (shape["y0"], shape["y1"], shape["xref"]) == (0.5, 0.5, "paper")
    assert near["annotations"][0]["text"] == "SLA 500 µs"
    far = times.data_load(replace(evidence, sla_us=400_000)).plotly["layout"]
    assert far["shapes"] == []
    assert far["annotations"][0]["text"] == "SLA 400 ms \N{UPWARDS ARROW}"
    for plot, limit in ((near, 0.5), (far, 0.0)):
        longest = max(row[column] for row in times.data_load(evidence).rows for column in (2, 3)) / 1000
        low, high = plot["yaxis"]["range"]
        assert low < math.log10(max(longest, limit)) < high


def test_the_latency_axis_covers_the_data_and_a_distant_sla_is_a_label(evidence: ShadowEvidence) -> None:
    """An SLA near the data is drawn as a line.

    A distant SLA is a label, and the axis covers only the data.
    """
    outlier = evidence.shadow.exec_us.copy()
    outlier[0] = 1e9
    near = times.latency(replace(evidence, shadow=replace(evidence.shadow, exec_us=outlier)))
    low, high = near.plotly["layout"]["xaxis"]["range"]
    assert 10**low * 1000 > evidence.shadow.exec_us.min() * 0.5
    assert 5 < 10**high < 50
    assert [trace["x"] for trace in near.plotly["data"] if trace["name"] == "SLA 5 ms"] == [[5.0, 5.0]]
    far = times.latency(replace(evidence, sla_us=400_000))
    assert far.plotly["layout"]["xaxis"]["range"][1] < 2
    assert not [trace for trace in far.plotly["data"] if trace["name"].startswith("SLA")]
    assert [one["text"] for one in far.plotly["layout"]["annotations"]] == ["SLA 400 ms \N{RIGHTWARDS ARROW}"]
    over = times.execution(replace(evidence, sla_us=400_000)).plotly
    assert over["layout"]["yaxis"]["range"][1] < 2
    assert over["layout"]["annotations"][0]["text"].startswith("SLA 400 ms")


def test_psi_and_kl_are_in_the_text(evidence: ShadowEvidence) -> None:
    words = scores.apart(evidence)
    assert "against live PSI 0.0" in words
    assert "against the reference PSI 0.0" in words
    far = replace(evidence, shadow=replace(evidence.shadow, score=np.full(12_000, 0.99)))
    own, live = far.shadow.score, far.shadow.live_score
    edges = np.array([-1.0, 0.5, 2.0])
    assert stats.entropy(*(np.histogram(x, edges)[0] + 0.5 for x in (own, live))) > 1
    assert "PSI 0.0" not in scores.apart(far)


def test_score_against_score_counts_every_pair_once(evidence: ShadowEvidence) -> None:
    figure = scores.against(evidence)
    assert sum(row["requests"] for row in rows(figure)) == 12_000


def test_the_flip_matrix_counts_decisions(evidence: ShadowEvidence) -> None:
    figure = choices.flips(evidence)
    names = evidence.shadow.labels()
    for row in rows(figure):
        both = (evidence.shadow.live_label == names.index(row["live"])) & (
            evidence.shadow.label == names.index(row["this bundle"])
        )
        assert row["requests"] == both.sum()
    assert sum(row["requests"] for row in rows(figure)) == 12_000


def test_many_actions_are_shown_as_others() -> None:
    evidence = actions(3_000)
    codes = np.arange(3_000) % 60 + 1
    names = {**evidence.shadow.names, "label": ["", *(f"action {n}" for n in range(60))]}
    shadow = replace(evidence.shadow, label=codes, live_label=codes, top=codes, live_top=codes, names=names)
    figure = choices.flips(replace(evidence, shadow=shadow))
    assert "others" in figure.plotly["data"][0]["x"]
    assert sum(row["requests"] for row in rows(figure)) == 3_000


def test_live_answers_without_a_model_are_not_compared(evidence: ShadowEvidence) -> None:
    fallback = (np.arange(12_000) % 4 == 0).astype(np.int64)
    part = replace(evidence, shadow=replace(evidence.shadow, live_fallback=fallback))
    assert sum(row["requests"] for row in rows(choices.flips(part))) == 9_000


def counter(at: int, taken: int, dropped: int, server: str = "a", **more: Any) -> Counter:
    own = {"seen": taken * 10, "shed": 0, "failed": 0, "unlogged": 0, "evaluated": taken, **more}
    return Counter(at=at * 1_000_000, server=server, lane="cr-000001", taken=taken, dropped=dropped, **own)


def test_counters_that_restart_are_summed() -> None:
    counters = [
        counter(1, 10, 0),
        counter(2, 30, 5),
        counter(3, 8, 1),
        counter(4, 20, 1),
        counter(2, 7, 7, server="b"),
    ]
    totals = counting.totals(counters)
    assert (totals["taken"], totals["dropped"]) == (30 + 20 + 7, 5 + 1 + 7)
    figure = coverage.drops(ShadowEvidence("score", 1e3, empty(), empty(), counters=counters))
    assert sum(row["taken"] for row in rows(figure)) == 57
    assert sum(row["dropped"] for row in rows(figure)) == 13


def test_hours_of_the_week_start_on_monday() -> None:
    monday = 1_772_409_600_000_000  # 2026-03-02T00:00:00Z
    at = np.array([monday, monday + 25 * 3_600_000_000, monday - 1], dtype=np.int64)
    evidence = windows.same_bundle(3, np.random.default_rng(1))
    figure = coverage.coverage(replace(evidence, shadow=replace(evidence.shadow, at=at)))
    assert [tuple(row) for row in figure.rows] == [("Mon", 0, 1), ("Tue", 1, 1), ("Sun", 23, 1)]


def test_examples_are_the_largest_differences(evidence: ShadowEvidence) -> None:
    examples = build.examples(evidence)
    apart = [abs(one["score"] - one["live_score"]) for one in examples]
    assert apart == sorted(apart, reverse=True)
    assert all(one["live"] != one["shadow"] for one in examples)


def test_the_summary_excludes_errors_from_latencies(evidence: ShadowEvidence) -> None:
    error = (np.arange(12_000) < 30).astype(np.int64)
    slow = np.where(error > 0, 1e8, evidence.shadow.exec_us)
    summary = build.summary(replace(evidence, shadow=replace(evidence.shadow, error=error, exec_us=slow)))
    assert summary["errors"] == {"panic": 30}
    assert summary["execution"]["shadow"]["p999"] < 1e6
    assert summary["approve"]["live"] == pytest.approx((evidence.shadow.live_label[30:] == 1).mean())


def test_a_histogram_is_drawn_as_steps_with_gaps_where_bins_are_empty() -> None:
    x, y = steps([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.25, 0.0, 0.0, 0.25])
    assert x == [0.0, 0.1, 0.1, 0.2, None, 0.4, 0.5]
    assert y == [0.5, 0.5, 0.25, 0.25, None, 0.25, 0.25]
    assert steps([0.0, 1.0], [0.0]) == ([], [])


def test_bands_are_in_ascending_order_in_every_figure(evidence: ShadowEvidence) -> None:
    """The order is that of the bundle's thresholds and not that of the bands' frequency."""
    for kept in (slice(None), slice(0, 400), slice(400, 900)):
        shadow = evidence.shadow.take(np.arange(len(evidence.shadow))[kept])
        plotly = choices.flips(replace(evidence, shadow=shadow)).plotly
        order = ["approve", "review", "decline"]
        assert plotly["data"][0]["x"] == plotly["data"][0]["y"]
        assert plotly["data"][0]["x"] == [name for name in order if name in plotly["data"][0]["x"]]
        assert "autorange" not in plotly["layout"]["yaxis"]
    names = {**evidence.shadow.names, "label": ["", "low", "middle", "high"]}
    renamed = replace(evidence, shadow=replace(evidence.shadow, names=names), bands=("high", "low", "middle"))
    assert choices.flips(renamed).plotly["data"][0]["x"] == ["high", "low", "middle"]


@pytest.mark.parametrize("values", [[0.01, 0.011], [0.001, 5.0], [1e-7, 10.0], [None, 0.0], [3.0]])
def test_ticks_of_a_log_axis_are_few_enough_not_to_overlap(values: list[float | None]) -> None:
    result = log_axis("x", values)
    assert 1 <= len(result["tickvals"]) <= 8
    assert result["tickvals"] == sorted(set(result["tickvals"]))
    assert [float(text.replace(",", "")) for text in result["ticktext"]] == pytest.approx(result["tickvals"])
