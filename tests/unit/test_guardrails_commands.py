"""Tests of guardrails on real bundles and logs: audit, solved prices, the controller's state."""

from __future__ import annotations

import json

import numpy as np
import pytest
from gates import CHALLENGE, COUNTRIES, K, bundle, log
from typer.testing import CliRunner

from scorer.bundle import Bundle, Cap, inspect
from scorer.bundle.rules import BundleRules, RuleList
from scorer.cli import app
from scorer.learn.errors import DataError
from scorer.learn.experience_files import write
from scorer.learn.guardrails.audit import audit
from scorer.learn.guardrails.caps import drafted, solve_bundle
from scorer.learn.guardrails.controller import ControllerSettings, ControllerState

TRUTH = np.full((len(COUNTRIES), K), 0.7)
CAPS = [{"attribute": "challenge", "lambda": 0.0, "limit": 0.4}]
SOFTMAX = {"rule": "softmax", "inverse_temperature": 10.0, "caps": CAPS}
RULES = """
name = "routes"
[[rules]]
id = "no_route_e_abroad"
when = '!has(country) || country != "NL"'
remove = { route = ["E"] }
source = "a test"
[[rules]]
id = "listed"
when = 'country in list("closed")'
remove = { route = ["D"] }
source = "a contract"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("guardrails")
    bundle(root / "soft", prefers=2, policy=SOFTMAX)
    write(log(TRUTH, n=2_000, seed=1), root / "log.parquet")
    (root / "rules.toml").write_text(RULES)
    (root / "closed.txt").write_text("ES\n")
    return root


def run(*arguments):
    return CliRunner().invoke(app, ["learn", "guardrails", *map(str, arguments)])


def test_a_clean_log_passes_and_a_broken_rule_is_named(place):
    clean = run("check", place / "log.parquet", "--bundle", place / "soft")
    assert clean.exit_code == 0, clean.output
    assert "2000 decisions, no findings" in clean.output
    rules = ("--rules", place / "rules.toml", "--list", f"closed={place / 'closed.txt'}")
    result = run("check", place / "log.parquet", "--bundle", place / "soft", *rules, "--json")
    assert result.exit_code == 1, result.output
    abroad_finding, listed = json.loads(result.output)
    logged = log(TRUTH, n=2_000, seed=1)
    abroad, closed = logged.context[:, 0] != 0, logged.context[:, 0] == 3
    assert (abroad_finding["rule"], abroad_finding["source"]) == ("no_route_e_abroad", "a test")
    assert abroad_finding["rows"] == int(abroad.sum())
    assert abroad_finding["detail"] == {"taken": int((abroad & (logged.action == 4)).sum())}
    assert (listed["rule"], listed["rows"]) == ("listed", int(closed.sum()))
    alone = run("check", place / "log.parquet", "--bundle", place / "soft", *rules[2:])
    assert "--list is for the rules of --rules" in str(alone.exception)
    shown = run("check", place / "log.parquet", "--bundle", place / "soft", *rules)
    assert "no_route_e_abroad" in shown.output
    assert "a contract" in shown.output


def test_the_rules_of_the_bundle_are_the_default(place, tmp_path):
    from scorer.bundle import revise
    from scorer.bundle.rules import read_rules

    rules = read_rules(place / "rules.toml", {"closed": (place / "closed.txt", "string")})
    revise(place / "soft", tmp_path / "ruled", rules=rules)
    logged = log(TRUTH, n=2_000, seed=1)
    by_bundle = audit(logged, tmp_path / "ruled")
    assert [finding.rule for finding in by_bundle] == ["no_route_e_abroad", "listed"]
    assert by_bundle == audit(logged, place / "soft", rules)
    # A team that enforces the rules has no finding, and none about actions that it does not allow itself.
    object.__setattr__(logged, "eligible", logged.eligible & allowed(logged))
    object.__setattr__(
        logged, "pmf", (logged.eligible / logged.eligible.sum(axis=1, keepdims=True)).astype("f4")
    )
    object.__setattr__(logged, "action", np.zeros(len(logged), dtype=np.int64))
    object.__setattr__(logged, "propensity", logged.pmf[:, 0].astype(np.float64))
    assert audit(logged, tmp_path / "ruled") == ()
    assert audit(logged, tmp_path / "ruled", complete=True) == ()
    logged.eligible[5, 1] = False
    assert not [one for one in audit(logged, tmp_path / "ruled") if "without a rule" in one.what]
    (missing,) = [one for one in audit(logged, tmp_path / "ruled", complete=True) if "without" in one.what]
    assert (missing.rows, missing.example, dict(missing.detail)) == (1, "d5", {"route=B": 1})


def allowed(logged):
    """Return the actions that `RULES` allow, `[n, K]`."""
    country = logged.context[:, 0]
    mask = np.ones(logged.eligible.shape, dtype=bool)
    mask[:, 4] = country == 0
    mask[:, 3] = country != 3
    return mask


def test_rules_are_read_from_the_settings(place, tmp_path):
    config = tmp_path / "learn.toml"
    config.write_text(
        f"[guardrails]\nrules = '{place / 'rules.toml'}'\n"
        f"[guardrails.lists.closed]\nfile = '{place / 'closed.txt'}'\n"
    )
    result = run("check", place / "log.parquet", "-b", place / "soft", "-c", config, "--json")
    assert [finding["rule"] for finding in json.loads(result.output)] == ["no_route_e_abroad", "listed"]


def test_rules_that_do_not_fit_or_read_withheld_features_are_refused(place):
    logged = log(TRUTH, n=10, seed=1)
    with pytest.raises(DataError, match=r'rule "listed", line 10.*unknown list'):
        audit(logged, place / "soft", BundleRules(RULES))
    object.__setattr__(logged, "withheld", ("country",))
    rules = BundleRules(RULES, {"closed": RuleList(b"ES\n")})
    with pytest.raises(DataError, match=r"lacks \(country\); join with the reader key"):
        audit(logged, place / "soft", rules)
    object.__setattr__(logged, "withheld", ("amount",))
    assert audit(logged, place / "soft", rules), "the rules do not read the amount"


def test_a_log_of_another_catalogue_is_refused(place):
    logged = log(TRUTH, n=10, seed=1)
    object.__setattr__(logged, "actions", tuple("vwxyz"))
    with pytest.raises(DataError, match="another catalogue"):
        audit(logged, place / "soft", None)


def test_solved_prices_meet_the_limits_in_the_revised_bundle(place, tmp_path):
    from scorer.bundle import revise

    logged = log(TRUTH, n=2_000, seed=1)
    solved = solve_bundle(place / "soft", logged.context, logged.eligible, {"challenge": 0.4})
    assert solved.unpriced[0] > 0.5
    assert solved.prices[0] > 0
    revision = revise(
        place / "soft", tmp_path / "next", caps=dict(zip(solved.attributes, solved.prices, strict=True))
    )
    pmf, _ = Bundle.load(revision.path).evaluate(logged.context, eligible=logged.eligible)
    assert 0.4 * (1 - 1e-3) <= float((pmf @ CHALLENGE).mean()) <= 0.4
    assert inspect(revision.path).digest == revision.digest
    # The revised bundle gives the same prices, because they are solved anew and not added.
    again = solve_bundle(revision.path, logged.context, logged.eligible, {"challenge": 0.4})
    assert again.prices == pytest.approx(solved.prices, rel=1e-2)
    assert again.unpriced == pytest.approx(solved.unpriced)


def test_the_prices_of_a_bundle_of_members_are_solved_on_that_bundle(tmp_path):
    import xgboost

    from scorer.bundle import Action, Feature, Lineage, PolicySpec, SchemaFile, build_action_bundle

    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.random(1_000), rng.integers(0, 3, 1_000)]).astype(np.float32)

    def member(seed):
        label = (rng.random(1_000) < np.where(rows[:, 1] == 1, 0.4 + 0.4 * rows[:, 0], 0.6)).astype(
            np.float32
        )
        settings = {"objective": "binary:logistic", "max_depth": 3, "nthread": 1, "seed": seed}
        return xgboost.train(settings, xgboost.DMatrix(rows, label), num_boost_round=5)

    build_action_bundle(
        tmp_path / "bag",
        name="bag",
        model=member(0),
        voters=[member(seed) for seed in range(1, 5)],
        schema=SchemaFile(features=[Feature(name="x")], action_features=[Feature(name="a")]),
        actions=[Action(id=f"a{i}", features=[float(i)], attributes={"c": float(i == 1)}) for i in range(3)],
        policy=PolicySpec(
            rule="bagging", voters=4, caps=[{"attribute": "c", "lambda": 0, "limit": 1}], salt="0" * 32
        ),
        training=rows[:, :1],
        validation=rows[:, :1],
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="test"),
    )
    contexts, eligible = rows[:400, :1].copy(), np.ones((400, 3), dtype=bool)
    free = float(Bundle.load(tmp_path / "bag").evaluate(contexts, eligible=eligible)[0][:, 1].mean())
    solved = solve_bundle(tmp_path / "bag", contexts, eligible, {"c": free / 8}, tolerance=0.05)
    assert solved.unpriced[0] == pytest.approx(free)
    assert solved.use[0] <= free / 8
    # Votes are counted, so the use falls in steps. At a slightly lower price it exceeds the limit.
    cheaper = drafted(tmp_path / "bag", [Cap(attribute="c", lambda_=solved.prices[0] * 0.97)])
    assert cheaper.evaluate(contexts, eligible=eligible)[0][:, 1].mean() > free / 8


def test_solve_and_control_can_alternate(place, tmp_path):
    state = tmp_path / "caps.json"
    solved = run(
        "solve", place / "log.parquet", "-b", place / "soft", "--cap", "challenge=0.1", "--state", state
    )
    assert solved.exit_code == 0, solved.output
    assert f"scorer bundle revise {place / 'soft'} --cap challenge=" in solved.output
    before = ControllerState.read(state)
    # The policy of the log challenges 12 % of the decisions, which exceeds the limit at every price.
    later = log(TRUTH, n=6_000, seed=2)
    object.__setattr__(later, "time_ms", later.time_ms + before.through_ms - int(later.time_ms[0]))
    write(later, tmp_path / "later.parquet")
    config = tmp_path / "learn.toml"
    config.write_text("[guardrails.controller]\nwindow_minutes = 360.0\nperiod = 4\n")
    arguments = ("control", tmp_path / "later.parquet", "--state", state, "-b", place / "soft", "-c", config)
    moved = run(*arguments)
    assert moved.exit_code == 1
    after = ControllerState.read(state)
    assert after.caps[0].price > before.caps[0].price
    assert after.caps[0].mean() == pytest.approx(0.12, abs=1e-6)
    assert after.caps[0].saturated, "the log does not depend on the price"
    assert after.through_ms % (360 * 60_000) == 0
    run(*arguments)
    assert ControllerState.read(state) == after, "a repeated run on the same decisions changes nothing"


def test_an_unfinished_window_is_not_used(place):
    logged = log(TRUTH, n=500, seed=1, days=0.5)
    state = ControllerState(0, ())
    day = ControllerSettings(window_minutes=1_440)
    assert state.follow(logged, place / "soft", day) == state


@pytest.mark.parametrize("content", ["{", '{"through_ms": 1}', '{"through_ms": 1, "caps": [{"price": 2}]}'])
def test_a_damaged_state_is_refused_by_name(tmp_path, content):
    (tmp_path / "caps.json").write_text(content)
    with pytest.raises(DataError, match="is damaged"):
        ControllerState.read(tmp_path / "caps.json")
    with pytest.raises(DataError, match="is missing"):
        ControllerState.read(tmp_path / "none.json")


def test_caps_are_named_with_their_limits(place):
    shown = run("solve", place / "log.parquet", "-b", place / "soft", "--cap", "challenge")
    assert shown.exit_code != 0
    assert "NAME=LIMIT" in str(shown.exception)
