"""Training of fraud models on labelled tables: data, windows, thresholds, measures, bundles, rebuilding."""

from __future__ import annotations

import json

import fraud_tables as small
import numpy as np
import pytest
from fraud_tables import DAY_MS, FIRST_DAY, SMALL, TASK
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score, roc_auc_score
from typer.testing import CliRunner

from scorer.bundle import Bundle, read_manifest
from scorer.bundle.calibrate import fit_centred_isotonic
from scorer.commands.learn.fraud import app
from scorer.learn.errors import DataError
from scorer.learn.fraud.candidate import build_fraud, rebuild
from scorer.learn.fraud.checks import check_data
from scorer.learn.fraud.learners import sample_rows
from scorer.learn.fraud.measures import Judge, card_precision_by_day
from scorer.learn.fraud.settings import CheckSettings, FraudSettings, ValueSettings
from scorer.learn.fraud.table import read_table
from scorer.learn.fraud.task import read_score_task, write_score_task
from scorer.learn.fraud.training import train_fraud
from scorer.learn.fraud.value import Thresholds, best_thresholds, gains, thresholds_of
from scorer.learn.fraud.windows import earlier_windows, plan_windows, unblocked
from scorer.stats.precision_recall import RankedScores


def changed(**update) -> FraudSettings:
    """Return the small settings with some fields replaced, validated."""
    return FraudSettings.model_validate(SMALL.model_dump() | update)


def read(path, plan=SMALL):
    return read_table(path, TASK.features, plan.columns)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.write(tmp_path_factory.mktemp("data") / "data.parquet")


@pytest.fixture(scope="module")
def table(data):
    return read(data)


@pytest.fixture(scope="module")
def model(table):
    return train_fraud(table, TASK, SMALL)


@pytest.fixture(scope="module")
def bundle(model, data, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundle") / "candidate"
    build_fraud(model, data, path)
    return path


class TestTable:
    def test_rows_are_in_the_order_of_time_whatever_their_order_in_the_file(self, table):
        given_columns = small.columns()
        order = np.argsort(given_columns["decided_at_ms"], kind="stable")
        assert (np.diff(table.time_ms) >= 0).all()
        np.testing.assert_array_equal(table.rows[:, 1], given_columns["velocity"][order])
        np.testing.assert_array_equal(table.label, given_columns["label"][order] == 1)

    def test_categories_are_read_as_codes_and_as_texts(self, table, tmp_path):
        names = np.array(["NL", "DE", "FR"])[small.columns()["country"].astype(int)]
        again = read(small.write(tmp_path / "texts.parquet", country=names))
        np.testing.assert_array_equal(again.rows, table.rows)

    def test_a_plain_table_needs_time_and_label_only(self, tmp_path):
        times = small.columns()["decided_at_ms"].astype("datetime64[ms]")
        path = small.write(
            tmp_path / "plain.parquet",
            decided_at_ms=times,
            decision_id=None,
            label_weight=None,
            label_known_ms=None,
        )
        plain = read(path)
        assert plain.known_ms is None
        assert set(plain.weight) == {1.0}
        assert plain.time_ms[0] // DAY_MS == FIRST_DAY

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"velocity": None}, "column velocity is missing; add it"),
            ({"label": np.full(6_000, 2)}, "label must be 0 or 1; 2 is not"),
            ({"label_weight": np.full(6_000, -1.0)}, "label_weight must be finite and not negative"),
            ({"amount": np.full(6_000, np.nan)}, "amount must be finite and not negative"),
            ({"decided_at_ms": np.array(["now"] * 6_000)}, "column decided_at_ms is string"),
        ],
    )
    def test_a_bad_column_is_named(self, tmp_path, changes, message):
        with pytest.raises(DataError, match=message):
            read(small.write(tmp_path / "bad.parquet", **changes))

    def test_a_file_that_is_no_parquet_file_is_named(self, tmp_path):
        (tmp_path / "text").write_text("no")
        with pytest.raises(DataError, match="not a readable Parquet file"):
            read(tmp_path / "text")


class TestChecks:
    def test_good_data_has_no_findings(self, table):
        used, findings = check_data(table, SMALL.checks)
        assert used is table
        assert findings == ()

    def test_duplicates_and_ranges_are_rejected_or_left_out_by_rule(self, tmp_path):
        given_columns = small.columns()
        ids = given_columns["decision_id"].copy()
        same = np.flatnonzero(given_columns["label"] == 0)[:3]
        ids[same] = "twice"
        velocity = given_columns["velocity"].copy()
        velocity[same[0]] = -1.0
        path = small.write(tmp_path / "bad.parquet", decision_id=ids, velocity=velocity)
        with pytest.raises(DataError, match=r'2 rows repeat .*; 1 rows have a value of "velocity"'):
            check_data(read(path), CheckSettings())
        used, findings = check_data(read(path), CheckSettings(duplicates="exclude", out_of_range="exclude"))
        assert {one.name: (one.effect, one.count) for one in findings} == {
            "duplicates": ("excluded", 2),
            "range velocity": ("excluded", 1),
        }
        assert len(used) in {5_997, 5_998}

    def test_a_modelled_decision_has_a_row_of_each_label(self, tmp_path):
        given_columns = small.columns()
        ids, label = given_columns["decision_id"].copy(), given_columns["label"].copy()
        ids[1], label[:2] = ids[0], (0, 1)
        path = small.write(tmp_path / "modelled.parquet", decision_id=ids, label=label)
        assert check_data(read(path), CheckSettings())[1] == ()

    def test_a_feature_that_contains_the_label_is_rejected_unless_trusted(self, tmp_path):
        given_columns = small.columns()
        random = np.random.default_rng(1)
        leak = (given_columns["label"] * 3 + random.normal(size=6_000) * 0.3).astype(np.float32)
        path = small.write(tmp_path / "leak.parquet", noise=leak)
        with pytest.raises(DataError, match=r'"noise" alone separates the labels with an AUC of 1\.0000'):
            check_data(read(path), CheckSettings())
        findings = check_data(read(path), CheckSettings(trusted=("noise",)))[1]
        assert [(one.name, one.effect) for one in findings] == [("leakage noise", "reported")]

    def test_a_feature_that_follows_the_time_to_the_label_is_rejected(self, tmp_path):
        given_columns = small.columns()
        random = np.random.default_rng(1)
        delay = random.integers(1, 5 * DAY_MS, 6_000)
        known = np.where(given_columns["label"] == 1, given_columns["decided_at_ms"] + delay, 0)
        noise = (delay / DAY_MS + random.normal(size=6_000) * 0.1).astype(np.float32)
        path = small.write(tmp_path / "leak.parquet", label_known_ms=known, noise=noise)
        with pytest.raises(DataError, match=r'"noise" has a rank correlation of \d\.\d\d with the time to'):
            check_data(read(path), CheckSettings())

    def test_a_label_rate_out_of_bounds_is_rejected(self, table):
        with pytest.raises(DataError, match=r"of the labels are positive, 0\.3 to 0\.5 is allowed"):
            check_data(table, CheckSettings(label_rate=(0.3, 0.5)))

    def test_a_constant_feature_is_reported(self, tmp_path):
        path = small.write(tmp_path / "constant.parquet", noise=np.full(6_000, 3.0, np.float32))
        assert [one.name for one in check_data(read(path), CheckSettings())[1]] == ["constant noise"]


class TestWindows:
    def test_windows_are_in_order_with_the_delay_between_them(self, table):
        windows = plan_windows(table.time_ms, SMALL)
        end = (FIRST_DAY + 40) * DAY_MS
        assert windows.test.end_ms == end
        assert windows.test.start_ms == end - 7 * DAY_MS
        assert windows.validation.end_ms == windows.test.start_ms - 3 * DAY_MS == windows.fit.end_ms
        assert windows.validation.start_ms == windows.validation.end_ms - 7 * DAY_MS
        assert windows.train.end_ms == windows.validation.start_ms - 3 * DAY_MS
        shorter = plan_windows(table.time_ms, changed(train_days=5))
        assert shorter.train.end_ms - shorter.train.start_ms == 5 * DAY_MS

    def test_folds_of_tuning_lie_before_the_test_window(self, table):
        windows = plan_windows(table.time_ms, SMALL)
        folds = earlier_windows(windows, table.time_ms, SMALL, 2)
        assert folds[0].test == windows.validation
        assert folds[1].test.end_ms == windows.validation.start_ms
        for fold in folds:
            assert fold.train.end_ms == fold.test.start_ms - 3 * DAY_MS

    def test_data_that_is_too_short_is_refused_with_the_days_that_are_needed(self, table):
        first = table.take(table.time_ms < (FIRST_DAY + 15) * DAY_MS)
        with pytest.raises(DataError, match=r"21 days are needed \(1 of training, 3 of delay, 7 of valid"):
            plan_windows(first.time_ms, SMALL)
        with pytest.raises(DataError, match="4 folds need a day of training"):
            earlier_windows(plan_windows(table.time_ms, SMALL), table.time_ms, SMALL, 4)

    def test_blocked_entities_are_those_known_by_the_beginning_of_the_day(self, table):
        plan = changed(blocked_days=4)
        window = plan_windows(table.time_ms, plan).test
        kept = set(unblocked(table, window, plan).tolist())
        own = window.positions(table.time_ms)
        since = window.start_ms - (3 + 4) * DAY_MS
        for row in range(own.start, own.stop):
            day_start = int(table.time_ms[row]) // DAY_MS * DAY_MS
            earlier = (table.entity == table.entity[row]) & table.label & (table.time_ms >= since)
            is_blocked = bool((earlier & (table.known_ms < day_start)).any())
            assert (row in kept) == (not is_blocked)
        assert 0 < len(kept) < own.stop - own.start


scores_and_labels = st.lists(
    st.tuples(st.integers(0, 6), st.booleans(), st.integers(0, 3)), min_size=2, max_size=30
)


class TestMeasures:
    @given(scores_and_labels)
    def test_average_precision_and_auc_equal_those_of_scikit_learn(self, rows):
        scores, labels, weights = (np.array(column) for column in zip(*rows, strict=True))
        scores, weights = scores.astype(float), weights.astype(float)
        ranked = RankedScores(scores, labels)
        if not (weights[labels].sum() > 0 and weights[~labels].sum() > 0):
            assert np.isnan(ranked.auc(weights))
            return
        expected = average_precision_score(labels, scores, sample_weight=weights)
        assert ranked.average_precision(weights) == pytest.approx(expected, abs=1e-12)
        expected = roc_auc_score(labels, scores, sample_weight=weights)
        assert ranked.auc(weights) == pytest.approx(expected, abs=1e-12)

    def test_card_precision_is_the_share_of_compromised_cards_per_day(self):
        scores = np.array([0.9, 0.1, 0.8, 0.7, 0.2, 0.3])
        label = np.array([False, True, True, False, True, False])
        entity = np.array([1, 1, 2, 3, 4, 4])
        day = np.array([0, 0, 0, 0, 1, 1])
        np.testing.assert_allclose(card_precision_by_day(scores, label, entity, day, 2), [1.0, 0.5])

    def test_equal_models_do_not_differ(self, table):
        judge = Judge(table, SMALL)
        one = (table.rows[:, 1].astype(np.float64), Thresholds(1.0, 2.0))
        found = judge.differences(one, one)
        assert (found.auc.value, found.auc.low, found.auc.high) == (0, 0, 0)
        assert found.value.high == 0

    def test_a_better_model_is_found_to_be_better(self, table):
        judge = Judge(table, SMALL)
        far = Thresholds(1e9, 1e9)
        good, bad = table.rows[:, 1].astype(np.float64), table.rows[:, 3].astype(np.float64)
        found = judge.differences((good, far), (bad, far))
        assert found.average_precision.low > 0
        own = judge.measures(good, far).average_precision.value
        other = judge.measures(bad, far).average_precision.value
        assert found.average_precision.value == pytest.approx(own - other)

    def test_the_calibration_keeps_the_ranking_and_the_weighted_rate(self):
        random = np.random.default_rng(0)
        scores = random.random(4_000)
        labels = random.random(4_000) < scores**2
        weights = np.where(labels, 1.0, 3.0)
        curve = fit_centred_isotonic(scores, labels, weights)
        found = np.interp(scores, curve.x, curve.y)
        assert (np.argsort(found) == np.argsort(scores)).all()
        rate = weights[labels].sum() / weights.sum()
        assert (found * weights).sum() / weights.sum() == pytest.approx(rate, rel=0.02)


payments = st.lists(
    st.tuples(st.integers(1, 6), st.booleans(), st.integers(1, 60), st.integers(1, 3)),
    min_size=1,
    max_size=14,
)


class TestThresholds:
    @settings(deadline=None)
    @given(payments, st.integers(0, 12))
    def test_no_pair_of_thresholds_is_worth_more(self, rows, reviews):
        scores, label, amount, weight = (np.array(column) for column in zip(*rows, strict=True))
        scores, weight = scores / 10, weight.astype(float)
        gained = gains(label, amount.astype(float), ValueSettings())
        found, total = best_thresholds(scores, weight, gained, reviews=reviews)
        cuts = [*np.unique(scores), 2.0]
        possible = {
            (review, decline): float((gained.of(scores, Thresholds(review, decline)) * weight).sum())
            for review in cuts
            for decline in cuts
            if review <= decline and weight[(scores >= review) & (scores < decline)].sum() <= reviews
        }
        assert total == pytest.approx(max(possible.values()), abs=1e-9)
        assert (gained.of(scores, found) * weight).sum() == pytest.approx(total, abs=1e-9)
        assert weight[(scores >= found.review) & (scores < found.decline)].sum() <= reviews
        assert 0 < found.review <= found.decline

    def test_a_missed_fraud_costs_its_amount_and_a_declined_payment_a_share_of_it(self):
        value = ValueSettings(
            fraud_loss=1, fraud_fee=15, decline_loss=0.1, decline_fee=5, review_cost=3, review_finds=0.9
        )
        found = gains(np.array([True, False]), np.array([100.0, 100.0]), value)
        np.testing.assert_allclose(found.decline, [115, -15])
        np.testing.assert_allclose(found.review, [0.9 * 115 - 3, -3])

    def test_bands_and_thresholds_are_each_other(self):
        for one in (Thresholds(0.2, 0.7), Thresholds(0.4, 0.4), Thresholds(0.3, 2.0)):
            again = thresholds_of(one.bands())
            scores = np.linspace(0, 1, 101)
            for edge in ("review", "decline"):
                np.testing.assert_array_equal(scores >= getattr(one, edge), scores >= getattr(again, edge))


class TestTraining:
    def test_the_candidate_beats_the_baseline_and_is_measured_on_the_test_window(self, table, model):
        window = model.windows.test.positions(table.time_ms)
        scores = model.scores(table.rows[window])
        expected = average_precision_score(table.label[window], scores)
        assert model.measures.average_precision.value == pytest.approx(expected)
        assert model.beats.average_precision.low > 0
        assert 0.7 < model.measures.calibration < 1.4

    def test_labels_of_the_test_window_do_not_change_the_candidate(self, model, tmp_path):
        given_columns = small.columns()
        in_test = given_columns["decided_at_ms"] >= model.windows.test.start_ms
        label = np.where(in_test, 1 - given_columns["label"], given_columns["label"]).astype(np.int8)
        path = small.write(tmp_path / "flipped.parquet", label=label)
        plan = changed(must_beat_baseline=False, checks={"label_rate": (0.0, 0.9)})
        other = train_fraud(read(path), TASK, plan)
        assert other.fitted.model.save_raw() == model.fitted.model.save_raw()
        assert (other.calibration, other.thresholds) == (model.calibration, model.thresholds)
        assert other.measures.auc.value < 0.5 < model.measures.auc.value

    def test_a_label_that_came_too_late_is_not_used(self, table, model, tmp_path):
        given_columns = small.columns()
        moment = model.windows.validation.start_ms
        in_train = given_columns["decided_at_ms"] < model.windows.train.end_ms
        late = np.flatnonzero(in_train & (given_columns["label"] == 1))[:7]
        known = given_columns["label_known_ms"].copy()
        known[late] = moment + DAY_MS
        found = train_fraud(read(small.write(tmp_path / "late.parquet", label_known_ms=known)), TASK, SMALL)
        assert found.late["train"] == 7
        assert found.counts["train"]["positive"] == model.counts["train"]["positive"] - 7
        # They are known when the test window begins.
        assert found.late["fit"] == 0

    def test_a_window_without_positive_labels_is_refused_by_name(self, tmp_path):
        given_columns = small.columns()
        late = given_columns["decided_at_ms"] >= (FIRST_DAY + 22) * DAY_MS
        path = small.write(tmp_path / "none.parquet", label=np.where(late, given_columns["label"], 0))
        with pytest.raises(
            DataError, match=r"the training window \(.*\) has [\d,]+ rows and 0 positive labels"
        ):
            train_fraud(read(path), TASK, SMALL)

    def test_a_candidate_that_does_not_beat_the_baseline_is_refused(self, tmp_path):
        random = np.random.default_rng(3)
        amount = small.columns()["amount"]
        label = (random.random(6_000) < np.clip(amount / 400, 0.01, 0.9)).astype(np.int8)
        path = small.write(tmp_path / "amount.parquet", label=label, label_known_ms=None)
        with pytest.raises(DataError, match=r"does not beat the baseline \(amount\) on the test window"):
            train_fraud(read(path), TASK, SMALL)
        train_fraud(read(path), TASK, changed(must_beat_baseline=False))

    def test_constraints_make_scores_rise(self, table):
        found = train_fraud(table, TASK, changed(increasing=["velocity"]))
        rows = np.repeat(table.rows[:50], 40, axis=0)
        rows[:, 1] = np.tile(np.linspace(0, 6, 40, dtype=np.float32), 50)
        assert (np.diff(found.scores(rows).reshape(50, 40), axis=1) >= 0).all()
        with pytest.raises(DataError, match='"speed" is no feature; there are amount, velocity'):
            train_fraud(table, TASK, changed(increasing=["speed"]))

    def test_class_weights_raise_the_uncalibrated_outputs_and_not_the_scores(self, table, model):
        found = train_fraud(table, TASK, changed(positive_weight="balanced"))
        rows = table.rows[model.windows.test.positions(table.time_ms)]
        assert found.fitted.predict(rows).mean() > 3 * model.fitted.predict(rows).mean()
        assert found.scores(rows).mean() == pytest.approx(model.scores(rows).mean(), rel=0.3)

    def test_a_sample_keeps_positive_rows_and_the_weight_of_the_others(self, table):
        rows, factor = sample_rows(table, np.arange(len(table)), 1_000, seed=0)
        assert table.label[rows].sum() == table.label.sum()
        assert len(rows) == 1_000
        assert factor[~table.label[rows]].sum() == pytest.approx((~table.label).sum())
        assert (np.diff(rows) > 0).all()


class TestBundles:
    def test_the_bundle_gives_the_scores_and_decisions_of_the_model(self, bundle, model, table):
        found = Bundle.load(bundle).score(table.rows)
        np.testing.assert_allclose(found.scores, model.scores(table.rows), atol=1e-6)
        bands = read_manifest(bundle).program[-1].bands
        again = thresholds_of(bands)
        assert (again.review, again.decline) == (model.thresholds.review, model.thresholds.decline)

    def test_lightgbm_is_compared_and_can_be_built(self, table, data, tmp_path):
        found = train_fraud(table, TASK, changed(algorithms=["lightgbm", "xgboost"]))
        assert set(found.choice) == {"lightgbm", "xgboost"}
        only = train_fraud(table, TASK, changed(algorithms=["lightgbm"]))
        build_fraud(only, data, tmp_path / "candidate")
        scores = Bundle.load(tmp_path / "candidate").score(table.rows).scores
        np.testing.assert_allclose(scores, only.scores(table.rows), atol=1e-6)

    def test_the_lineage_alone_rebuilds_the_bundle_bit_for_bit(self, bundle, data, tmp_path):
        found = rebuild(bundle, data, tmp_path / "again")
        assert found.is_equal
        names = sorted(path.name for path in bundle.iterdir())
        assert names == sorted(path.name for path in (tmp_path / "again").iterdir())
        for name in names:
            assert (bundle / name).read_bytes() == (tmp_path / "again" / name).read_bytes()

    def test_another_file_is_refused(self, bundle, tmp_path):
        other = small.write(tmp_path / "other.parquet", small.columns(seed=1))
        with pytest.raises(DataError, match="give the original file"):
            rebuild(bundle, other, tmp_path / "again")
        assert not (tmp_path / "again").exists()

    def test_other_versions_of_libraries_are_refused_by_name(self, bundle, data, tmp_path, monkeypatch):
        from scorer.learn.fraud import candidate

        versions = candidate.library_versions()
        monkeypatch.setattr(candidate, "library_versions", lambda: versions | {"xgboost": "0.1"})
        with pytest.raises(DataError, match=r"was built with xgboost .*, here is 0\.1; install"):
            rebuild(bundle, data, tmp_path / "again")

    def test_a_bundle_of_another_training_is_refused(self, bundle, data, tmp_path):
        import shutil

        plain = tmp_path / "plain"
        shutil.copytree(bundle, plain)
        manifest = json.loads((plain / "manifest.json").read_bytes())
        manifest["lineage"]["metrics"] = {}
        (plain / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises(DataError, match="was not built by `scorer learn fraud train`"):
            rebuild(plain, data, tmp_path / "again")


class TestCommands:
    def test_train_and_rebuild(self, data, tmp_path):
        write_score_task(TASK, tmp_path / "fraud-test")
        assert read_score_task(tmp_path / "fraud-test") == TASK
        config = tmp_path / "learn.toml"
        config.write_text(
            "[fraud]\ntrees = 30\ndepth = 3\nlearning_rate = 0.2\nthreads = 1\ndelay_days = 3\n"
            'baseline = "amount"\n[fraud.columns]\nentity = "customer"\n'
        )
        run = CliRunner().invoke
        output = str(tmp_path / "candidate")
        given = ["train", str(data), "--task", str(tmp_path / "fraud-test"), "-o", output, "-c", str(config)]
        done = run(app, given)
        assert done.exit_code == 0, done.output
        assert "average precision" in done.output
        done = run(app, ["rebuild", output, "--data", str(data)])
        assert done.exit_code == 0, done.output
        assert "the same bit for bit" in done.output

    def test_an_action_bundle_or_a_missing_schema_is_refused(self, tmp_path):
        with pytest.raises(DataError, match="no such directory"):
            read_score_task(tmp_path / "none")
        (tmp_path / "empty").mkdir()
        with pytest.raises(DataError, match=r"there is no schema\.json"):
            read_score_task(tmp_path / "empty")
