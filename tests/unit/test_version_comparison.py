"""Tests of the comparison of versions over time: known data, metrics against scikit-learn, and its limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import labelling
import numpy as np
import pytest
from bundles import score_bundle_of
from labelling import DAY, HOUR, POINT, START, MemoryLog, MemorySource, ScoreRecords, report
from logs import write_segment
from sklearn.metrics import average_precision_score, precision_score, recall_score, roc_auc_score
from typer.testing import CliRunner

from scorer.bundle import Feature
from scorer.cli import app
from scorer.learn import displayed
from scorer.learn.comparison.comparing import compare_rows
from scorer.learn.comparison.figures import charts, group_names
from scorer.learn.comparison.measures import MeasuredPart, score_draws
from scorer.learn.comparison.results import VersionComparison, read_comparison
from scorer.learn.comparison.rows import ComparedRows, Prepared
from scorer.learn.comparison.running import ComparisonJob, compare_versions
from scorer.learn.comparison.settings import ComparisonSettings, Cost, CostMatrix
from scorer.learn.comparison.versions import VersionFacts
from scorer.learn.comparison.weeks import Week, first_week, week_begin_ms
from scorer.learn.errors import DataError
from scorer.learn.labels.settings import LabelKind, LabelSettings
from scorer.learn.notebook import compare
from scorer.log import BundleShelf
from scorer.stats.blocks import FEW_DRAWS

WEEK = 7 * DAY
WEEKS = 10
AS_OF = START + WEEKS * WEEK
TURN = 4
"""From this week on, version B is the better one."""
SETTINGS = ComparisonSettings(
    weeks=WEEKS + 1,
    costs=CostMatrix(missed=Cost(share=1.0), refused=Cost(fixed=2.0)),
    amount="money",
)
LABELS = LabelSettings(kinds=(LabelKind(kind="fraud"),), wait_hours=24 * 14, horizon_days=21)


@dataclass(frozen=True)
class World:
    """Decisions of ten weeks, whose fraud depends on `x` before week 4 and on `y` from then on."""

    folder: Path
    a: str
    b: str
    c: str
    row: dict[str, np.ndarray]

    def source(self, *, without: Sequence[int] = (), no_fraud_in: Sequence[int] = ()) -> MemorySource:
        row = self.row
        week = (row["time_ms"] - START) // WEEK
        kept = ~np.isin(week, without)
        fraud = row["fraud"] & kept & ~np.isin(week, no_fraud_in)
        at = np.flatnonzero(kept)
        names = [f"d{one}" for one in at]
        served = np.where(row["by_b"][at], self.b, self.a)
        features = np.stack([row["x"], row["y"], row["money"]], axis=1).astype(np.float32)
        own = np.where(row["by_b"][:, None], features[:, [1, 0, 2]], features)[at]
        told = np.flatnonzero(fraud)
        known = row["time_ms"][told] + row["delay"][told]
        come = known <= AS_OF
        return MemorySource(
            [
                MemoryLog(
                    "log",
                    [
                        labelling.decisions(
                            names,
                            row["time_ms"][at],
                            bundle=served.tolist(),
                            features=own.tolist(),
                            decision=np.where(row["stopped"][at], "review", "approve").tolist(),
                        ),
                        labelling.outcomes(
                            [f"d{one}" for one in told[come]],
                            ["fraud"] * int(come.sum()),
                            np.ones(int(come.sum())),
                            known[come],
                            first=len(at),
                        ),
                    ],
                )
            ]
        )

    @property
    def shelf(self) -> BundleShelf:
        return BundleShelf([self.folder])

    def job(self, *digests: str, **changed: Any) -> ComparisonJob:
        job = ComparisonJob(POINT, digests or (self.a, self.b), AS_OF, SETTINGS, LABELS)
        return replace(job, **changed)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("versions")
    x, y, money, z = (Feature(name=name) for name in ("x", "y", "money", "z"))
    bands = ((0.0, "approve"), (0.5, "review"))
    a = score_bundle_of(folder / "a", [x, y, money], name="fraud-a", bands=bands)
    b = score_bundle_of(folder / "b", [y, x, money], name="fraud-b", bands=bands)
    c = score_bundle_of(folder / "c", [x, y, money, z], name="fraud-c", bands=bands)
    pick = np.random.default_rng(5)
    n = 400 * WEEKS
    time_ms = START + np.sort(pick.integers(0, WEEKS * WEEK, n))
    values = {name: pick.uniform(0, 200, n).astype(np.float32) for name in ("x", "y")}
    driver = np.where(time_ms < START + TURN * WEEK, values["x"], values["y"])
    row = {
        "time_ms": time_ms,
        **values,
        "money": pick.uniform(1, 100, n).astype(np.float32),
        "fraud": pick.random(n) < np.where(driver > 150, 0.5, 0.02),
        "delay": np.round(pick.uniform(0, 10, n) * DAY).astype(np.int64),
        "by_b": (time_ms >= START + 6 * WEEK) & (pick.random(n) < 0.5),
        "stopped": values["x"] > 170,
    }
    yield World(folder, a, b, c, row)


@pytest.fixture(scope="module")
def found(world: World) -> VersionComparison:
    return compare_versions(world.source(), world.shelf, world.job())


def best(found: VersionComparison, metric: str) -> list[int | None]:
    """Return the best version of each week; None: the week has none."""
    known = {one.week: one.version for one in found.best if one.metric == metric}
    return [known.get(at) for at in range(len(found.weeks))]


def test_the_better_version_changes_in_the_week_in_which_fraud_changes(found: VersionComparison) -> None:
    settled = [at for at, week in enumerate(found.weeks) if week.settled]
    # The labels of the last two whole weeks have not matured, and the current week has only begun.
    assert settled == list(range(WEEKS - 2))
    for metric in ("average_precision", "auc", "recall_at_live_rate"):
        assert best(found, metric) == [0] * TURN + [1] * (WEEKS - 2 - TURN) + [None] * 3, metric
    assert all(one.clear for one in found.best if one.metric == "auc")
    one = next(one for one in found.pairs if one.metric == "auc")
    assert (one.left, one.right, one.weeks) == (0, 1, WEEKS - 2)


def test_progress_moves_with_every_replicate(world: World, found: VersionComparison) -> None:
    """The replicates take minutes at millions of decisions, and the page shows the progress meanwhile."""
    reported: list[tuple[str, float]] = []
    compare_versions(
        world.source(), world.shelf, world.job(), advance=lambda step, share: reported.append((step, share))
    )
    steps = list(dict.fromkeys(step for step, _ in reported))
    # The log is in memory, so that the two readings of it report nothing.
    assert steps == ["policy", "weeks", "served", "totals", "pairs"]
    shares = {name: [share for step, share in reported if step == name] for name in steps}
    for own in shares.values():
        assert own == sorted(own)
        assert 0 <= own[0] <= own[-1] <= 1
    # Two metrics of two versions have replicates.
    settled, replicates = sum(week.settled for week in found.weeks), 2 * 2 * FEW_DRAWS
    assert max(np.diff(shares["totals"])) <= 1 / replicates
    assert max(np.diff(shares["weeks"])) <= 1 / (replicates * settled)
    assert len(set(shares["served"])) > replicates


def test_weeks_that_have_not_matured_are_not_settled_and_have_no_values(found: VersionComparison) -> None:
    late = found.weeks[-3:]
    assert [week.settled for week in late] == [False] * 3
    assert "wait for their label" in late[0].reason and "has not ended" in late[2].reason
    assert not any(one.week is not None and one.week >= WEEKS - 2 and one.metrics for one in found.values)
    total = found.of(0, None, "backtest")
    assert total is not None
    assert total.rows == sum(week.labelled for week in found.weeks[: WEEKS - 2])
    assert 0 < late[0].maturity < 1 or late[1].maturity < 1


def test_maturity_by_the_curve_keeps_a_week_unsettled_that_no_decision_waits_in(world: World) -> None:
    quick = LABELS.model_copy(update={"wait_hours": 0.0})
    found = compare_versions(world.source(), world.shelf, world.job(labels=quick))
    last = found.weeks[WEEKS - 1]
    assert not last.settled and "of the labels have come" in last.reason
    loose = SETTINGS.model_copy(update={"least_maturity": 0.01})
    found = compare_versions(world.source(), world.shelf, world.job(labels=quick, settings=loose))
    assert found.weeks[WEEKS - 2].settled


@pytest.mark.parametrize("week", [0, 5])
@pytest.mark.parametrize("version", [0, 1])
def test_metrics_of_a_week_equal_those_of_scikit_learn(
    world: World, found: VersionComparison, week: int, version: int
) -> None:
    row = world.row
    of = (row["time_ms"] - START) // WEEK == week
    columns = ("x", "y", "money") if version == 0 else ("y", "x", "money")
    context = np.stack([row[name][of] for name in columns], axis=1).astype(np.float32)
    bundle = world.shelf.get((world.a, world.b)[version])
    assert bundle is not None
    scored, label = bundle.score(context), row["fraud"][of]
    flagged = scored.bands > 0
    one = found.of(version, week, "backtest")
    assert one is not None and (one.rows, one.positive) == (int(of.sum()), int(label.sum()))
    edges = np.unique(np.quantile(scored.scores, np.linspace(0, 1, 11)[1:-1]))
    bins = np.searchsorted(edges, scored.scores, side="right")
    gaps = [abs((scored.scores - label)[bins == at].sum()) for at in range(10)]
    saved = np.where(flagged, np.where(label, row["money"][of], -2.0), 0.0)
    live = int(row["stopped"][of].sum())
    at_rate = np.sort(scored.scores)[::-1][live - 1]
    # Rows that tie for the last places share them.
    above, level = scored.scores > at_rate, scored.scores == at_rate
    caught = label[above].sum() + label[level].sum() * (live - above.sum()) / level.sum()
    expected = {
        "auc": roc_auc_score(label, scored.scores),
        "average_precision": average_precision_score(label, scored.scores),
        "recall": recall_score(label, flagged),
        "precision": precision_score(label, flagged),
        "calibration_error": sum(gaps) / len(label),
        "recall_at_live_rate": caught / label.sum(),
        "value": 1000 * saved.mean(),
    }
    assert set(one.metrics) == set(expected)
    for name, value in expected.items():
        metric = one.metrics[name]
        assert metric.value == pytest.approx(value, rel=1e-6), name
        assert metric.low is not None and metric.high is not None
        assert metric.low < metric.value < metric.high, name


def test_what_a_version_served_is_measured_on_its_own_decisions(
    world: World, found: VersionComparison
) -> None:
    row = world.row
    of = ((row["time_ms"] - START) // WEEK == 7) & row["by_b"]
    one = found.of(1, 7, "served")
    assert one is not None and (one.rows, one.positive) == (int(of.sum()), int(row["fraud"][of].sum()))
    # The recorded decisions count, and not the thresholds of the bundle.
    assert one.metrics["recall"].value == pytest.approx(
        recall_score(row["fraud"][of], row["stopped"][of]), rel=1e-9
    )
    assert "recall_at_live_rate" not in one.metrics
    early = found.of(1, 2, "served")
    assert early is not None and not early.rows and early.reason == "it served no decision"


def test_a_version_without_its_features_is_left_out_with_the_reason(world: World) -> None:
    found = compare_versions(world.source(), world.shelf, world.job(world.a, world.b, world.c))
    alone = found.of(2, 1, "backtest")
    assert alone is not None and not alone.metrics
    assert alone.reason.endswith("did not log its feature z")
    total = found.of(2, None, "backtest")
    assert total is not None and "z" in total.reason
    assert {(one.left, one.right) for one in found.pairs} == {(0, 1)}
    # The other versions have the values that they have without it.
    pair = compare_versions(world.source(), world.shelf, world.job())
    assert found.of(0, 3, "backtest") == pair.of(0, 3, "backtest")


def test_weeks_in_which_no_version_has_a_score_have_the_reason_alone(world: World) -> None:
    found = compare_versions(world.source(), world.shelf, world.job(world.c))
    assert not found.pairs and not found.best and not found.metrics
    for week in (None, 1):
        one = found.of(0, week, "backtest")
        assert one is not None and one.reason.endswith("did not log its feature z")


def test_an_unknown_version_is_refused_with_the_reason(world: World) -> None:
    gone = "sha256:" + "f" * 64
    found = compare_versions(world.source(), world.shelf, world.job(world.a, gone))
    assert "was not found" in found.versions[1].refused
    one = found.of(1, 0, "backtest")
    assert one is not None and one.reason == found.versions[1].refused
    with pytest.raises(DataError, match="no version was found"):
        compare_versions(world.source(), world.shelf, world.job(gone))


def test_empty_weeks_and_weeks_without_positive_labels(world: World) -> None:
    found = compare_versions(world.source(without=[2], no_fraud_in=[3]), world.shelf, world.job())
    assert (found.weeks[2].settled, found.weeks[2].reason) == (False, "no decisions")
    one = found.of(0, 3, "backtest")
    assert found.weeks[3].settled and one is not None
    assert one.reason.startswith("no positive label of ")
    assert set(one.metrics) == {"precision", "calibration_error", "value"}
    assert one.metrics["precision"].value == 0
    assert best(found, "auc")[2:4] == [None, None]


def test_no_decisions_and_no_settled_weeks(world: World) -> None:
    with pytest.raises(DataError, match="lies in the window"):
        compare_versions(world.source(without=range(WEEKS)), world.shelf, world.job())
    found = compare_versions(world.source(), world.shelf, world.job(as_of_ms=START + WEEK))
    assert not any(week.settled for week in found.weeks)
    assert not found.pairs and not found.best and not found.metrics
    one = found.of(0, None, "backtest")
    assert one is not None and one.reason == "no week is settled"


def test_a_sample_keeps_positive_labels_and_weighs_the_others(world: World) -> None:
    found = compare_versions(world.source(), world.shelf, world.job())
    small = SETTINGS.model_copy(update={"rows": 1_200})
    sampled = compare_versions(world.source(), world.shelf, world.job(settings=small))
    one, all_ = sampled.of(0, None, "backtest"), found.of(0, None, "backtest")
    assert one is not None and all_ is not None
    assert one.rows < 1_300 < all_.rows and "decisions are used" in sampled.notes[0]
    assert one.positive > 0.8 * all_.positive
    for name in ("auc", "average_precision", "precision", "value"):
        metric = one.metrics[name]
        assert metric.low is not None and metric.high is not None
        assert metric.low < all_.metrics[name].value < metric.high, name


def test_values_are_bounded(world: World) -> None:
    with pytest.raises(DataError, match="13 versions are too many"):
        compare_versions(
            world.source(), world.shelf, world.job(world.a, *(f"sha256:{one:064}" for one in range(12)))
        )
    with pytest.raises(DataError, match="given twice"):
        compare_versions(world.source(), world.shelf, world.job(world.a, world.a))
    with pytest.raises(DataError, match="no version was found"):
        compare_versions(world.source(), world.shelf, replace(world.job(), digests=()))


def test_the_file_restores_the_comparison_and_answers_the_same_job(
    world: World, found: VersionComparison, tmp_path: Path
) -> None:
    file = tmp_path / "comparison.json"
    found.write(file)
    assert read_comparison(file) == found
    nothing = MemorySource([MemoryLog("log", [])])
    same = compare_versions(nothing, world.shelf, world.job(), cached=file)
    assert same.values == found.values
    later = compare_versions(world.source(), world.shelf, world.job(as_of_ms=AS_OF + WEEK), cached=file)
    assert sum(week.settled for week in later.weeks) > sum(week.settled for week in found.weeks) - 2
    assert later.job != found.job
    file.write_text("{}")
    with pytest.raises(DataError, match="no comparison"):
        read_comparison(file)


def test_the_table_has_a_row_for_every_value(found: VersionComparison) -> None:
    table = found.table()
    assert len(table) == sum(max(len(one.metrics), 1) for one in found.values)
    first = table.filter(table["metric"].to_numpy(zero_copy_only=False) == "auc").to_pylist()[0]
    own = found.of(0, 0, "backtest")
    assert own is not None and first["value"] == own.metrics["auc"].value
    assert first["week"] == "2026-01-05"


def rows_of(score: np.ndarray, label: np.ndarray, weight: np.ndarray, days: int = 30) -> ComparedRows:
    n = score.shape[-1]
    return ComparedRows(
        time_us=(np.arange(n) * days // n) * DAY * 1000,
        week=np.zeros(n, np.int64),
        outcome=label.astype(np.float64),
        weight=weight,
        served=np.zeros(n, np.int64),
        stopped=np.zeros(n, bool),
        amount=np.full(n, np.nan),
        values=np.atleast_2d(score),
        flags=np.atleast_2d(score) > 0.7,
        ratios=np.zeros((0, 0)),
    )


def test_weighted_metrics_equal_those_of_scikit_learn() -> None:
    pick = np.random.default_rng(2)
    score = np.round(pick.random(500), 1)
    label, weight = pick.random(500) < 0.1 + 0.3 * score, pick.uniform(0.1, 3, 500)
    part = MeasuredPart.of(rows_of(score, label, weight), ComparisonSettings(amount=""))
    found, reason = score_draws(part, 0, served=False)
    assert not reason
    for name, function in (("auc", roc_auc_score), ("average_precision", average_precision_score)):
        assert found[name].value == pytest.approx(function(label, score, sample_weight=weight))
    assert found["recall"].value == pytest.approx(recall_score(label, score > 0.7, sample_weight=weight))
    assert "value" not in found


def test_the_paired_interval_is_narrower_and_covers_the_truth() -> None:
    covered, widths = 0, []
    for seed in range(40):
        pick = np.random.default_rng(seed)
        n = 600
        label = pick.random(n) < 0.3
        shared = pick.normal(size=n) + label
        score = np.stack([shared, shared + 0.3 * pick.normal(size=n)])
        part = MeasuredPart.of(rows_of(score, label, np.ones(n)), ComparisonSettings())
        first, second = (score_draws(part, at, served=False)[0]["auc"] for at in (0, 1))
        low, high = first.minus(second).replicated().bounds(0.975)
        # Areas of shifted normal scores: Phi(1 / sqrt(2 (1 + s^2))).
        truth = [0.5 * (1 + math.erf(1 / math.sqrt(2 * (1 + s * s)) / math.sqrt(2))) for s in (0.0, 0.3)]
        covered += low <= truth[0] - truth[1] <= high
        own = first.replicated().bounds(0.975)
        widths.append((high - low) / (own.high - own.low))
    assert covered >= 34
    assert np.median(widths) < 0.6


def test_a_version_with_few_missing_scores_is_compared_on_the_others_for_all() -> None:
    pick = np.random.default_rng(1)
    label = pick.random(400) < 0.3
    score = np.stack([pick.random(400), pick.random(400)])
    score[1, :8] = np.nan
    week = Week("2026-01-05", 400, 400, int(label.sum()), 0, 1.0, True)
    versions = [VersionFacts(f"sha256:{at}", "v") for at in "ab"]
    prepared = Prepared("score", rows_of(score, label, np.ones(400)), (week,))
    found = compare_rows(prepared, versions, ComparisonSettings())
    assert [one.rows for one in found.values if one.basis == "backtest"] == [392] * 4
    assert found.left_out == {"without a score of one of the versions": 8}
    score[1, :40] = np.nan
    prepared = Prepared("score", rows_of(score, label, np.ones(400)), (week,))
    found = compare_rows(prepared, versions, ComparisonSettings())
    assert [one.rows for one in found.values if one.basis == "backtest"] == [400, 0, 400, 0]
    assert any(one.reason == "it has a score for 90.0% of the decisions" for one in found.values)


def test_weeks_begin_on_monday() -> None:
    assert week_begin_ms(first_week(START, 1)) == START
    assert week_begin_ms(first_week(START - 1, 1)) == START - WEEK
    assert week_begin_ms(first_week(START + WEEK - 1, 2)) == START - WEEK


def test_charts_show_weeks_bands_the_best_version_and_pairs(found: VersionComparison) -> None:
    weeks, served, best_one, pairs = charts(found, "auc")
    assert [one.name for one in (weeks, served, best_one, pairs)] == [
        "weeks-backtest",
        "weeks-served",
        "best",
        "pairs",
    ]
    lines = [one for one in weeks.plotly["data"] if one.get("mode") == "lines+markers"]
    bands = [one for one in weeks.plotly["data"] if one.get("fill") == "toself"]
    assert len(lines) == 2 and len(bands) == 2
    # The weeks that are not settled are shaded, and have no values.
    assert [one["x0"] + 0.5 for one in weeks.plotly["layout"]["shapes"]] == [8, 9, 10]
    assert lines[0]["y"][-3:] == [None] * 3
    # A band ends with the settled weeks.
    assert bands[0]["x"][: WEEKS - 2] == [week.begin for week in found.weeks[: WEEKS - 2]]
    marks = best_one.plotly["data"][0]["text"]
    assert [row[0] for row in marks] == ["●", ""] and [row[5] for row in marks] == ["", "●"]
    assert "from 2026-01-05 to 2026-01-26; fraud-b" in best_one.words
    assert len(pairs.rows) == 1 and pairs.rows[0][2] == WEEKS - 2
    assert group_names(found) == ("version", "algorithm", "data")
    # Both versions have one algorithm, so that there is one line: their mean.
    grouped = charts(found, "auc", "algorithm")[0]
    means = [one for one in grouped.plotly["data"] if one.get("mode") == "lines+markers"]
    first = [found.of(at, 0, "backtest") for at in (0, 1)]
    assert len(means) == 1
    assert means[0]["y"][0] == pytest.approx(np.mean([one.metrics["auc"].value for one in first if one]))
    with pytest.raises(DataError, match='no metric "none"'):
        charts(found, "none")
    with pytest.raises(DataError, match='no group "none"'):
        charts(found, "auc", "none")


def test_the_command_and_the_notebook_compare_a_log(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, row = ScoreRecords(world.folder / "a"), world.row
    lines = []
    for at in range(1200):
        features = [row[name][at] for name in ("x", "y", "money")]
        hour = (row["time_ms"][at] - START) / HOUR
        lines.append(records.decision(f"d{at}", hour, features, decision="approve"))
        if row["fraud"][at]:
            lines.append(report(f"d{at}", hour + row["delay"][at] / HOUR, "fraud"))
    write_segment(tmp_path / "log", 1, 0, lines)
    settings, output, page = (tmp_path / name for name in ("learn.toml", "out.json", "out.html"))
    settings.write_text(
        'comparison = { weeks = 6, amount = "money" }\n'
        'labels = { kinds = [{ kind = "fraud" }], wait_hours = 240, horizon_days = 10 }\n'
    )
    as_of = START + 5 * WEEK
    digits = [one.removeprefix("sha256:")[:8] for one in (world.a, world.b)]
    arguments = [
        "learn", "compare", *digits, "--checkpoint", POINT, "--log", str(tmp_path / "log"),
        "--bundles", str(world.folder), "-c", str(settings), "--as-of", "2026-02-09",
        "-o", str(output), "--page", str(page),
    ]  # fmt: skip
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "paired differences" in done.output and "fraud-a" in done.output
    found = read_comparison(output)
    assert found.as_of_ms == as_of and sum(week.settled for week in found.weeks) == 3
    assert "weeks-backtest" in page.read_text()
    own = compare(
        tmp_path / "log",
        bundles=world.folder,
        checkpoint=POINT,
        versions=digits,
        config=settings,
        as_of_ms=as_of,
    )
    assert own.comparison == found
    assert set(own.table()["basis"].to_pylist()) == {"served", "backtest"}
    monkeypatch.setattr(displayed, "find_spec", lambda _: None)
    with pytest.raises(DataError, match="pandas is not installed"):
        own.frame()
    assert len(own.chart("auc", name="best").data) == 1
    with pytest.raises(DataError, match="no chart"):
        own.chart(name="none")
    refused = CliRunner().invoke(app, [*arguments, "--metric", "none"])
    assert refused.exit_code == 1 and "there is no metric" in str(refused.exception)
    for version, words in (("abc", "too short"), ("0000abcd", "the beginning of no bundle")):
        refused = CliRunner().invoke(app, [*arguments[:2], version, *arguments[4:]])
        assert refused.exit_code == 1 and words in str(refused.exception), refused.output
