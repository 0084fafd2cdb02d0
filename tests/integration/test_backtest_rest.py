"""A backtest over REST and pages: real log, child process and platform; the fleet is without servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from browser import Visitor, chromium
from bundles import tiny_action_bundle
from known_payments import DATA, FRAUD, build, known_log
from platforms import SETTINGS, World

from scorer.bundle import revise
from scorer.bundle.rules import BundleRules

OLD = timedelta(weeks=4, days=46)
"""Age of the first decision. The outcomes of the whole log are final."""
MOST_SECONDS = 120
RULES = """
name = "checkout"
decisions = ["decline", "review", "approve"]

[[rules]]
id = "large"
when = "amount > 150.0"
decision = "review"

[[rules]]
id = "future"
when = "amount > 100.0"
decision = "decline"
from = 2100-01-01
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    at = tmp_path_factory.mktemp("backtest")
    tiny_action_bundle(at / "action")
    bundles = {
        "score-1": build(at / "live"),
        "score-2": build(at / "second", seed=2),
        "permuted": build(at / "permuted", labels=np.random.default_rng(9).permutation),
        "action-1": at / "action",
    }
    revise(bundles["score-1"], at / "ruled", rules=BundleRules(RULES))
    bundles["ruled"] = at / "ruled"
    begin = datetime.now(UTC) - OLD
    log = known_log(at / "log", bundles["score-1"], int(begin.timestamp() * 1e6))
    settings = SETTINGS.replace('control = "127.0.0.1:1"\n', f'control = "127.0.0.1:1"\nlog = "{log}"\n')
    world = World(at, bundles, settings=settings)
    yield world
    world.close()


def backtested(world: World, api: Any, bundle: str) -> dict[str, Any]:
    """Submit a TEST and return it when its backtest has ended."""
    draft = {
        "project": "fraud",
        "kind": "test",
        "checkpoint": "fraud.checkout",
        "bundle": bundle,
        "title": "A new model",
        "minutes": 5,
    }
    name = api.post("/changes", json=draft).json()["id"]
    assert api.post(f"/changes/{name}/submit", json={}).status_code == 200
    end = time.monotonic() + MOST_SECONDS
    while time.monotonic() < end:
        world.tick()
        detail = api.get(f"/changes/{name}").json()
        step = next(step for step in detail["steps"] if step["name"] == "backtest")
        if step["status"] in ("done", "failed", "passed"):
            return dict(detail)
        assert detail["change"]["state"] not in ("expired", "withdrawn"), detail
        time.sleep(0.05)
    raise AssertionError(f"the backtest does not end: {detail['steps']}")


def test_a_model_of_permuted_labels_is_never_deployed_to_a_server(world: World) -> None:
    with world.served() as url, world.api(url, "modeler") as api:
        detail = backtested(world, api, world.upload("permuted"))
    change, backtest = detail["change"], detail["backtest"]
    assert (change["state"], backtest["outcome"]) == ("rejected", "fail")
    recall = backtest["metrics"]["recall_review"]
    # The live bundle flags most frauds of this data. A random ranking flags only a proportional share.
    assert recall["live"] > 0.2 > 0.1 > recall["candidate"]
    assert recall["high"] < 0
    # Each example is a fraud in the log that the live bundle flags.
    numbers = [int(one["decision_id"].removeprefix("payment-")) for one in backtest["missed"]]
    assert numbers and all(FRAUD[number] for number in numbers)
    assert [one["amount"] for one in backtest["missed"]] == pytest.approx([DATA[n, 0] for n in numbers])
    assert backtest["missed"][0]["decision_id"] in change["note"]
    for member in ("live-1", "live-2", "pool-1"):
        tables = world.fleet.held(member).tables
        assert not any(
            lane.name == change["id"] for t in tables for one in t.values() for lane in one.observe
        )


def test_an_equally_good_bundle_proceeds_to_its_shadow_slot(world: World) -> None:
    with world.served() as url, world.api(url, "modeler") as api:
        detail = backtested(world, api, world.candidate)
        assert detail["change"]["state"] not in ("rejected", "expired"), detail["change"]["note"]
        assert detail["backtest"]["outcome"] in ("pass", "inconclusive")
        world.tick(3)
        change = api.get(f"/changes/{detail['change']['id']}").json()["change"]
    assert change["state"] == "observing"
    lanes = [lane.name for lane in world.fleet.held("live-1").checkpoints["fraud.checkout"].observe]
    assert change["id"] in lanes


def test_the_panel_shows_the_metrics_and_links_to_the_missed_decisions(world: World) -> None:
    with chromium() as browser, world.served() as url:
        with world.api(url, "modeler") as api:
            detail = backtested(world, api, world.upload("permuted"))
        visitor = Visitor(browser, url)
        visitor.sign_in(world.tokens["viewer"])
        visitor.open(f"/changes/{detail['change']['id']}")
        panel = visitor.page.locator("#live-backtest")
        assert "fail" in panel.locator("h2").inner_text()
        row = panel.get_by_role("row").filter(has_text="Recall at live's review rate").first
        metric = detail["backtest"]["metrics"]["recall_review"]
        shown = row.inner_text()
        assert f"{metric['live']:.4g}" in shown and f"{metric['candidate']:.4g}" in shown, shown
        panel.get_by_text("Positive outcomes that live flags and this bundle would miss").click()
        missed = detail["backtest"]["missed"][0]["decision_id"]
        panel.get_by_role("link", name=missed, exact=True).click()
        visitor.page.wait_for_url(f"**/decisions/{missed}*")
        assert missed in visitor.page.locator("main").inner_text()
        visitor.check()


def test_a_revision_with_other_rules_shows_the_decisions_that_change_by_rule(world: World) -> None:
    with chromium() as browser, world.served() as url:
        with world.api(url, "modeler") as api:
            detail = backtested(world, api, world.upload("ruled"))
        backtest = detail["backtest"]
        rules = backtest["rules"]
        # The forests are those of the live bundle, so that the rules make every change.
        assert backtest["metrics"]["auc"]["difference"] == 0.0
        assert rules["changed"] == rules["changed_by"]["large"] > 0 and rules["never"] == ["future"]
        assert {change["after"] for change in rules["changes"] if change["changed"]} == {"review"}
        share = backtest["metrics"]["decisions_changed"]["candidate"]
        assert share == pytest.approx(rules["changed"] / rules["decisions"])
        gates = {gate["metric"]: gate for gate in backtest["gates"]}
        assert gates["backtest_approvals_lost"]["dry_run"] and gates["backtest_approvals_lost"]["value"] > 0
        visitor = Visitor(browser, url)
        visitor.sign_in(world.tokens["viewer"])
        visitor.open(f"/changes/{detail['change']['id']}")
        panel = visitor.page.locator("#live-backtest")
        row = panel.get_by_role("row").filter(has_text="large").first
        assert f"{rules['changed']:,}" in row.inner_text()
        change = panel.get_by_role("row").filter(has_text="approve").first.inner_text()
        assert "review" in change and "payment-" in change
        visitor.check()
