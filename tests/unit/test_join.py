"""Tests of the join on logs of the documented format: states, rules, corrections, and bad input."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bundles import ACTIONS, SALT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from joining import HOUR, POINT, SETTINGS, SLOW, START, Maker, counts, delivery, known, outcome, run
from logs import write_segment
from typer.testing import CliRunner

from scorer.cli import app
from scorer.errors import ScorerError
from scorer.learn import experience_files
from scorer.learn.errors import DataError
from scorer.learn.join.corrections import corrections
from scorer.learn.join.findings import RULES
from scorer.log import BundleShelf
from scorer.log.proof import UNPROVEN
from scorer.v1.log_pb2 import DecisionRecord, LogRecord, ObservationRecord


@pytest.fixture(scope="module")
def make(built_bundles: dict[str, Path]) -> Maker:
    return Maker(built_bundles["action-1"])


@pytest.fixture(scope="module")
def shelf(built_bundles: dict[str, Path]) -> BundleShelf:
    return BundleShelf([built_bundles["action-1"], built_bundles["score-1"]])


def test_what_observed_teaches_nothing(tmp_path, make, shelf):
    """A log full of observations joins as one without them: same rows, same findings."""
    decisions = [make.decision("a", 0, 0), make.decision("b", 0, 3), outcome("a", 1)]
    observations = []
    for name in ("a", "b", "of another server"):
        own = LogRecord.FromString(make.decision(name, 0, 5, lane="cr-000001")).decision
        seen = ObservationRecord(decision=own, live_lane="live", live_action=make.actions[0])
        observations.append(LogRecord(observation=seen).SerializeToString())
    write_segment(tmp_path / "plain", 1, 1, decisions)
    write_segment(tmp_path / "log", 1, 1, [*observations, *decisions, *observations])
    plain, seen = run(tmp_path / "plain", shelf, 100), run(tmp_path / "log", shelf, 100)
    assert known(seen) == known(plain) != {}
    assert seen.experience.lanes == ("live",)
    assert seen.experience.action.tolist() == plain.experience.action.tolist()
    assert counts(seen) == counts(plain)


def test_states_follow_the_family_of_the_action(tmp_path, make, shelf):
    fast, slow = 0, 3
    write_segment(
        tmp_path / "log",
        1,
        1,
        [
            make.decision("fast", 0, fast),
            make.decision("slow", 0, slow),
            make.decision("yes", 0, slow),
            make.decision("no", 0, fast),
            outcome("yes", 1),
            outcome("no", 2, 0.4),
        ],
    )
    settled = {"yes": ("SETTLED", 1.0), "no": ("SETTLED", 0.0)}
    flight, missing = ("IN_FLIGHT", None), ("MISSING", None)
    log = tmp_path / "log"
    assert known(run(log, shelf, 23.99)) == {**settled, "fast": flight, "slow": flight}
    assert known(run(log, shelf, 24)) == {**settled, "fast": missing, "slow": flight}
    assert known(run(log, shelf, 71.99)) == {**settled, "fast": missing, "slow": flight}
    joined = run(log, shelf, 72)
    assert known(joined) == {**settled, "fast": missing, "slow": missing}
    # What came after the moment is not seen.
    assert known(run(log, shelf, 1.5)) == {
        "fast": flight,
        "slow": flight,
        "no": flight,
        "yes": ("SETTLED", 1.0),
    }
    e = joined.experience
    assert e.actions == ACTIONS
    assert e.lanes == ("live",)
    # Decisions of the same microsecond are in the order of their ids.
    assert e.entity.tolist() == [f"shopper-{name}" for name in ("fast", "no", "slow", "yes")]
    assert e.settled_ms.tolist() == [-1, START + 2 * HOUR, -1, START + HOUR]
    assert e.propensity.tolist() == [0.5] * 4
    assert e.action.tolist() == [0, 0, 3, 3]
    assert np.isnan(e.context[:, 3]).all()
    assert e.eligible.all()
    rates = {rate.name: rate for rate in joined.families}
    assert set(rates) == {"frictionless", "default"}
    assert (rates["default"].matured, rates["default"].rate, rates["default"].mean_reward) == (2, 0.5, 0.0)
    assert [rate.decisions for rate in joined.actions] == [2, 2]
    # In flight is not in the rate's denominator.
    early = {rate.name: rate for rate in run(log, shelf, 30).families}
    assert (early["frictionless"].matured, early["frictionless"].in_flight) == (0, 1)
    assert math.isnan(early["frictionless"].rate)


def test_an_early_outcome_may_have_to_wait(tmp_path, make, shelf):
    write_segment(tmp_path / "log", 1, 1, [make.decision("a", 0), outcome("a", 1)])
    waiting = SETTINGS.model_copy(update={"early": "wait"})
    assert known(run(tmp_path / "log", shelf, 23, waiting)) == {"a": ("IN_FLIGHT", None)}
    joined = run(tmp_path / "log", shelf, 24, waiting)
    assert known(joined) == {"a": ("SETTLED", 1.0)}
    assert joined.experience.settled_ms.tolist() == [START + 24 * HOUR]


def test_revisions_become_corrections(tmp_path, make, shelf):
    log = tmp_path / "log"
    names = ("revised", "late", "settled", "expired", "same", "flight")
    write_segment(
        log,
        1,
        1,
        [
            *(make.decision(name, 20 if name in {"settled", "expired", "flight"} else 0) for name in names),
            outcome("revised", 1, 0.0),
            outcome("same", 1),
            outcome("late", 41),
            outcome("settled", 41),
            outcome("revised", 42, 1.0, revision=1),
            outcome("same", 42, 1.0, revision=1),
            make.decision("new", 41),
        ],
    )
    before, after = run(log, shelf, 40), run(log, shelf, 44)
    found = {one.decision_id: one for one in corrections(before.experience, after.experience)}
    kinds = {name: one.kind for name, one in found.items()}
    expected = {"revised": "revised", "late": "late", "settled": "settled"}
    assert kinds == {**expected, "expired": "expired", "flight": "expired"}
    assert (found["revised"].before, found["revised"].after) == (0.0, 1.0)
    assert found["revised"].settled_ms == START + 42 * HOUR
    assert corrections(after.experience, after.experience) == []
    back = {one.decision_id: one.kind for one in corrections(after.experience, before.experience)}
    assert back["new"] == "gone"
    assert back["late"] == "lost"


def test_it_is_idempotent_to_the_byte(tmp_path, make, shelf):
    log = tmp_path / "log"
    write_segment(log, 1, 1, [make.decision("a", 0), outcome("a", 1), make.decision("b", 2, 4)], sealed=False)
    files = []
    for name in ("one", "two"):
        joined = run(log, shelf, 30)
        experience_files.write(joined.experience, tmp_path / name, joined.notes(SETTINGS))
        files.append((tmp_path / name).read_bytes())
        write_segment(log, 1, 1, [make.decision("a", 0), outcome("a", 1), make.decision("b", 2, 4)])
    assert files[0] == files[1]
    # The log goes on: what comes after the moment changes nothing.
    write_segment(log, 2, 4, [outcome("b", 50), make.decision("c", 60)])
    grown = run(log, shelf, 30)
    assert counts(grown) == {"after the moment": 2}
    experience_files.write(grown.experience, tmp_path / "grown", grown.notes(SETTINGS))
    assert (tmp_path / "grown").read_bytes() == files[0]


def broken(**fields: Any) -> Any:
    return lambda make: [make.decision("bad", 1, **fields)]


def pmf(*values: float) -> dict[str, Any]:
    return {"pmf": values, "propensity": values[0]}


ROWS: list[tuple[str, Any, str]] = [
    ("no propensity", broken(propensity=0.0), "bad"),
    ("no propensity", broken(propensity=math.nan), "bad"),
    ("propensity is not pmf[action]", broken(propensity=0.4), "bad"),
    ("pmf does not sum to 1", broken(**pmf(0.5, 0.1, 0.1, 0.1, 0.1, 0.0)), "bad"),
    ("pmf with impossible values", broken(**pmf(0.5, 0.6, -0.1, 0.0, 0.0, 0.0)), "bad"),
    ("pmf with impossible values", broken(**pmf(0.5, math.nan, 0.1, 0.1, 0.1, 0.1)), "bad"),
    ("pmf of another length", broken(**pmf(0.5, 0.5)), "bad"),
    ("mass outside the eligible set", broken(eligible_mask=bytes([0b111])), "bad"),
    ("columns do not fit", broken(features=[1.0]), "bad"),
    ("columns do not fit", broken(schema_fingerprint=7), "bad"),
    ("unknown bundle", broken(bundle=bytes(32)), "bad (sha256:000000000000)"),
    ("action is not the catalogue's", broken(action="3ds=off"), "bad (3ds=off)"),
    ("action is not the catalogue's", broken(action_index=99), f"bad ({ACTIONS[0]})"),
    ("fallback answer", broken(fallback_source="static", fallback_reason="deadline"), "bad (static)"),
    ("exploration stopped", broken(fallback_source="greedy", fallback_reason="log"), "bad"),
    ("no action", broken(action="", pmf=[], propensity=0.0), "bad"),
    ("repeated decision", lambda make: [make.decision("good", 1)], "good"),
    ("repeated with another answer", lambda make: [make.decision("good", 1, 2)], "good"),
    ("undelivered decision", lambda make: [make.decision("gone", 1), delivery("gone", 1)], "gone"),
    ("unproven outcome", lambda make: [outcome("good", 5, proof=UNPROVEN)], "good"),
    (
        "outcome of an absent decision",
        lambda make: [outcome("elsewhere", 5, **make.token("elsewhere", 5))],
        "elsewhere",
    ),
    (
        "token of another answer",
        lambda make: [make.decision("bad", 1), outcome("bad", 5, **make.token("bad", 1, taken=2))],
        "bad",
    ),
    ("outcome without decision", lambda make: [outcome("nobody", 1)], "nobody"),
    ("outcome that is no number", lambda make: [outcome("good", 1, math.nan)], "good"),
    ("outcome of another kind", lambda make: [outcome("good", 1, kind="captured")], "captured"),
    ("duplicate outcome", lambda make: [outcome("good", 5), outcome("good", 6)], ""),
    ("revised outcome", lambda make: [outcome("good", 5), outcome("good", 6, 1.0, 1)], ""),
    (
        "conflicting outcomes",
        lambda make: [outcome("good", 5), outcome("good", 6, 0.0)],
        "action.authorise good authorised revision 0: 1 (sequence 3), later 0 (sequence 4)",
    ),
    (
        "outcome before its decision",
        lambda make: [outcome("good", 5, occurred_at_ms=START - HOUR)],
        "good",
    ),
    ("unknown record", lambda make: [b""], "sequence 3"),
    ("before the window", lambda make: [make.decision("old", -24 * 60)], ""),
]


@pytest.mark.parametrize(
    ("name", "records", "example"), ROWS, ids=[f"{row[0]}-{at}" for at, row in enumerate(ROWS)]
)
def test_bad_rows_are_named_and_never_trained_on(tmp_path, make, shelf, name, records, example):
    log = tmp_path / "log"
    good = [make.decision("good", 0), make.decision("other", 0, 5)]
    write_segment(log, 1, 1, [*good, *records(make)])
    of = SETTINGS.model_copy(update={"days": 30.0})
    joined = run(log, shelf, 48, of)
    found = {one.name: one for one in joined.findings}
    assert found[name].count == 1
    assert found[name].rule == RULES[name][1]
    assert found[name].examples == ((example,) if example else ())
    assert set(known(joined)) == {"good", "other"}
    if name == "conflicting outcomes":
        assert known(joined)["good"] == ("SETTLED", 1.0)
    elif name == "outcome that is no number":
        assert known(joined)["good"] == ("MISSING", None)
    refused = strictly(log, tmp_path, shelf)
    assert (refused.exit_code != 0) == (RULES[name][0] != "told" or "no outcomes at all" in counts(joined))


def strictly(log: Path, directory: Path, shelf: BundleShelf) -> Any:
    places = [str(path) for path in shelf._paths.values()]
    config = directory / "learn.toml"
    config.write_text("[join]\ndays = 30\nfamilies = []\n")
    out = directory / "strict.parquet"
    arguments = [
        "learn",
        "join",
        "--log",
        str(log),
        "--as-of",
        "2026-01-07",
        "--output",
        str(out),
        "--strict",
    ]
    done = CliRunner().invoke(
        app, [*arguments, "--config", str(config), *(f"--bundles={one}" for one in places)]
    )
    assert out.exists() == (done.exit_code == 0)
    if done.exit_code:
        assert isinstance(done.exception, ScorerError), done.exception
        assert "--strict: nothing was written: " in str(done.exception)
    return done


def test_damage_of_the_log_is_named(tmp_path, make, shelf):
    log = tmp_path / "log"
    for number in range(1, 5):
        records = [make.decision(f"d{number}-{at}", number, at) for at in range(4)]
        write_segment(log, number, 4 * number - 3, records)
    segments = sorted(log.glob("*.seg"))
    (log / "quarantine").mkdir()
    shutil.copy(segments[0], log / "quarantine")
    data = bytearray(segments[2].read_bytes())
    data[200] ^= 4
    segments[2].write_bytes(bytes(data))
    segments[1].unlink()
    joined = run(log, shelf, 10)
    found = counts(joined)
    assert found["gap in the log"] == 4
    assert found["damaged segment"] == 1
    assert found["quarantined segment"] == 1
    assert len(joined.experience) == 11


def test_what_cannot_be_joined_is_refused(tmp_path, make, shelf, built_bundles):
    log = tmp_path / "log"
    score = DecisionRecord(decision_id="s", checkpoint="fraud.checkout", score=0.5, decision="approve")
    write_segment(log, 1, 1, [LogRecord(decision=score).SerializeToString()])
    with pytest.raises(DataError, match="no decision of an action"):
        run(log, shelf, 1)
    write_segment(log, 2, 2, [make.decision("a", 0, bundle=bytes(32))])
    with pytest.raises(DataError, match=r'no decision of "action\.authorise" can be used: 1 unknown bundle'):
        run(log, shelf, 1)
    write_segment(log, 3, 3, [make.decision("b", 0), make.decision("c", 0, checkpoint="action.retry")])
    with pytest.raises(DataError, match="several action checkpoints"):
        run(log, shelf, 1)
    assert set(known(run(log, shelf, 1, checkpoint="action.retry"))) == {"c"}
    assert set(known(run(log, shelf, 1, checkpoint=POINT))) == {"b"}
    with pytest.raises(DataError, match=r'checkpoint "fraud\.checkout"'):
        run(log, shelf, 1, checkpoint="fraud.checkout")
    broken_bundle = tmp_path / "broken"
    shutil.copytree(built_bundles["action-1"], broken_bundle)
    (broken_bundle / "forest.bin").write_bytes(b"no forest")
    with pytest.raises(DataError, match="1 unusable bundle"):
        run(log, BundleShelf([broken_bundle]), 1, checkpoint=POINT)


def test_one_action_in_a_week_and_no_outcomes_are_told(tmp_path, make, shelf):
    log = tmp_path / "log"
    week = 24 * 7
    records = [make.decision(f"a{at}", at, 1) for at in range(5)]
    records += [make.decision(f"b{at}", week + at, at % 2) for at in range(5)]
    write_segment(log, 1, 1, records)
    found = {one.name: one for one in run(log, shelf, 2 * week).findings}
    assert found["one action in a week"].examples == (f"2026-01-05: 5 decisions, {ACTIONS[1]}",)
    assert found["no outcomes at all"].count == 1


def test_missingness_that_depends_on_the_action_is_told(tmp_path, make, shelf):
    for bias, told in ((0, False), (30, True)):
        log = tmp_path / f"log-{bias}"
        records = []
        for at in range(400):
            action = at % 2
            records.append(make.decision(f"d{at}", 0, action))
            if at % 100 >= (10 if action == 0 else 10 + bias):
                records.append(outcome(f"d{at}", 1))
        write_segment(log, 1, 1, records)
        joined = run(log, shelf, 48)
        assert ("missingness depends on the action" in counts(joined)) is told
        from scipy.stats import chi2_contingency

        lost = [[rate.missing, rate.settled] for rate in joined.actions]
        reference = chi2_contingency(np.array(lost), correction=False)
        assert joined.dependence.statistic == pytest.approx(reference.statistic)
        assert joined.dependence.p == pytest.approx(reference.pvalue)


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose catalogue has lost two actions, has them in another order, and redefines one."""
    from bundles import CREATED, FEATURES, _oracle, rows

    from scorer.bundle import Action, Feature, Lineage, PolicySpec, SchemaFile, build_action_bundle

    path = tmp_path_factory.mktemp("changed") / "bundle"
    order = (5, 0, 2, 1)
    actions = [
        Action(
            id=ACTIONS[at],
            factors=dict(part.split("=") for part in ACTIONS[at].split("|"))
            | ({"3ds": "x"} if at == 2 else {}),
            features=[float(at // 3), float(at % 3)],
        )
        for at in order
    ]
    actions.append(Action(id="new", factors={"3ds": "off", "exemption": "new"}, features=[0.0, 0.0]))
    build_action_bundle(
        path,
        name="action-authorise",
        model=_oracle(1, 8, 3),
        # One column moved to the front, one is new and may be missing.
        schema=SchemaFile(
            features=[Feature(name=feature) for feature in FEATURES],
            action_features=[Feature(name="three_ds"), Feature(name="exemption")],
        ),
        actions=actions,
        policy=PolicySpec(rule="uniform", salt=SALT),
        training=rows(300),
        validation=rows(300, seed=1),
        lineage=Lineage(data_digest="sha256:" + "0" * 64, code_version="test"),
        created_at=CREATED,
    )
    return path


@pytest.mark.fault_case(68)
def test_catalogues_are_mapped_by_id(tmp_path, make, built_bundles, changed):
    log = tmp_path / "log"
    newer = Maker(changed)
    records = [make.decision(f"old{at}", at, at) for at in range(6)] + [newer.decision("new", 10, 4)]
    write_segment(log, 1, 1, records)
    joined = run(log, BundleShelf([built_bundles["action-1"], changed]), 20)
    e = joined.experience
    assert e.actions == (ACTIONS[5], ACTIONS[0], ACTIONS[2], ACTIONS[1], "new")
    found = {one.name: one for one in joined.findings}
    assert found["action left the catalogue"].examples == ("old3", "old4")
    assert found["action was redefined"].examples == ("old2",)
    assert found["catalogue changed"].count == 3
    assert e.decision_id.tolist() == ["old0", "old1", "old5", "new"]
    assert [e.actions[at] for at in e.action] == [ACTIONS[0], ACTIONS[1], ACTIONS[5], "new"]
    # Of .5 .1 .1 .1 .1 .1 the actions 2, 3 and 4 are gone: .7 is left.
    np.testing.assert_allclose(e.pmf[0], [0.1 / 0.7, 0.5 / 0.7, 0, 0.1 / 0.7, 0], rtol=1e-6)
    np.testing.assert_allclose(e.propensity, [0.5 / 0.7, 0.5 / 0.7, 0.5 / 0.7, 0.6])
    assert e.eligible[0].tolist() == [True, True, False, True, False]
    np.testing.assert_allclose(e.pmf.sum(axis=1), 1, atol=1e-6)
    assert e.bundle.tolist() == [0, 0, 0, 1]


MINUTES = st.integers(0, 200 * 60)
EVENTS = st.lists(
    st.tuples(
        st.integers(0, 11),
        st.integers(0, 5),
        MINUTES,
        st.lists(st.tuples(MINUTES, st.sampled_from([0.0, 1.0]), st.integers(0, 2)), max_size=3),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, now=st.integers(0, 300 * 60), early=st.sampled_from(["count", "wait"]))
def test_against_a_naive_reference(tmp_path_factory, make, shelf, events, now, early):
    """Every decision by itself, from the definitions: above all, in flight is never a decline."""
    log = tmp_path_factory.mktemp("naive") / "log"
    records: list[bytes] = []
    first: dict[str, tuple[int, int]] = {}
    reports: dict[str, list[tuple[int, float, int]]] = {}
    for number, action, at, told in events:
        name = f"d{number}"
        records.append(make.decision(name, at / 60, action))
        if at <= now:
            # Of several records, the first in time counts, wherever it is in the log.
            first[name] = min(first.get(name, (at, action)), (at, action))
        for delay, value, revision in told:
            records.append(outcome(name, (at + delay) / 60, value, revision))
            reports.setdefault(name, []).append((at + delay, value, revision))
    write_segment(log, 1, 1, records)
    expected = {}
    for name, (at, action) in first.items():
        seen = [report for report in reports.get(name, []) if report[0] <= now]
        passed = now - at >= (72 if action >= 3 else 24) * 60
        if seen and (passed or early == "count"):
            highest = max(report[2] for report in seen)
            expected[name] = ("SETTLED", min(one[:2] for one in seen if one[2] == highest)[1])
        else:
            expected[name] = ("MISSING" if passed else "IN_FLIGHT", None)
    slow = SLOW.model_copy(update={"early": early})
    of = SETTINGS.model_copy(update={"early": early, "families": (slow,)})
    if not expected:
        with pytest.raises(DataError, match="can be used"):
            run(log, shelf, now / 60, of)
        return
    assert known(run(log, shelf, now / 60, of)) == expected


def test_every_rule_is_in_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "learning.md").read_text()
    for name, (effect, rule) in RULES.items():
        assert f"| {name} | {effect} | {rule} |" in page


def test_the_command(tmp_path, make, built_bundles):
    log, out = tmp_path / "log", tmp_path / "experience.parquet"
    write_segment(log, 1, 1, [make.decision(f"d{at}", at, at % 6) for at in range(24)])
    write_segment(log, 2, 25, [outcome(f"d{at}", at + 1, at % 3) for at in range(12)])
    config = tmp_path / "learn.toml"
    config.write_text(
        '[[join.families]]\nname = "frictionless"\nfactors = { 3ds = "frictionless" }\nhours = 72\n'
    )
    common = ["learn", "join", "--log", str(log), "--registry", str(built_bundles["action-1"])]
    common += ["--config", str(config)]
    runner = CliRunner()
    first = runner.invoke(app, [*common, "--as-of", "2026-01-05T10:00", "--output", str(out)])
    assert first.exit_code == 0, first.output
    assert "frictionless" in first.output
    notes = experience_files.read_notes(out)
    assert notes["as_of_ms"] == START + 10 * HOUR
    assert notes["settings"]["families"][0]["name"] == "frictionless"
    told = tmp_path / "corrections.parquet"
    arguments = [
        "--since",
        str(out),
        "--corrections",
        str(told),
        "--output",
        str(tmp_path / "b.parquet"),
        "--json",
    ]
    second = runner.invoke(app, [*common, "--as-of", "2026-01-06T06:00", *arguments])
    assert second.exit_code == 0, second.output
    said = json.loads(second.output)
    # Decided at ten, told at eleven.
    assert said["decisions"] == 24
    assert said["corrections"]["counts"]["settled"] == 1
    import pyarrow.parquet as pq

    assert pq.read_table(told).num_rows == len(said["corrections"]["rows"])
    wrong = runner.invoke(app, [*common, "--output", str(out), "--corrections", str(told)])
    assert wrong.exit_code == 2
