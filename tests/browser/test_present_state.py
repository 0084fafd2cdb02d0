"""Pages show the present state: lost servers, counts that agree, charts without invented values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import Visitor, chromium, serving
from fakes import RecordedEvents
from platforms import World
from readouts import retrained
from versions import History

from scorer.events import EventLog
from scorer.release.changes.rows import verdict
from scorer.release.gates.counting import POOL
from scorer.release.gates.defaults import default_gates
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import Counter, ShadowEvidence
from scorer.release.model import ChangeState
from scorer.release.requests import NewFreeze
from scorer.release.store import utcnow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as result:
        yield result


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("history"), built_bundles)
    yield history
    history.close()


@pytest.fixture(scope="module")
def reports(history: History) -> Iterator[str]:
    with serving(history.world.app()) as address:
        yield address


@pytest.fixture
def events() -> RecordedEvents:
    return RecordedEvents()


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path], events: RecordedEvents) -> Iterator[World]:
    world = World(tmp_path, built_bundles, events=EventLog(events))
    world.tick()
    yield world
    world.close()


@pytest.fixture
def pages(world: World) -> Iterator[str]:
    with serving(world.app()) as address:
        yield address


def signed_in(browser: Any, address: str, world: World, user: str) -> Visitor:
    visitor = Visitor(browser, address)
    visitor.sign_in(world.tokens[user])
    return visitor


def report(browser: Any, address: str, history: History, evidence: ShadowEvidence) -> Visitor:
    """Open the report of a change with this evidence and the results of the default gates."""
    change = history.world.draft(bundle=history.first, title="Reported").id
    judged = verdict(evaluate(default_gates("score"), evidence))
    history.report(change, history.first, evidence, verdict=judged)
    visitor = signed_in(browser, address, history.world, "viewer")
    visitor.open(f"/changes/{change}/readout")
    return visitor


def numbers(text: str) -> list[int]:
    return [int(one.replace(",", "")) for one in re.findall(r"\d[\d,]*", text)]


# --- reports ---


def test_a_model_that_finds_no_fraud_is_not_eligible(browser: Any, reports: str, history: History) -> None:
    """The model flags as many payments as the live bundle, but other ones, which the rates do not show."""
    sound = retrained(20_000)
    order = np.random.default_rng(1).permutation(len(sound.shadow))
    random = replace(sound.shadow, label=sound.shadow.label[order], score=sound.shadow.score[order])
    visitor = report(browser, reports, history, replace(sound, shadow=random))
    box = visitor.page.locator(".verdict").inner_text()
    assert "Failed: not eligible for release" in box
    assert "Release this digest" not in box
    assert visitor.page.locator(".verdict li", has_text="flagged").count() >= 1
    assert visitor.page.locator("#gate-flagged_agreement").count() == 1
    visitor.check()
    visitor.close()


@pytest.mark.parametrize("pool", [False, True], ids=["live", "pool"])
def test_counts_of_a_report_agree(browser: Any, reports: str, history: History, pool: bool) -> None:
    evidence = retrained(3_000)
    rows = len(evidence.shadow)
    if pool:
        # Live servers take the requests and the pool evaluates them. Each request is counted once.
        at = int(evidence.shadow.at.max())
        zero = dict.fromkeys(("left_out", "shed", "failed", "unlogged"), 0)
        names = {**evidence.shadow.names, "server": ["", "pool-1"]}
        evidence = replace(
            evidence,
            shadow=replace(evidence.shadow, names=names, server=np.ones_like(evidence.shadow.server)),
            counters=[
                Counter(
                    at=at, server="live-1", lane="cr-1", seen=9 * rows, taken=rows + 50, dropped=20,
                    evaluated=0, **zero,
                ),
                Counter(
                    at=at, server="pool-1", lane="cr-1", seen=0, taken=0, dropped=0, evaluated=rows, **zero
                ),
            ],
        )  # fmt: skip
        assert POOL
    visitor = report(browser, reports, history, evidence)
    page = visitor.page
    (observations, *_) = numbers(page.locator(".verdict p.small").inner_text())
    words = page.locator("#figure-drops").inner_text()
    text = re.search(
        r"([\d,]+) requests, ([\d,]+) eligible, ([\d,]+) taken; of these ([\d,]+) were observed, "
        r"([\d,]+) dropped, ([\d,]+) shed and ([\d,]+) failed",
        words,
    )
    assert text, words
    requests, eligible, taken, observed, dropped, shed, failed = (numbers(one)[0] for one in text.groups())
    assert observed == observations == rows
    assert requests >= eligible >= taken == observed + dropped + shed + failed
    if pool:
        assert (requests, taken, failed) == (9 * rows, rows + 50, 30)
    flipped, compared = numbers(page.locator("#figure-flips").inner_text().partition("(")[0])[-2:]
    assert compared <= observations
    listed, all_of_them = numbers(page.locator("#changed .help").inner_text())[:2]
    assert all_of_them == flipped
    assert page.locator("#changed tbody tr").count() == listed
    visitor.close()


PLOT = "name => { const plot = document.getElementById(`plot-${name}`); "


def test_a_histogram_shows_no_scores_where_there_are_none(
    browser: Any, reports: str, history: History
) -> None:
    evidence = retrained(20_000)
    # No score is between 0.3 and 0.6.
    kept = (evidence.shadow.score < 0.3) | (evidence.shadow.score > 0.6)
    visitor = report(browser, reports, history, replace(evidence, shadow=evidence.shadow.take(kept)))
    traces = visitor.page.evaluate(
        PLOT + "return plot._fullData.map((one) => ({ name: one.name, fill: one.fill ?? 'none', "
        "x: [...one.x], y: [...one.y] })); }",
        "scores",
    )
    own = next(one for one in traces if one["name"] == "this bundle")
    assert {one["fill"] for one in traces} == {"none"}
    inside = [y for x, y in zip(own["x"], own["y"], strict=True) if x is not None and 0.35 < x < 0.55]
    assert not any(inside)
    table = visitor.page.locator("#figure-scores details table")
    assert table.locator("tbody tr").count() > 10
    visitor.close()


def test_both_axes_of_the_decisions_have_the_order_of_the_bands(
    browser: Any, reports: str, history: History
) -> None:
    evidence = retrained(3_000)
    visitor = report(browser, reports, history, evidence)
    x, y = visitor.page.evaluate(
        PLOT + "return [plot._fullData[0].x, plot._fullData[0].y].map((one) => [...one]); }", "flips"
    )
    assert x == y == ["approve", "review", "decline"]
    visitor.close()


def test_the_latency_axis_fits_its_values(browser: Any, reports: str, history: History) -> None:
    """With latencies of some hundred microseconds and an SLA of 100 ms, no line is on the axis."""
    visitor = report(browser, reports, history, replace(retrained(20_000), sla_us=100_000.0))
    axis, height, lines = visitor.page.evaluate(
        PLOT
        + """
          const traces = plot._fullData.filter((one) => one.visible === true && one.y.some((y) => y));
          const drawn = [...plot.querySelectorAll(".scatterlayer .trace .js-line")];
          return [plot._fullLayout.yaxis.type, plot._fullLayout.yaxis._length, drawn.map((line) => {
            const box = line.getBBox();
            return [box.y, box.y + box.height];
          })];
        }""",
        "execution",
    )
    assert axis == "log"
    tops = [top for top, _ in lines]
    assert max(tops) - min(tops) > height / 5, "the quantiles are distinguishable"
    assert all(bottom < height - 5 for _, bottom in lines), "no line is on the axis"
    shown = visitor.page.evaluate(
        PLOT + "return plot._fullData.map((one) => [one.name, one.visible]); }", "execution"
    )
    visible = dict(shown)
    for quantile in ("p50", "p99", "p99.9"):
        assert visible[f"live {quantile}"] == visible[f"this bundle {quantile}"], quantile
    visitor.close()


# --- servers ---


def test_a_lost_server_is_named_in_the_change_without_a_reload(
    browser: Any, pages: str, world: World
) -> None:
    change = world.observed().id
    visitor = signed_in(browser, pages, world, "modeler")
    visitor.open(f"/changes/{change}")
    log = visitor.page.locator("#live-events")
    world.fleet.disconnect("live-2")
    world.tick(2)
    log.get_by_text("lost live-2").wait_for()
    world.fleet.reconnect("live-2")
    world.tick(2)
    log.get_by_text("live-2 is back").wait_for()
    visitor.check()
    visitor.close()


def test_an_unreachable_pool_is_reported_where_it_is_used_and_delays_no_other_change(
    browser: Any, pages: str, world: World
) -> None:
    change = world.observed(pool=True).id
    visitor = signed_in(browser, pages, world, "modeler")
    visitor.open(f"/changes/{change}")
    world.fleet.disconnect("pool-1")
    world.tick(2)
    visitor.page.locator("#live-events").get_by_text("lost pool-1").wait_for()
    beside = world.observed(pool=False, title="In the live servers").id
    visitor.open(f"/changes/{beside}")
    assert "Observing" in visitor.page.locator("#live-head").inner_text()
    assert "pool-1" not in visitor.page.locator("main").inner_text()
    waits = world.draft(pool=True, title="In the pool").id
    visitor.open(f"/changes/{waits}")
    visitor.press("Submit")
    visitor.page.get_by_text("the shadow pool does not answer now (pool-1)").first.wait_for()
    visitor.check()
    visitor.close()


def test_the_overview_counts_only_servers_that_respond(browser: Any, pages: str, world: World) -> None:
    visitor = signed_in(browser, pages, world, "viewer")
    visitor.open("/")
    tile = visitor.page.locator(".tile").first
    every = tile.get_by_text("servers in sync").inner_text()
    assert every.startswith("3 of 3")
    assert "No decisions yet." in tile.inner_text()
    world.fleet.disconnect("pool-1")
    world.tick(2)
    visitor.open("/")
    text = visitor.page.locator(".tile").first.inner_text()
    assert "2 of 3 servers in sync" in text
    assert "pool-1 not reachable" in text
    visitor.check()
    visitor.close()


def test_actions_on_pages_are_in_the_log_of_the_platform(
    browser: Any, pages: str, world: World, events: RecordedEvents
) -> None:
    visitor = signed_in(browser, pages, world, "modeler")
    visitor.open("/models")
    archive = {"name": "notes.tar", "mimeType": "text/plain", "buffer": b"no archive" * 100}
    visitor.page.locator("#u-archive").set_input_files(archive)
    visitor.press("Upload and verify")
    visitor.page.get_by_role("alert").get_by_text("a text file").wait_for()
    (line,) = events.named("upload_rejected")
    assert line["user"] == "modeler"
    change = world.draft().id
    visitor.open(f"/changes/{change}")
    visitor.press("Submit")
    visitor.page.wait_for_url("**said=submit")
    assert [one["change"] for one in events.named("change_moved")] == [change]
    visitor.close()


# --- forms ---


def test_a_reload_of_a_rejected_form_creates_no_draft(browser: Any, pages: str, world: World) -> None:
    start = utcnow().replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
    world.service.changes.submit(
        world.actor("modeler"), world.draft(title="First", minutes=60.0).id, start=start, slot=1
    )
    visitor = signed_in(browser, pages, world, "modeler")
    page = visitor.page
    visitor.open("/changes/new?checkpoint=fraud.checkout")
    page.get_by_label("Title").fill("Second")
    page.locator("#f-bundle").fill(world.candidate)
    page.locator("#f-start").fill(f"{start:%Y-%m-%dT%H:%M}")
    page.locator("#f-slot").fill("1")
    visitor.press("Submit")
    page.get_by_role("alert").get_by_text("next free: slot 2").wait_for()
    page.reload()
    page.get_by_role("alert").get_by_text("next free: slot 2").wait_for()
    assert page.locator("#f-title").input_value() == "Second"
    actor = world.actor("modeler")
    assert [one.title for one in world.service.changes.list(actor)] == ["First"]
    page.get_by_role("button", name="Take slot 2").click()
    page.wait_for_url("**/changes/cr-*said=submit")
    assert not world.service.changes.list(actor, state=ChangeState.DRAFT)
    visitor.open("/")
    assert "Nothing needs your action" in page.locator("main").inner_text()
    visitor.close()


def test_the_back_button_after_a_rollback_shows_the_current_state(
    browser: Any, pages: str, world: World
) -> None:
    change = world.awaiting_approval().id
    world.service.changes.approve(world.actor("approver"), change)
    world.until(change, ChangeState.RELEASED)
    visitor = signed_in(browser, pages, world, "modeler")
    page = visitor.page
    visitor.open(f"/changes/{change}")
    page.locator("#do-rollback summary").click()
    page.locator("#r-rollback").fill("complaints")
    page.get_by_label("Yes, restore the previous lanes now").check()
    page.locator("#do-rollback button").click()
    page.wait_for_url("**said=rollback")
    page.go_back()
    page.locator("#live-head", has_text="Rolled back").wait_for()
    assert page.locator("#do-rollback").count() == 0
    visitor.close()


def test_pages_offer_only_permitted_actions(browser: Any, pages: str, world: World) -> None:
    draft, passed = world.draft().id, world.awaiting_approval().id
    viewer, modeler = (signed_in(browser, pages, world, user) for user in ("viewer", "modeler"))
    for path in ("/", "/changes", f"/changes/{passed}"):
        viewer.open(path)
        for name in ("New change request", "Release this digest", "Submit", "Approve and release"):
            assert viewer.page.get_by_role("link", name=name).count() == 0, (path, name)
            assert viewer.page.get_by_role("button", name=name).count() == 0, (path, name)
    viewer.open("/changes/new")
    assert viewer.page.locator("form.split").count() == 0
    modeler.open(f"/changes/{draft}")
    assert modeler.page.get_by_role("link", name="Report").count() == 0
    viewer.close()
    modeler.close()


def test_a_freeze_is_removed_after_a_confirmation(browser: Any, pages: str, world: World) -> None:
    freeze = NewFreeze(
        name="Sales", kind="deny", cron="0 18 * * 5", timezone="UTC", minutes=60, checkpoints=["*"]
    )
    world.service.calendar.add_freeze(world.actor("admin"), freeze)
    visitor = signed_in(browser, pages, world, "admin")
    visitor.open("/calendar")
    row = visitor.page.locator("tr", has_text="Sales")
    row.locator("summary", has_text="Remove").click()
    assert len(world.service.calendar.freezes(world.actor("admin"))) == 1
    row.locator("details[open] button.danger").click()
    visitor.page.wait_for_url("**said=freeze-removed")
    assert not world.service.calendar.freezes(world.actor("admin"))
    visitor.check()
    visitor.close()


def test_a_form_of_an_earlier_session_is_sent_again_with_one_button(
    browser: Any, pages: str, world: World
) -> None:
    visitor = signed_in(browser, pages, world, "modeler")
    page = visitor.page
    visitor.open("/changes/new?checkpoint=fraud.checkout")
    page.get_by_label("Title").fill("Written for an hour")
    page.locator("#f-bundle").fill(world.candidate)
    other = page.context.new_page()
    other.goto(f"{pages}/projects")
    other.get_by_role("button", name="Sign out").click()
    other.wait_for_url("**/login**")
    other.get_by_label("Token").fill(world.tokens["modeler"])
    other.get_by_role("button", name="Sign in").click()
    other.wait_for_url(f"{pages}/")
    visitor.press("Save as a draft")
    page.get_by_text("not of this session").wait_for()
    visitor.press("Send the form again as modeler")
    page.wait_for_url("**said=drafted")
    assert page.locator("h1").inner_text() == "Written for an hour"
    visitor.close()
