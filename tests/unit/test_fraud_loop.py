"""The loop of a score checkpoint: champion and challenger, the gate, weekly retraining, and generations."""

from __future__ import annotations

import json
import shutil

import fraud_tables as small
import numpy as np
import pytest
from fraud_tables import DAY_MS, FIRST_DAY, SMALL, TASK
from labelling import POINT, START, ScoreRecords, report
from logs import write_segment
from typer.testing import CliRunner

from scorer.bundle import inspect, read_manifest
from scorer.cli import app as scorer
from scorer.commands.learn.fraud import app
from scorer.learn import settings as learn_settings
from scorer.learn.errors import DataError
from scorer.learn.fraud.candidate import build_fraud, rebuild
from scorer.learn.fraud.compare import compare_bundles
from scorer.learn.fraud.gate import judge_scores
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import read_table
from scorer.learn.fraud.training import train_fraud
from scorer.learn.fraud.weeks import compare_retraining
from scorer.learn.fraud.windows import TimeSpan
from scorer.learn.gate.publish import Requested, publish
from scorer.learn.gate.settings import GateSettings
from scorer.learn.gate.verdict import read_verdict
from scorer.learn.report.history import history_page, read_runs
from scorer.learn.report.write import write_verdict
from scorer.learn.schedule.generation import STEPS, run_generation
from scorer.learn.schedule.places import DRIFT
from scorer.learn.schedule.workspace import Workspace
from scorer.registry import Registry

GATE = GateSettings(min_rows=100, segments=("country",))


def changed(**update) -> FraudSettings:
    return FraudSettings.model_validate(SMALL.model_dump() | update)


class Place:
    """A weak live bundle (few, shallow trees on the first days), a better candidate, and later payments."""

    def __init__(self, root) -> None:
        columns = small.columns(rows=12_000, days=60)
        early = columns["decided_at_ms"] < (FIRST_DAY + 50) * DAY_MS
        self.data = small.write(root / "early.parquet", {name: one[early] for name, one in columns.items()})
        self.later, self.columns = small.write(root / "all.parquet", columns), columns
        table = read_table(self.data, TASK.features, SMALL.columns)
        self.live, self.candidate = root / "live", root / "candidate"
        weak = changed(trees=1, depth=1, train_days=5, refit=False, must_beat_baseline=False, seed=1)
        for path, plan in ((self.live, weak), (self.candidate, SMALL)):
            build_fraud(train_fraud(table, TASK, plan), self.data, path)

    def verdict(self, **fraud):
        return judge_scores(self.later, self.candidate, self.live, changed(**fraud), GATE)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


class TestGate:
    def test_only_payments_after_the_training_of_both_are_used(self, place):
        found = compare_bundles(place.later, place.candidate, place.live, SMALL)
        recorded = read_manifest(place.candidate).lineage.metrics["fraud"]["last_ms"]
        assert found.window.start_ms == recorded + 1
        assert found.table.time_ms.min() > recorded
        with pytest.raises(DataError, match="no payment of the window that neither bundle was trained on"):
            compare_bundles(place.later, place.candidate, place.live, SMALL, window=TimeSpan(0, recorded))

    def test_a_better_candidate_is_promoted_and_a_worse_one_waits(self, place):
        verdict = place.verdict()
        one = verdict.evidence
        assert one.decision == "promote", one.reasons
        assert one.scores["differences"]["average_precision"]["low"] > 0
        assert "of the turnover" in verdict.headline
        other = judge_scores(place.later, place.live, place.candidate, SMALL, GATE).evidence
        assert other.decision == "wait"
        assert {"average precision"} <= {check.name for check in other.checks if not check.passed}
        differences = other.scores["differences"]["average_precision"]
        assert differences["value"] == pytest.approx(-one.scores["differences"]["average_precision"]["value"])

    def test_a_bundle_does_not_differ_from_itself(self, place):
        one = judge_scores(place.later, place.candidate, place.candidate, SMALL, GATE).evidence
        assert (one.difference.low, one.difference.value, one.difference.high) == (0, 0, 0)
        assert one.distance == 0
        assert {segment.state for segment in one.segments} == {"safe"}
        assert {segment.value for segment in one.segments} == {"NL", "DE", "FR"}

    def test_too_few_payments_and_bad_calibration_wait(self, place):
        failed = {
            check.name
            for check in place.verdict(
                gate={"positives": 100_000, "calibration": (0.999, 1.001)}
            ).evidence.checks
            if not check.passed
        }
        assert failed == {"decisions", "calibration"}

    def test_a_candidate_without_a_lineage_waits(self, place, tmp_path):
        from scorer.bundle import Band, SchemaFile, build_score_bundle
        from scorer.bundle.models import Lineage

        table = read_table(place.data, TASK.features, SMALL.columns)
        model = train_fraud(table, TASK, SMALL)
        build_score_bundle(
            tmp_path / "foreign",
            name=TASK.name,
            model=model.fitted.model,
            schema=SchemaFile(features=list(TASK.features)),
            bands=[Band(start=0.0, label="approve"), Band(start=0.5, label="decline")],
            training=model.training_rows,
            validation=model.reference_rows,
            lineage=Lineage(data_digest="sha256:0", code_version="none"),
        )
        one = judge_scores(place.later, tmp_path / "foreign", place.live, SMALL, GATE).evidence
        assert one.decision == "wait"
        assert not next(check for check in one.checks if check.name == "unseen").passed

    def test_a_candidate_that_is_better_overall_and_harms_a_segment_waits(self, place, tmp_path):
        """The live bundle knows the frauds of DE only. The candidate knows the others, and declines in DE."""
        truth, plan = place.columns, changed(must_beat_baseline=False, gate={"calibration": (0.01, 100.0)})
        early = truth["decided_at_ms"] < (FIRST_DAY + 50) * DAY_MS
        is_de, random = truth["country"] == 1, np.random.default_rng(1)
        low, high = np.quantile(truth["amount"], [0.9, 0.95])
        in_de = (truth["amount"] > low) & (truth["amount"] < high)
        learned = {
            "live": np.where(is_de, truth["label"], random.random(len(is_de)) < 0.05),
            "candidate": np.where(is_de, in_de, truth["label"]),
        }
        for name, label in learned.items():
            columns = {**truth, "label": label.astype(np.int8)}
            data = small.write(tmp_path / name, {key: one[early] for key, one in columns.items()})
            table = read_table(data, TASK.features, SMALL.columns)
            build_fraud(train_fraud(table, TASK, plan), data, tmp_path / f"{name}-bundle")

        def judge(**update):
            gate = GATE.model_copy(update=update)
            return judge_scores(
                place.later, tmp_path / "candidate-bundle", tmp_path / "live-bundle", plan, gate
            ).evidence

        one = judge()
        assert one.difference.low > 0
        assert one.scores["differences"]["average_precision"]["low"] > 0
        states = {segment.value: segment.state for segment in one.segments}
        assert states == {"NL": "safe", "DE": "harmed", "FR": "safe"}
        assert [check.name for check in one.checks if not check.passed] == ["segments"]
        assert (one.decision, one.share) == ("wait", 0)
        assert one.reasons == ("harmed: country DE",)
        # Nothing but the segment holds the candidate back.
        for update in ({"segments": ()}, {"segments": ("noise",)}, {"segment_rows": 10**6}):
            assert judge(**update).decision == "promote"

    def test_the_verdict_is_written_reported_and_published(self, place, tmp_path):
        verdict = write_verdict(place.verdict(), place.candidate, tmp_path / "runs" / "run")
        page = (tmp_path / "runs" / "run" / "report.html").read_text()
        assert "points of the turnover" in page
        assert "country: FR" in page
        assert "Promote" in history_page(read_runs(tmp_path / "runs"))
        assert read_verdict(tmp_path / "runs" / "run") == verdict
        registry = Registry(tmp_path / "registry")
        registry.alias("fraud-test", "live", registry.push(place.live))
        done = publish(tmp_path / "runs" / "run", registry, "fraud-test@live", experience=place.later)
        assert done.moved
        assert registry.aliases()["fraud-test@live"] == verdict.bundle
        # The evidence in the lineage does not change what the bundle computes.
        kept = rebuild(place.candidate, place.data, tmp_path / "again")
        assert kept.is_equal
        with pytest.raises(DataError, match="is not the experience that was judged"):
            publish(tmp_path / "runs" / "run", registry, "fraud-test@live", experience=place.data)

    def test_the_command_compares_and_writes_the_verdict(self, place, tmp_path):
        config = tmp_path / "learn.toml"
        config.write_text(
            "[fraud]\ndelay_days = 3\n[fraud.columns]\nentity = 'customer'\n[gate]\nmin_rows = 100\n"
        )
        given = ["compare", str(place.later), "--challenger", str(place.candidate), "-c", str(config)]
        given += ["--champion", str(place.live), "-o", str(tmp_path / "run")]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, done.output
        assert "Promote" in done.output
        assert (tmp_path / "run" / "bundle" / "manifest.json").is_file()


class TestWeeks:
    def test_retraining_pays_when_fraud_changes_and_not_otherwise(self, tmp_path):
        """From day 27 on, the fraudsters use other countries."""
        columns = small.columns(rows=16_000, days=90)
        same = compare_retraining(self._read(tmp_path, columns), SMALL, (FIRST_DAY + 20) * DAY_MS)
        assert len(same.weeks) == 10
        assert same.weeks[0].once == same.weeks[0].retrained
        late = columns["decided_at_ms"] >= (FIRST_DAY + 27) * DAY_MS
        other = np.array([1, 0, 1], np.float32)[columns["country"].astype(int)]
        columns["country"] = np.where(late, other, columns["country"])
        turned = compare_retraining(self._read(tmp_path, columns), SMALL, (FIRST_DAY + 20) * DAY_MS)
        assert turned.difference.low > 0
        mean = np.mean([one.retrained - one.once for one in turned.weeks[1:]])
        assert turned.difference.value == pytest.approx(mean)
        assert turned.difference.value > same.difference.value + 0.05

    def test_the_model_that_is_trained_once_can_have_a_first_window_of_its_own(self, tmp_path):
        """With two days of training, the first model is worse from the first window on."""
        table = self._read(tmp_path, small.columns(rows=16_000, days=60))
        first = (FIRST_DAY + 30) * DAY_MS
        models = {}
        short = compare_retraining(table, SMALL, first, once_days=2, models=models)
        assert list(models) == [one.window.start_ms for one in short.weeks]
        same = compare_retraining(table, SMALL, first)
        assert compare_retraining(table, SMALL, first, models=models) == same
        assert [one.retrained for one in short.weeks] == [one.retrained for one in same.weeks]
        assert short.weeks[0].once < short.weeks[0].retrained == same.weeks[0].once
        mean = np.mean([one.retrained - one.once for one in short.weeks])
        assert short.difference.value == pytest.approx(mean)
        assert short.difference.low > 0

    def test_two_windows_are_too_few(self, tmp_path):
        table = self._read(tmp_path, small.columns())
        with pytest.raises(DataError, match="2 whole windows of 7 days"):
            compare_retraining(table, SMALL, (FIRST_DAY + 26) * DAY_MS)

    def _read(self, tmp_path, columns):
        path = small.write(tmp_path / "weeks.parquet", columns)
        return read_table(path, TASK.features, SMALL.columns)


LEARN = f"""
[labels]
kinds = [{{ kind = "chargeback" }}]
wait_hours = 72
[fraud]
trees = 30
depth = 3
learning_rate = 0.2
threads = 1
delay_days = 3
baseline = "amount"
[fraud.value]
reviews_per_day = 5
[fraud.gate]
positives = 10
value_margin = 0.02
precision_margin = 0.1
[gate]
min_rows = 100
[schedule]
kind = "score"
checkpoint = "{POINT}"
alias = "fraud-test@live"
"""


class Requests:
    """A platform in memory."""

    def __init__(self) -> None:
        self.drafted = []

    def request(self, kind, bundle, *, title, description, evidence):
        self.drafted.append((kind, bundle, title, evidence))
        return Requested("CR-1", "submitted", "")


class Loop:
    """A folder with a log of the live bundle's decisions, a registry and learn.toml."""

    def __init__(self, root, live) -> None:
        self.root, self.live = root, live
        (root / "learn.toml").write_text(LEARN)
        self.settings = learn_settings.load(root / "learn.toml")
        registry = Registry(root / "registry")
        registry.alias("fraud-test", "live", registry.push(live))
        columns = small.columns(rows=8_000, days=40, seed=5)
        records = ScoreRecords(live)
        hours = (columns["decided_at_ms"] - FIRST_DAY * DAY_MS) / 3_600_000
        order = np.argsort(hours)
        payloads = [
            records.decision(f"d{at}", hours[at], [float(columns[one.name][at]) for one in TASK.features])
            for at in order
        ]
        payloads += [
            report(f"d{at}", hours[at] + 24, "chargeback") for at in order if columns["label"][at] == 1
        ]
        write_segment(root / "decisions", 1, 1, payloads)

    def run(self, **given):
        as_of = START + 43 * DAY_MS
        return run_generation(
            Workspace(self.root / "work"), self.settings, self.root, as_of_ms=as_of, **given
        )


@pytest.fixture
def loop(place, tmp_path):
    return Loop(tmp_path, place.live)


class TestGenerations:
    def test_all_steps_promote_the_candidate_and_are_done_once(self, loop):
        done = loop.run()
        assert tuple(one.step for one in done.steps) == STEPS
        by_step = {one.step: one.says for one in done.steps}
        assert by_step["join"]["table_rows"] == 8_000
        assert by_step["gate"]["decision"] == "promote", by_step
        registry = Registry(loop.root / "registry")
        promoted = registry.aliases()["fraud-test@live"]
        assert promoted == read_verdict(done.folder / "verdict").bundle
        assert promoted != inspect(loop.live).digest
        lineage = read_manifest(done.folder / "candidate").lineage
        assert lineage.labels[0]["checkpoint"] == POINT
        assert lineage.metrics["fraud"]["last_ms"] < START + 33 * DAY_MS
        assert {one.state for one in loop.run().steps} == {"kept"}

    def test_a_run_that_is_killed_in_training_ends_in_the_same_bundle(self, loop, tmp_path_factory, place):
        class KilledError(Exception):
            pass

        def kill(boundary):
            if boundary == "train: made":
                raise KilledError

        with pytest.raises(KilledError):
            loop.run(at=kill)
        continued = loop.run()
        assert [one.state for one in continued.steps] == ["kept", "done", "done", "done", "done"]
        other = Loop(tmp_path_factory.mktemp("other"), place.live).run()
        digests = [inspect(one.folder / "candidate").digest for one in (continued, other)]
        assert digests[0] == digests[1]

    def test_a_platform_gets_a_release_and_an_alert_of_drift_gets_a_test(self, loop):
        requests = Requests()
        done = loop.run(requests=requests)
        assert [one[0] for one in requests.drafted] == ["release"]
        evidence = requests.drafted[0][3]
        assert evidence["scores"]["candidate"]["positives"] > 10
        assert Registry(loop.root / "registry").aliases()["fraud-test@live"] == inspect(loop.live).digest
        alert = {"alert": 7, "summary": "velocity has shifted", "causes": ["velocity"]}
        (done.folder / DRIFT).write_text(json.dumps(alert))
        loop.run(requests=requests)
        assert [one[0] for one in requests.drafted] == ["release", "test"]
        assert requests.drafted[1][3]["drift"]["summary"] == "velocity has shifted"

    def test_the_kind_of_the_live_bundle_must_be_that_of_the_settings(self, loop):
        text = (loop.root / "learn.toml").read_text().replace('kind = "score"', 'kind = "action"')
        (loop.root / "learn.toml").write_text(text)
        loop.settings = learn_settings.load(loop.root / "learn.toml")
        with pytest.raises(
            DataError, match=r'points to a bundle of kind "score"; set schedule\.kind = "score"'
        ):
            loop.run()

    def test_the_command_runs_the_steps(self, loop):
        given = ["learn", "run", str(loop.root / "work"), "-c", str(loop.root / "learn.toml"), "--json"]
        done = CliRunner().invoke(scorer, [*given, "--as-of", "2026-02-17T00:00"])
        assert done.exit_code == 0, done.output
        steps = json.loads(done.stdout)["steps"]
        assert [one["step"] for one in steps] == list(STEPS)
        shutil.rmtree(loop.root / "work")
