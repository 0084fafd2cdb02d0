"""Selection of features by cost and gain: planted useless, duplicated and expensive features, bundles."""

from __future__ import annotations

import json

import fraud_tables as small
import numpy as np
import pytest
from fraud_tables import SMALL, TASK
from typer.testing import CliRunner

from scorer.bundle import Feature, read_manifest
from scorer.commands.learn.fraud import app
from scorer.learn.errors import DataError
from scorer.learn.fraud import selection as module
from scorer.learn.fraud.selection import SelectionStep, chosen_step, read_selection, select_features
from scorer.learn.fraud.selection_page import selection_page
from scorer.learn.fraud.settings import FraudSettings, SelectSettings
from scorer.learn.fraud.task import ScoreTask, write_score_task

PLANTED = ScoreTask(
    TASK.name,
    (*TASK.features, Feature(name="velocity_again"), Feature(name="exact"), Feature(name="exact_too")),
)
"""`velocity_again` is `velocity` from a more expensive source; `exact` and `exact_too` cost a lot."""
COSTS = {"amount": 1.0, "velocity": 2.0, "country": 2.0, "velocity_again": 30.0, "source": 800.0}
SELECT = {
    "groups": {"source": ["exact", "exact_too"]},
    "costs": COSTS,
    "default_cost": 1.0,
    "price": 0.0005,
    "folds": 2,
    "rows": 2_000,
    "workers": 1,
}


def plan(**update) -> FraudSettings:
    """Return settings with another selection than `SELECT`. Without sampling, a duplicate changes nothing."""
    return FraudSettings.model_validate(
        SMALL.model_dump()
        | {"trees": 12, "subsample": 1.0, "colsample": 1.0}
        | {"select": SELECT | update, "increasing": ["velocity", "velocity_again"]}
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    columns = small.columns()
    random = np.random.default_rng(9)
    columns["velocity_again"] = columns["velocity"]
    for name in ("exact", "exact_too"):
        columns[name] = (columns["label"] + random.normal(scale=0.8, size=6_000)).astype(np.float32)
    return small.write(tmp_path_factory.mktemp("data") / "data.parquet", columns)


@pytest.fixture(scope="module")
def backward(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("selection") / "selection.json"
    return path, select_features(data, PLANTED, plan(), path)


class TestSearch:
    def test_useless_duplicated_and_expensive_features_are_left_out(self, backward):
        found = backward[1]
        assert set(found.best.groups) <= {"amount", "velocity", "country"}
        assert {"velocity", "country"} <= set(found.best.groups)
        assert found.best.cost <= 5.0
        assert found.whole.cost == 1 + 2 + 2 + 1 + 30 + 800
        # Of two equal features, the more expensive one goes, and nothing is lost.
        removed = [one.changed for one in found.steps[1:]]
        assert removed.index("velocity_again") < removed.index("velocity")
        assert removed[0] == "source"
        assert len(found.steps) == len(found.groups) + 1
        assert found.steps[-1].groups == ()

    def test_a_feature_that_is_worth_its_price_is_used(self, data, tmp_path):
        cheap = COSTS | {"source": 3.0}
        found = select_features(data, PLANTED, plan(costs=cheap), tmp_path / "cheap.json")
        assert "source" in found.best.groups
        assert {"exact", "exact_too"} <= set(found.notes()["features"])
        assert found.best.average_precision > found.steps[found.chosen + 1].average_precision

    def test_forward_selection_leaves_them_out_too_and_keeps_what_it_must(self, data, tmp_path):
        forward = select_features(
            data, PLANTED, plan(direction="forward", keep=["noise"]), tmp_path / "forward.json"
        )
        assert forward.steps[0].groups == ("noise",)
        assert all("noise" in one.groups for one in forward.steps)
        assert forward.steps[-1].groups == tuple(forward.groups)
        assert (
            {"velocity", "country"} <= set(forward.best.groups) <= {"noise", "amount", "velocity", "country"}
        )

    def test_the_worth_is_the_precision_minus_the_price_of_the_cost(self, backward):
        for one in backward[1].steps:
            assert one.cost == sum(backward[1].costs[name] for name in one.groups)
            assert one.average_precision == pytest.approx(np.mean(one.folds))
            assert one.worth == pytest.approx(one.average_precision - 0.0005 * one.cost)
        assert backward[1].difference.low <= backward[1].difference.value <= backward[1].difference.high
        best, whole = backward[1].best, backward[1].whole
        assert backward[1].difference.value == pytest.approx(best.average_precision - whole.average_precision)

    @pytest.mark.parametrize(("errors", "expected"), [(0.0, 1), (1.0, 2), (50.0, 3)])
    def test_the_cheapest_of_the_sets_that_differ_by_chance_is_chosen(self, errors, expected):
        steps = [
            SelectionStep(
                changed="",
                groups=("a",) * count,
                average_precision=value,
                folds=(value,),
                cost=cost,
                worth=value,
                error=0.01,
            )
            for count, cost, value in (
                (4, 9.0, 0.70),
                (3, 5.0, 0.72),
                (2, 3.0, 0.71),
                (1, 1.0, 0.4),
                (0, 0.0, 0.7),
            )
        ]
        assert chosen_step(steps, errors) == expected


class TestFile:
    def test_a_killed_run_continues_with_the_sets_that_it_has(self, data, backward, tmp_path, monkeypatch):
        class KilledError(Exception):
            pass

        def kill(step):
            if step.changed:
                raise KilledError

        path = tmp_path / "killed.json"
        with pytest.raises(KilledError):
            select_features(data, PLANTED, plan(), path, advance=kill)
        with pytest.raises(DataError, match="is not finished"):
            _ = read_selection(path).best
        known = len(read_selection(path).evaluated)
        assert known == 1 + len(backward[1].groups)
        submitted = []
        original = module.fold_value
        monkeypatch.setattr(
            module, "fold_pool", _counting(module.fold_pool, original, submitted), raising=True
        )
        again = select_features(data, PLANTED, plan(), path)
        assert again == backward[1] == read_selection(path)
        assert len(submitted) == 2 * (len(backward[1].evaluated) - known)

    def test_a_file_of_other_data_or_settings_is_rejected(self, data, backward, tmp_path):
        path = tmp_path / "copy.json"
        path.write_bytes(backward[0].read_bytes())
        other = FraudSettings.model_validate(plan().model_dump() | {"depth": 2})
        with pytest.raises(DataError, match="of other data, windows or settings"):
            select_features(data, PLANTED, other, path)
        path.write_text("{}")
        with pytest.raises(DataError, match="not a result of this version"):
            read_selection(path)
        with pytest.raises(DataError, match="no such file"):
            read_selection(tmp_path / "none.json")

    @pytest.mark.parametrize(
        ("update", "message"),
        [
            ({"groups": {"one": ["none"]}}, '"none" is no feature'),
            ({"costs": {"nothing": 1.0}}, r'select\.costs: "nothing" is no group'),
            ({"keep": ["nothing"]}, r'select\.keep: "nothing" is no group'),
            ({"groups": {"amount": ["velocity"]}, "costs": {}}, "rename the group"),
        ],
    )
    def test_groups_and_costs_must_exist(self, data, tmp_path, update, message):
        with pytest.raises(DataError, match=message):
            select_features(data, PLANTED, plan(**update), tmp_path / "selection.json")

    def test_a_feature_is_in_one_group_only(self):
        with pytest.raises(ValueError, match='"exact" is in "one" and in "two"'):
            SelectSettings(groups={"one": ("exact",), "two": ("exact",)})


def _counting(pool, value, submitted):
    """Return `fold_pool` whose `submit` records the evaluations."""
    from contextlib import contextmanager

    @contextmanager
    def counted(*given):
        with pool(*given) as one:
            submit = one.submit

            def record(function, *arguments):
                if function is value:
                    submitted.append(arguments)
                return submit(function, *arguments)

            one.submit = record
            yield one

    return counted


def test_the_page_shows_cost_gain_and_the_chosen_set(backward):
    page = selection_page(backward[1], data="data.parquet")
    assert f"{len(backward[1].best.groups)} of 7 features are worth their cost" in page
    assert "cost in µs per decision" in page
    assert page.count("<svg") == 1
    assert "velocity_again" in page


def test_train_uses_the_selection_and_the_lineage_rebuilds_it(data, backward, tmp_path):
    write_score_task(PLANTED, tmp_path / "fraud-test")
    config = tmp_path / "learn.toml"
    config.write_text(
        "[fraud]\ntrees = 30\ndepth = 3\nlearning_rate = 0.2\nthreads = 1\ndelay_days = 3\n"
        "increasing = ['velocity', 'velocity_again']\n[fraud.columns]\nentity = 'customer'\n"
        "[fraud.select]\nfolds = 1\nrows = 1000\nworkers = 1\nprice = 0.001\n"
        "[fraud.select.groups]\nsource = ['exact', 'exact_too']\n[fraud.select.costs]\nsource = 500.0\n"
    )
    same = [str(data), "--task", str(tmp_path / "fraud-test"), "-c", str(config)]
    run, result = CliRunner().invoke, tmp_path / "selection.json"
    done = run(app, ["select", *same, "-o", str(result), "--json"])
    assert done.exit_code == 0, done.output
    notes = json.loads(done.stdout)
    assert {"exact", "exact_too"} <= set(notes["left_out"])
    assert result.with_suffix(".html").read_text().startswith("<!doctype html>")
    bundle = tmp_path / "bundle"
    done = run(app, ["train", *same, "--selection", str(result), "-o", str(bundle)])
    assert done.exit_code == 0, done.output
    names = [one["name"] for one in json.loads((bundle / "schema.json").read_bytes())["features"]]
    assert names == notes["features"]
    recorded = read_manifest(bundle).lineage.metrics["fraud"]["selection"]
    assert recorded["left_out"] == notes["left_out"]
    assert recorded["cost_of_all"] == 500.0
    done = run(app, ["rebuild", str(bundle), "--data", str(data)])
    assert done.exit_code == 0, done.output
    write_score_task(TASK, tmp_path / "other")
    same[2] = str(tmp_path / "other")
    done = run(app, ["train", *same, "--selection", str(result), "-o", str(tmp_path / "third")])
    assert "the selection was made for features with the digest" in str(done.exception)
