"""Tests of the learning loop in one process: generations, their state, comparison, commands."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from examples.loop.__main__ import app as loop
from examples.loop.comparison import REFERENCES, arm, compare
from examples.loop.learner import QUICK, Learner, LoopPlan
from examples.loop.rules import IssuerRules
from examples.simulators.actions import codes
from examples.simulators.outcomes import as_of, decide
from examples.simulators.payments import baseline_pmf, baseline_rule
from examples.simulators.task import authorise_task
from examples.simulators.weeks import Market, Shock, WeeksPlan
from scorer.bundle import revise
from scorer.bundle.models import OverlaySpec
from scorer.commands.learn import app
from scorer.learn import experience_files
from scorer.learn.experience import State, concatenate
from scorer.learn.overlay.live import oracle_scores, untaught_since
from scorer.learn.overlay.settings import OverlaySettings
from scorer.learn.training.fitting import fit as train
from scorer.learn.training.trained import build_candidate

TASK = authorise_task()
TINY = LoopPlan(
    train=QUICK.model_copy(update={"trees": 25, "depth": 4, "learning_rate": 0.3}),
    overlay=OverlaySettings(every_minutes=360),
)


@pytest.fixture(scope="module")
def market() -> Market:
    return Market(WeeksPlan(per_hour=15, drift_week=None), seed=5)


@pytest.fixture(scope="module")
def baseline(market):
    arrivals = market.week(1)
    return decide(market, arrivals, baseline_pmf(arrivals.contexts), "baseline")


@pytest.fixture(scope="module")
def run(market, baseline):
    learner, weeks = Learner(market, TASK, TINY, baseline), []
    for week in (2, 3, 4):
        arrivals = market.week(week)
        truth = market.truth(arrivals)
        learner.retrain(market.plan.week_ms(week))
        weeks.append((arrivals, truth, learner.serve(arrivals, truth)))
    return learner, weeks


def test_generations_serve_valid_pmfs_and_beat_the_baseline(run):
    learner, weeks = run
    assert learner.trained.generation == 3
    for number, (arrivals, truth, served) in enumerate(weeks, start=1):
        log = served.experience
        assert log.bundles == (f"generation-{number}",)
        np.testing.assert_allclose(log.pmf.sum(axis=1), 1, atol=1e-5)
        assert (log.pmf[~log.eligible] == 0).all()
        assert (log.pmf[log.eligible] > 0).all()
        np.testing.assert_allclose(served.value, (log.pmf * truth).sum(axis=1), atol=1e-5)
        rule = truth[np.arange(len(arrivals)), baseline_rule(arrivals.contexts)]
        assert served.value.mean() > rule.mean()


def test_the_overlay_carries_over_corrections_that_the_next_generation_lacks(market, run):
    """The overlay gets the training decisions of a generation with out-of-fold predictions."""
    learner, _ = run
    assert learner.overlay is not None
    assert learner.overlay.outcomes > 0.7 * 4 * 15 * 168
    whole = concatenate(learner._log)
    known = as_of(whole.take(whole.time_ms < market.plan.week_ms(4)), market.plan.week_ms(4))
    scores = learner._unlearned(known)
    settled = known.state == State.SETTLED
    np.testing.assert_array_equal(scores[settled], learner.trained.out_of_fold.probability())
    fitted = learner.trained.evaluate(known.context)[1][np.arange(len(known)), known.action]
    np.testing.assert_array_equal(scores[~settled], fitted[~settled])
    # In-sample predictions of a generation fit its training decisions too well.
    taught = known.reward[settled]

    def loss(p: np.ndarray) -> float:
        return float(-np.mean(np.log(np.where(taught == 1, p, 1 - p))))

    assert loss(fitted[settled]) < loss(scores[settled]) - 0.005
    fresh = Learner(market, TASK, LoopPlan(TINY.train, TINY.overlay, carries=False), learner._log[0])
    fresh.retrain(market.plan.week_ms(2))
    assert fresh.overlay is not None
    assert fresh.overlay.outcomes == 0


def test_a_retraining_uses_only_outcomes_that_are_settled_by_then(market, baseline):
    """Later outcomes must not be used: if all of them are inverted, the generation is the same."""
    now = market.plan.week_ms(2)
    later = (baseline.state == State.SETTLED) & (baseline.settled_ms > now)
    assert later.any()
    turned = baseline.take(slice(None))
    turned.reward[later] = 1 - turned.reward[later]
    arrivals = market.week(2)
    pmfs = []
    for log in (baseline, turned):
        learner = Learner(market, TASK, TINY, log)
        learner.retrain(now)
        pmfs.append(learner.pmf(arrivals))
    np.testing.assert_array_equal(*pmfs)


def test_the_old_rules_choose_eligible_actions_and_beat_the_baseline(market, baseline):
    rules = IssuerRules(as_of(baseline, market.plan.week_ms(2)))
    arrivals = market.week(2)
    pmf, truth = rules.pmf(arrivals.contexts), market.truth(arrivals)
    assert (pmf.sum(axis=1) == 1).all()
    assert (pmf[~arrivals.eligible] == 0).all()
    rule = truth[np.arange(len(arrivals)), baseline_rule(arrivals.contexts)].mean()
    assert (pmf * truth).sum(axis=1).mean() > rule
    # Without a tested change, nothing is changed.
    untested = IssuerRules(as_of(baseline, market.plan.week_ms(2)), significance=1e9)
    assert np.array_equal(untested.pmf(arrivals.contexts).argmax(axis=1), baseline_rule(arrivals.contexts))


def test_shoppers_keep_their_arm():
    arms = np.array([arm(f"shopper-{i}") for i in range(4000)])
    assert arms.mean() == pytest.approx(0.5, abs=0.03)
    assert np.array_equal(arms[:100], [arm(f"shopper-{i}") for i in range(100)])


def test_the_comparison_of_solutions_is_paired():
    result = compare(2, 3000, 4, TINY)
    assert [week.week for week in result.weeks] == [1, 2]
    assert len(result.days) == 14
    for week in result.weeks:
        old, new = week.rates
        assert old.low < old.value < old.high
        assert old.payments + new.payments == pytest.approx(3000 * 0.98, rel=0.02)
        for rate in week.rates:
            assert abs(rate.value - rate.truth) < 0.05
            assert rate.truth < week.best
    last = result.days[-1]
    truth = np.mean([week.rates[1].truth - week.rates[0].truth for week in result.weeks])
    assert last.low < truth < last.high
    widths = [day.high - day.low for day in result.days]
    assert widths[-1] < widths[6] < widths[1]
    assert not result.ratio.mismatch
    assert sum(result.ratio.counts) > 1000
    # The simpler solutions decided the payments of the new arm, so the differences are paired.
    rates = [week.rates[1] for week in result.weeks]
    new = np.average([rate.truth for rate in rates], weights=[rate.payments for rate in rates])
    beside = {one.name: one for one in result.references}
    assert list(beside) == list(REFERENCES)
    for one in beside.values():
        assert one.low < one.difference < one.high
        assert one.difference == pytest.approx(new - one.truth, abs=0.003)
    assert beside["uniform choice"].truth == pytest.approx(0.74, abs=0.02)
    assert beside["uniform choice"].truth < beside["linear model per issuer, retrained weekly"].truth


def test_the_compare_command_writes_a_plot_and_a_summary(tmp_path, monkeypatch):
    monkeypatch.setattr("examples.loop.comparison.LoopPlan", lambda: TINY)
    done = CliRunner().invoke(
        loop, ["compare", "-o", str(tmp_path / "c"), "--weeks", "1", "--payments", "2000"]
    )
    assert done.exit_code == 0, done.output
    assert "as planned" in done.output
    numbers = json.loads((tmp_path / "c/compare.json").read_text())
    value = numbers["weeks"][0]["rates"][1]["value"]
    assert f"{100 * value:.1f} %" in done.output
    page = (tmp_path / "c/compare.html").read_text()
    assert f"{100 * value:.1f} %" in page
    assert (tmp_path / "c/compare.png").read_bytes()[:4] == b"\x89PNG"


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A bundle trained on a stable week, and the next week, when an issuer starts to decline route A."""
    shock = Shock(168 + 24, "NL-bank-0", "route", "A")
    market = Market(WeeksPlan(per_hour=30, shocks=(shock,)), seed=9)
    first, second = market.week(1), market.week(2)
    log = decide(market, first, baseline_pmf(first.contexts), "baseline")
    trained = train(TASK, as_of(log, market.plan.week_ms(2)), TINY.train)
    folder = tmp_path_factory.mktemp("live")
    built = build_candidate(trained, folder / "bundle", "run")
    after = decide(market, second, baseline_pmf(second.contexts), "baseline")
    known = as_of(concatenate([log, after]), market.plan.week_ms(3))
    experience_files.write(known, folder / "log.parquet")
    return built.path, folder / "log.parquet", known


def test_the_overlay_command_finds_the_change_and_revises_the_bundle(live, tmp_path):
    bundle, log, known = live
    output = tmp_path / "overlay.json"
    done = CliRunner().invoke(
        app, ["overlay", str(log), "--bundle", str(bundle), "-o", str(output), "--json"]
    )
    assert done.exit_code == 0, done.output
    said, spec = json.loads(done.stdout), OverlaySpec.model_validate_json(output.read_bytes())
    assert said["gain_nats"] > 20
    routes = spec.segments["NL-bank-0"]["route"]
    assert routes["A"] < -0.5
    assert routes["A"] == min(routes.values())
    since = untaught_since(bundle, known)
    assert since == said["since_ms"] == known.time_ms[known.time_ms < since].max() + 1
    # Without the overlay, the scores of the revision are those of the oracle, from which fitting continues.
    revised = revise(bundle, tmp_path / "revised", overlay=spec)
    mask = (codes()[known.action, 2] == 0) & (known.context[:, 2] == 0)
    plain, again = (oracle_scores(path, known) for path in (bundle, revised.path))
    np.testing.assert_allclose(again, plain, atol=1e-6)
    assert mask.any()
    table = CliRunner().invoke(app, ["overlay", str(log), "--bundle", str(bundle), "-o", str(output)])
    assert "NL-bank-0" in table.output
    assert "route=A" in table.output


def test_the_overlay_command_requires_the_training_decisions_of_the_oracle(live, tmp_path):
    bundle, log, _ = live
    arguments = ["overlay", str(log), "--bundle", str(bundle), "-o", str(tmp_path / "o.json")]
    # There are no newer decisions, so no overlay is fitted.
    done = CliRunner().invoke(app, [*arguments, "--since", "2030-01-01"])
    assert done.exit_code == 3, done.output
    assert not (tmp_path / "o.json").exists()
