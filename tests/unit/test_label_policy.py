"""Tests of the label policy: a naive reference, weights against the truth, the table, and the lineage."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import labelling
import numpy as np
import pyarrow.parquet as pq
import pytest
from bundles import FEATURES, score_bundle_of, tiny_score_bundle
from labelling import DAY, HOUR, POINT, START, MemoryLog, MemorySource, ScoreRecords, report
from logs import write_segment
from typer.testing import CliRunner

from scorer.bundle import Bundle, describe_lineage, inspect, read_manifest
from scorer.bundle.lineage import LABELS_KEY
from scorer.bundle.rules import BundleRules
from scorer.cli import app
from scorer.config.problems import InvalidSettingsError
from scorer.learn.errors import DataError
from scorer.learn.labels.curves import DAY_MS, estimate_curves, read_curves
from scorer.learn.labels.histories import HistoryQuery, read_histories
from scorer.learn.labels.policy import LABEL_CURVE, LabelState, given_labels, later_given, weigh
from scorer.learn.labels.settings import LabelKind, LabelSettings
from scorer.learn.labels.table import write_labelled
from scorer.learn.settings import parse
from scorer.log import BundleShelf

AS_OF = START + 60 * DAY
KINDS = (
    LabelKind(kind="chargeback"),
    LabelKind(kind="review", at_least=2.0, below="none"),
    LabelKind(kind="good", above="negative", below="none"),
)


def small(seed: int) -> tuple[MemorySource, list[dict[str, Any]]]:
    """Return a source of 200 decisions with up to four reports each, and the same as plain rows."""
    pick = random.Random(seed)
    found: list[dict[str, Any]] = []
    columns: list[tuple[Any, ...]] = []
    for at in range(200):
        time_ms = START + pick.randrange(60 * DAY)
        reports = []
        for _ in range(pick.randrange(5)):
            kind = pick.choice(["chargeback", "review", "good", "other"])
            value, revision = float(pick.randrange(4)), pick.randrange(3)
            known = time_ms + pick.randrange(40 * DAY)
            reports.append((kind, value, revision, known))
            columns.append((f"d{at}", kind, value, known, revision))
        found.append({"id": f"d{at}", "time_ms": time_ms, "reports": reports})
    ids, kinds, values, known_ms, revisions = (list(one) for one in zip(*columns, strict=True))
    log = MemoryLog(
        "log",
        [
            labelling.decisions([one["id"] for one in found], np.array([one["time_ms"] for one in found])),
            labelling.outcomes(ids, kinds, values, known_ms, first=200, revision=np.array(revisions)),
        ],
    )
    return MemorySource([log]), sorted(found, key=lambda one: int(one["time_ms"]))


def naive(row: dict[str, Any], settings: LabelSettings) -> tuple[int, str, bool, int, int]:
    """Return label, kind, contradiction, and when the first and the deciding report were known."""
    label, decided, contradicts, first, known = -1, "", False, 0, 0
    for one in settings.kinds:
        own = [r for r in row["reports"] if r[0] == one.kind and r[3] <= AS_OF]
        if not own:
            continue
        newest = max(r[2] for r in own)
        counting = next(r for r in own if r[2] == newest)
        means = one.above if counting[1] >= one.at_least else one.below
        if means == "none":
            continue
        meant = int(means == "positive")
        first = min([first or 2**62, *(r[3] for r in own)])
        if label == -1:
            label, decided, known = meant, one.kind, counting[3]
        else:
            contradicts |= label != meant
    return label, decided, contradicts, first, known


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("early", ["count", "wait"])
@pytest.mark.parametrize(("contradictions", "unlabelled"), [("first", "negative"), ("exclude", "exclude")])
def test_labels_and_states_equal_those_of_a_naive_reference(
    seed: int, early: Any, contradictions: Any, unlabelled: Any
) -> None:
    settings = LabelSettings(
        kinds=KINDS, wait_hours=24 * 20, early=early, contradictions=contradictions, unlabelled=unlabelled
    )
    source, rows = small(seed)
    histories = read_histories(source, labelling.EMPTY_SHELF, HistoryQuery(POINT, AS_OF))
    given = given_labels(histories, settings)
    weighed = weigh(histories, given, settings, None)
    assert histories.time_ms.tolist() == [one["time_ms"] for one in rows]
    kinds = ["", *(one.kind for one in settings.kinds)]
    for at, row in enumerate(rows):
        label, kind, contradicts, first, known = naive(row, settings)
        got = int(given.label[at]), kinds[given.kind[at] + 1], bool(given.contradicts[at])
        assert (*got, int(given.first_ms[at]), int(given.known_ms[at])) == (
            label,
            kind,
            contradicts,
            first,
            known,
        )
        ripe = AS_OF - row["time_ms"] >= 20 * DAY
        if label >= 0 and (ripe or early == "count"):
            out = contradicts and contradictions == "exclude"
            state = LabelState.CONTRADICTORY if out else LabelState.LABELLED
        elif not ripe or label >= 0:
            state = LabelState.IN_FLIGHT
        else:
            state = LabelState.UNLABELLED if unlabelled == "exclude" else LabelState.ASSUMED
        assert weighed.state[at] == state
        assert weighed.label[at] == (
            label if state == LabelState.LABELLED else 0 if state == LabelState.ASSUMED else -1
        )
    assert weighed.counts()["contradictions"] == sum(naive(row, settings)[2] for row in rows) > 0


class Fraud:
    """Decisions of 60 days whose fraud depends on the amount, and becomes known after 15 days on average."""

    def __init__(self, bundle: Path, count: int = 20_000) -> None:
        pick = np.random.default_rng(7)
        self.amount = pick.uniform(0, 100, count).astype(np.float32)
        self.fraud = pick.random(count) < np.where(self.amount > 80, 0.3, 0.02)
        self.time_ms = START + np.sort(pick.integers(0, 60 * DAY, count))
        self.delay = np.round(pick.exponential(15, count) * DAY).astype(np.int64)
        self.names = [f"d{at}" for at in range(count)]
        self.known = self.fraud & (self.time_ms + self.delay <= AS_OF)
        info = inspect(bundle)
        features = [[float(one), 0.0, 1.0] for one in self.amount]
        told = np.flatnonzero(self.fraud)
        self.source = MemorySource(
            [
                MemoryLog(
                    "log",
                    [
                        labelling.decisions(
                            self.names, self.time_ms, bundle=[info.digest] * count, features=features
                        ),
                        labelling.outcomes(
                            [self.names[at] for at in told],
                            ["fraud"] * len(told),
                            np.ones(len(told)),
                            (self.time_ms + self.delay)[told],
                            first=count,
                        ),
                    ],
                )
            ]
        )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("bundle") / "bundle"
    score_bundle_of(directory, labelling.FEATURES)
    return directory


@pytest.fixture(scope="module")
def fraud(bundle: Path) -> Fraud:
    return Fraud(bundle)


def labelled(fraud: Fraud, bundle: Path, output: Path, **settings: Any) -> Any:
    policy = LabelSettings(**{"wait_hours": 24.0, "early": "count", "horizon_days": 50.0, **settings})
    found = write_labelled(
        fraud.source, BundleShelf([bundle]), policy, output, checkpoint=POINT, as_of_ms=AS_OF
    )
    return found, pq.read_table(output)


def test_weights_of_the_curve_count_as_many_negatives_as_there_really_are(
    tmp_path: Path, fraud: Fraud, bundle: Path
) -> None:
    found, table = labelled(fraud, bundle, tmp_path / "t.parquet", unlabelled="weighted")
    plain, everything = labelled(fraud, bundle, tmp_path / "n.parquet", unlabelled="negative")
    ripe = AS_OF - fraud.time_ms >= DAY
    negative = table["label_weight"].to_numpy()[table["label"].to_numpy() == 0]
    # 50 days of 15-day delays: 3.6 % of the frauds come after the horizon and stay negatives.
    late = fraud.fraud & (fraud.delay > 50 * DAY)
    true = int((ripe & (~fraud.fraud | late)).sum())
    missing = int((ripe & fraud.fraud & ~fraud.known).sum())
    assert negative.sum() == pytest.approx(true, abs=0.15 * missing)
    assert len(everything) - plain.notes["counts"]["table_positive"] > true + 0.8 * missing
    assert found.notes["counts"]["table_weight"] == pytest.approx(table["label_weight"].to_numpy().sum())
    assert found.notes["curves"] == found.curves.digest and plain.notes["curves"] is None


def test_modelled_rows_have_both_labels_by_features_and_age(
    tmp_path: Path, fraud: Fraud, bundle: Path
) -> None:
    found, table = labelled(fraud, bundle, tmp_path / "t.parquet", unlabelled="modelled")
    label, weight = table["label"].to_numpy(), table["label_weight"].to_numpy()
    ripe = AS_OF - fraud.time_ms >= DAY
    for high in (False, True):
        own = ((fraud.amount > 80) == high) & ripe
        rows = (table["amount"].to_numpy() > 80) == high
        share = weight[rows & (label == 1)].sum() / weight[rows].sum()
        assert share == pytest.approx(fraud.fraud[own].mean(), rel=0.12)
        # Without the weights, the young decisions would count as negative.
        assert fraud.known[own].sum() / own.sum() < 0.8 * fraud.fraud[own].mean()
    # Each decision counts once, however many rows it has.
    assert weight.sum() == pytest.approx(int((ripe | fraud.known).sum()))
    assert found.notes["model"]["rows"] > 1_000


def test_a_modelled_probability_follows_bayes_rule(fraud: Fraud) -> None:
    query = HistoryQuery(POINT, AS_OF)
    histories = read_histories(fraud.source, labelling.EMPTY_SHELF, query)
    given = given_labels(histories, LabelSettings(kinds=(LabelKind(kind="fraud"),)))
    curve = estimate_curves(histories, {LABEL_CURVE: given.events()}, horizon_ms=50 * DAY_MS).of(LABEL_CURVE)
    age = np.array([1, 10, 30]) * DAY
    for positive in (0.02, 0.3):
        open_share = 1 - (1 - np.exp(-np.array([1, 10, 30]) / 15)) / (1 - np.exp(-50 / 15))
        expected = positive * open_share / (positive * open_share + 1 - positive)
        assert later_given(curve, age, np.full(3, positive)) == pytest.approx(expected, abs=0.05 * positive)
    # At the rate of all decisions it is the probability of the curve alone.
    whole = np.full(3, curve.arrives_positive.value)
    assert later_given(curve, age, whole) == pytest.approx(curve.positive_later(age), rel=1e-9)


def test_a_wait_by_maturity_is_that_of_the_segment(fraud: Fraud, bundle: Path, tmp_path: Path) -> None:
    found, table = labelled(
        fraud,
        bundle,
        tmp_path / "t.parquet",
        maturity=0.8,
        early="wait",
        segment="night",
        unlabelled="negative",
    )
    wait = found.curves.of(LABEL_CURVE).age_of(0.8)
    # 80 % of what comes in 50 days of 15-day delays is there after 22.4 days.
    assert wait / DAY == pytest.approx(-15 * np.log(1 - 0.8 * (1 - np.exp(-50 / 15))), rel=0.1)
    assert (AS_OF - table["decided_at_ms"].to_numpy()).min() >= wait
    assert len(table) == int((AS_OF - fraud.time_ms >= wait).sum())


def test_declined_payments_are_no_negatives_and_explored_ones_stand_for_them(
    tmp_path: Path, fraud: Fraud, bundle: Path
) -> None:
    pick = np.random.default_rng(3)
    declined = fraud.amount > 80
    explored = declined & (pick.random(len(declined)) < 0.1)
    gone = declined & ~explored
    decisions, reports = fraud.source.logs[0].batches
    rows = decisions.rows
    labels = np.where(gone, "decline", "approve").tolist()
    rules = [["explore", "other"] if one else ["other"] for one in explored]
    rows = rows.set_column(rows.schema.get_field_index("decision"), "decision", [labels])
    rows = rows.set_column(rows.schema.get_field_index("rules"), "rules", [rules])
    rows = rows.cast(decisions.rows.schema)
    open_ids = {name for name, out in zip(fraud.names, gone, strict=True) if not out}
    stays = [name in open_ids for name in reports.rows["decision_id"].to_pylist()]
    source = MemorySource(
        [MemoryLog("log", [decisions._replace(rows=rows), reports._replace(rows=reports.rows.filter(stays))])]
    )

    def run(**settings: Any) -> Any:
        policy = LabelSettings(wait_hours=24.0, early="count", horizon_days=50.0, **settings)
        output = tmp_path / "t.parquet"
        found = write_labelled(
            source, BundleShelf([bundle]), policy, output, checkpoint=POINT, as_of_ms=AS_OF
        )
        return found, pq.read_table(output)

    ripe = AS_OF - fraud.time_ms >= DAY
    found, table = run(unlabelled="negative")
    assert found.notes["counts"]["declined"] == gone.sum()
    assert len(table) == int((ripe & ~gone).sum() + (~ripe & fraud.known & ~gone).sum())
    # The weights restore the population and, where labels are modelled, its rate of fraud.
    found, table = run(unlabelled="modelled", explored=({"rule": "explore", "share": 0.1},), amount="amount")
    label, weight = table["label"].to_numpy(), table["label_weight"].to_numpy()
    high = table["amount"].to_numpy() > 80
    assert weight[high].sum() == pytest.approx((ripe & declined).sum(), rel=0.1)
    assert weight[high & (label == 1)].sum() / weight[high].sum() == pytest.approx(0.3, rel=0.2)
    assert weight[~high].sum() == pytest.approx(((ripe | fraud.known) & ~declined).sum())
    cost = found.notes["explored"]["explore"]
    own = explored & fraud.known
    used = explored & (ripe | fraud.known)
    assert (cost["decisions"], cost["positive"]) == (used.sum(), own.sum())
    assert cost["cost"] == pytest.approx(fraud.amount[own].sum(dtype=np.float64), rel=1e-6)
    assert cost["amount"] == pytest.approx(fraud.amount[used].sum(dtype=np.float64), rel=1e-6)
    with pytest.raises(DataError, match=r"labels\.amount: \"price\" is no feature"):
        run(amount="price")


def test_the_documented_rule_approves_a_random_share_of_small_payments_that_would_be_declined(
    tmp_path: Path,
) -> None:
    page = (Path(__file__).parents[2] / "docs/labels.md").read_text()
    text = next(block for block in page.split("```toml") if 'id = "explore"' in block).split("```")[0]
    tiny_score_bundle(tmp_path / "bundle", rules=BundleRules(text.replace("1.0  ", "10.0 ")))
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.rules is not None
    count = 4_000
    data = np.zeros((count, len(FEATURES)), np.float32)
    data[:, 0] = np.where(np.arange(count) % 2, 40, 60)
    scores = np.where(np.arange(count) % 4 < 2, 0.9, 0.1)
    found = bundle.rules.evaluate(
        data, scores=scores, seconds=[0] * count, ids=[f"d{at}" for at in range(count)]
    )
    eligible = (data[:, 0] < 50) & (scores >= 0.8)
    approved = np.array([bundle.labels[band] for band in found.bands]) == "approve"
    assert not approved[(scores >= 0.8) & ~eligible].any() and approved[scores < 0.4].all()
    assert approved[eligible].mean() == pytest.approx(0.1, abs=0.04)
    assert [bool(one) for one in found.applied] == (eligible & approved).tolist()


def test_a_curve_without_declined_payments_is_that_of_the_others(fraud: Fraud) -> None:
    histories = read_histories(
        fraud.source, labelling.EMPTY_SHELF, HistoryQuery(POINT, AS_OF, segments=("decision",))
    )
    half = histories.take(np.arange(len(histories)) % 2 == 0)
    assert len(half) == len(histories) // 2 and half.time_ms.tolist() == histories.time_ms[::2].tolist()
    before = dict(zip(histories.reports.decision.tolist(), histories.reports.first_ms.tolist(), strict=True))
    after = dict(zip((2 * half.reports.decision).tolist(), half.reports.first_ms.tolist(), strict=True))
    assert after == {row: at for row, at in before.items() if row % 2 == 0}
    with pytest.raises(DataError, match="is left"):
        histories.take(np.zeros(len(histories), bool))


CONFIG = """
[labels]
wait_hours = 100
unlabelled = "weighted"
early = "count"
horizon_days = 10
kinds = [{ kind = "chargeback" }, { kind = "review", below = "none" }]
"""


def test_the_policy_of_the_table_is_in_the_lineage_of_the_bundle(tmp_path: Path, bundle: Path) -> None:
    make = ScoreRecords(bundle)
    records = []
    for at in range(400):
        records.append(make.decision(f"d{at}", at, [at % 50, at % 2, 1.0]))
        if at % 4 == 0:
            records.append(report(f"d{at}", at + 5 + at % 40, "chargeback"))
        if at % 6 == 0:
            records.append(report(f"d{at}", at + 1, "review", float(at % 12 == 0)))
    write_segment(tmp_path / "log", 1, 1, records)
    (tmp_path / "learn.toml").write_text(CONFIG)
    table, curves = tmp_path / "table.parquet", tmp_path / "curves.json"
    common = [
        "learn",
        "label",
        "--log",
        str(tmp_path / "log"),
        "--bundles",
        str(bundle),
        "--checkpoint",
        POINT,
    ]
    common += ["--config", str(tmp_path / "learn.toml"), "--as-of", "2026-01-25"]
    done = CliRunner().invoke(app, [*common, "-o", str(table), "--curves-output", str(curves), "--json"])
    assert done.exit_code == 0, done.output
    notes = json.loads(done.stdout)
    stored = json.loads(pq.read_metadata(table).metadata[LABELS_KEY])
    assert stored == notes and notes["curves"] == read_curves(curves).digest
    assert notes["policy"]["kinds"][1] == {
        "kind": "review",
        "at_least": 0.5,
        "above": "positive",
        "below": "none",
    }
    assert notes["counts"]["labelled"] == 100 and notes["counts"]["positive"] == 100
    # The same log and moment give the same table, and given curves the same weights.
    again = CliRunner().invoke(app, [*common, "-o", str(tmp_path / "again.parquet"), "--curves", str(curves)])
    assert again.exit_code == 0, again.output
    assert pq.read_table(tmp_path / "again.parquet").equals(pq.read_table(table))
    # A bundle that is trained on the table records its policy.
    rows = pq.read_table(table)
    context = np.stack([rows[one.name].to_numpy() for one in labelling.FEATURES], axis=1)
    target = tmp_path / "trained"
    _build(target, context, rows["label"].to_numpy(), rows["label_weight"].to_numpy(), table)
    assert read_manifest(target).lineage.labels == [notes]
    assert describe_lineage(curves).labels == []


def _build(target: Path, context: Any, label: Any, weight: Any, table: Path) -> None:
    import xgboost

    from scorer.bundle import Band, SchemaFile, build_score_bundle

    booster = xgboost.train(
        {"objective": "binary:logistic", "max_depth": 3, "nthread": 1},
        xgboost.DMatrix(context, label, weight=weight),
        5,
    )
    build_score_bundle(
        target,
        name="fraud-checkout",
        model=booster,
        schema=SchemaFile(features=list(labelling.FEATURES)),
        bands=[Band(start=0.0, label="approve"), Band(start=0.8, label="decline")],
        training=context,
        validation=context,
        lineage=describe_lineage(table),
        golden_cases=256,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('kinds = [{kind = "a"}, {kind = "a"}]', '"a" is listed twice'),
        ('kinds = [{kind = "a", above = "none"}]', "no value is positive"),
        ('unlabelled = "maybe"', "unlabelled"),
        ("maturity = 1.5", "maturity"),
        ("kinds = []", "kinds"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSettingsError, match=message):
        parse(f"[labels]\n{text}\n")


def test_nothing_to_learn_from_is_an_error_with_its_reason(
    tmp_path: Path, fraud: Fraud, bundle: Path
) -> None:
    with pytest.raises(DataError, match=r"has a label that counts: 20,000 decisions|in flight"):
        labelled(fraud, bundle, tmp_path / "t.parquet", wait_hours=24 * 90.0, early="wait")
    with pytest.raises(DataError, match="no bundle of the decisions"):
        write_labelled(
            fraud.source,
            labelling.EMPTY_SHELF,
            LabelSettings(wait_hours=1.0),
            tmp_path / "t.parquet",
            checkpoint=POINT,
            as_of_ms=AS_OF,
        )
    with pytest.raises(DataError, match="the model needs 20 of each label"):
        labelled(
            fraud, bundle, tmp_path / "t.parquet", unlabelled="modelled", kinds=(LabelKind(kind="other"),)
        )
    assert not list(tmp_path.iterdir()) and HOUR
