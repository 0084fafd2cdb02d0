"""Every page in a real browser: wide and on a phone, nothing broken, nothing asked of anybody else."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, WIDE, Visitor, chromium, serving
from demo_platform import NEXT, demo_platform

from scorer.web.app import create_app

PAGES = [
    "/",
    "/checkpoints",
    "/checkpoints/fraud.checkout",
    "/checkpoints/fraud.checkout/metrics",
    "/checkpoints/fraud.checkout/metrics?window=7d&lane=canary",
    "/checkpoints/action.authorise/metrics",
    "/calendar",
    "/calendar?days=1",
    "/calendar?find=1&checkpoint=fraud.checkout&minutes=90",
    "/changes",
    "/changes?state=booked&project=fraud",
    "/changes/new",
    "/changes/cr-000014",
    "/changes/cr-000017",
    "/changes/cr-000017/edit",
    "/changes/cr-000018",
    "/changes/cr-000019",
    "/changes/cr-000020",
    "/changes/cr-000021",
    "/changes/cr-000012/readout",
    "/changes/cr-000017/readout",
    "/models",
    f"/models/{NEXT.removeprefix('sha256:')}",
    "/decisions",
    "/decisions?checkpoint=action.authorise",
    "/decisions/pay-90000",
    "/reviews",
    "/reviews?overdue=true",
    "/reviews?state=decided",
    "/reviews/1",
    "/reviews/2",
    "/reviews/3",
    "/learning",
    "/notifications",
    "/agents",
    "/agents?project=fraud",
    "/audit",
    "/projects",
    "/projects/fraud",
    "/tokens",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, dict[str, str]]]:
    platform, tokens = demo_platform(tmp_path_factory.mktemp("platform"))
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        yield browser, address, tokens
    platform.close()


READS = [
    "/",
    "/checkpoints/fraud.checkout",
    "/calendar",
    "/changes/new",
    "/changes/cr-000020",
    "/reviews",
    "/reviews/1",
    "/projects/fraud",
]


@pytest.mark.parametrize(
    ("user", "size", "pages"),
    [("ada", WIDE, PAGES), ("ada", PHONE, PAGES), ("vera", WIDE, READS)],
    ids=["admin-wide", "admin-phone", "viewer-wide"],
)
def test_every_page_is_complete_and_accessible(
    site: Any, user: str, size: tuple[int, int], pages: list[str]
) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, size=size)
    visitor.sign_in(tokens[user])
    for path in pages:
        assert visitor.open(path) == 200, path
        assert visitor.basics() == [], path
    visitor.check()
    visitor.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_reports_no_violation_on_any_page(site: Any, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs the package axe-playwright-python")
    browser, address, tokens = site
    visitor = Visitor(browser, address, dark=dark)
    visitor.open("/login")
    assert visitor.violations() == []
    visitor.sign_in(tokens["ada"])
    for path in [*PAGES, "/nothing/here", "/api/v1/docs"]:
        visitor.open(path)
        assert visitor.violations() == [], path
    visitor.close()


def test_the_description_of_the_api_fits_a_phone(site: Any) -> None:
    browser, address, _ = site
    visitor = Visitor(browser, address, size=PHONE)
    visitor.open("/api/v1/docs")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    visitor.check()
    visitor.close()


def test_a_page_shows_when_the_platform_is_unreachable_and_reachable_again(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    visitor.open("/changes/cr-000018")
    away = visitor.page.locator("#away")
    assert away.is_hidden()
    visitor.page.route("**/changes/cr-000018", lambda route: route.abort())
    away.get_by_text("has not answered since").wait_for()
    visitor.page.unroute("**/changes/cr-000018")
    away.get_by_text("responds again").wait_for()
    visitor.close()


def test_a_release_is_paused_and_resumed(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["ada"])
    visitor.open("/changes/cr-000019")
    rollout = visitor.page.locator("#live-rollout")
    rollout.get_by_text("2 of 3, 25\N{NARROW NO-BREAK SPACE}% of the answers").wait_for()
    rollout.get_by_text("1,204 of 2,000 rows").wait_for()
    rollout.locator("#do-pause summary").click()
    rollout.locator("#do-pause").get_by_label("Reason").fill("the bank calls")
    rollout.locator("#do-pause button").click()
    visitor.page.get_by_text("Paused: the release keeps its current shares.").wait_for()
    rollout.get_by_text("Paused by ada").wait_for()
    assert rollout.locator("#do-pause").count() == 0
    rollout.locator("#do-resume summary").click()
    rollout.locator("#do-resume").get_by_label("Reason").fill("all is well")
    rollout.locator("#do-resume button").click()
    visitor.page.get_by_text("Resumed: the stage ends").wait_for()
    visitor.check()
    visitor.close()


def test_an_approver_sees_the_summary_and_comments(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["ada"])
    visitor.open("/changes/cr-000020")
    summary = visitor.page.locator("#live-review")
    summary.get_by_text("to review").wait_for()
    link = summary.locator("ul a").first
    assert visitor.page.locator(str(link.get_attribute("href"))).count() == 1
    chart = visitor.page.locator("table.gates a").first
    assert str(chart.get_attribute("href")).startswith("/changes/cr-000020/readout#figure-")
    visitor.open("/changes/cr-000014")
    talk = visitor.page.locator("#live-conversation")
    talk.get_by_label("Comment").fill("<script>alert(1)</script>\nplain")
    talk.get_by_role("button", name="Comment").click()
    visitor.page.get_by_text("sent to the project's channels", exact=False).first.wait_for()
    assert "<script>alert(1)</script>" in talk.locator("li").last.inner_text()
    visitor.check()
    visitor.close()


def test_decisions_are_filtered_and_paged(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    visitor.open("/decisions")
    visitor.page.get_by_label("Decision", exact=True).fill("decline")
    visitor.page.get_by_role("button", name="Show").click()
    rows = visitor.page.locator("table.data tbody tr")
    assert set(rows.locator("td:nth-child(4)").all_inner_texts()) == {"decline"}
    visitor.open("/decisions")
    first = rows.first.inner_text()
    visitor.page.get_by_role("link", name="Older").click()
    visitor.page.get_by_role("link", name="Newest").wait_for()
    assert rows.first.inner_text() != first
    visitor.open("/decisions?low=many")
    visitor.page.get_by_role("alert").get_by_text("low").wait_for()
    assert visitor.page.get_by_label("Score from").count() == 1
    visitor.close()


def test_changes_are_found_by_text(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["vera"])
    visitor.open("/changes")
    assert visitor.page.get_by_role("link", name="New change request").count() == 0
    visitor.page.get_by_label("Text").fill("deeper")
    visitor.page.get_by_role("button", name="Show").click()
    assert visitor.page.locator("tbody tr").count() == 1
    visitor.page.get_by_text("Deeper trees, 900 of depth 8").wait_for()
    visitor.close()


@pytest.mark.parametrize(
    "path", ["/", "/changes", "/models", "/decisions", "/audit", "/notifications", "/projects"]
)
def test_no_column_is_truncated_on_a_phone(site: Any, path: str) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, size=PHONE)
    visitor.sign_in(tokens["ada"])
    visitor.open(path)
    ends = visitor.page.eval_on_selector_all(
        "main table td", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert ends and max(ends) <= PHONE[0]
    visitor.close()


def test_the_local_time_is_shown_with_utc(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, zone="Asia/Kolkata")
    visitor.sign_in(tokens["mia"])
    visitor.open("/changes/cr-000018")
    shown = visitor.page.locator("time").first
    utc, _, local = str(shown.get_attribute("title")).partition(", ")
    assert utc.endswith("UTC")
    assert local.endswith("local time")
    wanted = visitor.page.evaluate("at => new Date(at).toLocaleString()", shown.get_attribute("datetime"))
    assert wanted in local
    assert "UTC+5:30" in visitor.page.locator("footer").inner_text()
    visitor.close()


def test_an_upload_in_progress_is_shown(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    visitor.open("/models")
    form = visitor.page.locator("form[enctype]")
    # The form is not sent, so that the page does not change while it waits.
    form.evaluate("form => form.addEventListener('submit', (event) => event.preventDefault())")
    archive = {"name": "fraud.tgz", "mimeType": "application/gzip", "buffer": bytes(2_000_000)}
    visitor.page.get_by_label("Archive").set_input_files(archive)
    visitor.page.get_by_role("button", name="Upload and verify").click()
    visitor.page.get_by_role("status").get_by_text("Uploading fraud.tgz (2.0 MB)").wait_for()
    assert form.get_attribute("aria-busy") == "true"
    visitor.close()


def test_gates_can_be_read_on_a_phone(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, size=PHONE)
    visitor.sign_in(tokens["mia"])
    visitor.open("/changes/cr-000012/readout")
    ends = visitor.page.eval_on_selector_all(
        "table.gates td", "all => all.map(one => one.getBoundingClientRect().right)"
    )
    assert ends and max(ends) <= PHONE[0]
    visitor.close()


def test_short_and_ended_bookings_are_visible(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    visitor.open("/calendar")
    # cr-000027 lasts a minute and has ended.
    bar = visitor.page.locator('a[aria-label*="cr-000027"] svg.booking')
    assert bar.count() == 1
    box = bar.locator("rect").bounding_box()
    assert box and box["width"] >= 5
    assert "ended" in str(bar.get_attribute("class"))
    bars = visitor.page.eval_on_selector_all(
        "svg.booking rect", "all => all.map(one => one.getBoundingClientRect().width)"
    )
    assert min(bars) >= 5
    visitor.open("/calendar?days=1")
    box = bar.locator("rect").bounding_box()
    assert box and box["width"] >= 5
    visitor.check()
    visitor.close()


def test_every_removal_requires_a_confirmation(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["ada"])
    visitor.open("/projects/fraud")
    members = visitor.page.locator("table tbody tr").count()
    visitor.page.locator("summary", has_text="Remove").first.click()
    assert visitor.page.locator("table tbody tr").count() == members
    visitor.page.locator("details[open] button.danger").first.wait_for()
    visitor.close()


def test_dark_pages_are_dark_and_figures_follow(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, dark=True)
    visitor.sign_in(tokens["mia"])
    visitor.open("/changes/cr-000012/readout")
    ground = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    assert max(visitor.page.evaluate(ground)) < 60
    fills = visitor.page.eval_on_selector_all(".plot .xtick text", "all => all.map(one => one.style.fill)")
    assert fills and all(min(map(int, fill[4:-1].split(","))) > 120 for fill in fills)
    visitor.check()
    visitor.close()


def test_figures_are_drawn_downloadable_and_shown_as_numbers(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    visitor.open("/changes/cr-000012/readout")
    page = visitor.page
    figures = page.locator("figure.figure")
    assert figures.count() >= 8
    for place in range(figures.count()):
        figure = figures.nth(place)
        assert figure.locator(".plot .main-svg").count() > 0
        assert figure.locator("details table tbody tr").count() > 0
    with page.expect_download() as csv_file:
        page.locator("#figure-flips").get_by_role("link", name="CSV").click()
    rows = list(csv.reader(io.StringIO(Path(csv_file.value.path()).read_text())))
    with page.expect_download() as json_file:
        page.locator("#figure-flips").get_by_role("link", name="JSON").click()
    whole = json.loads(Path(json_file.value.path()).read_text())
    assert rows[0] == whole["columns"]
    assert [[str(cell) for cell in row] for row in whole["rows"]] == rows[1:]
    assert csv_file.value.suggested_filename == "cr-000012-flips.csv"
    visitor.check()
    visitor.close()


def test_a_worse_segment_is_named_at_the_top_of_a_report(site: Any) -> None:
    browser, address, tokens = site
    for size in (WIDE, PHONE):
        visitor = Visitor(browser, address, size=size)
        visitor.sign_in(tokens["mia"])
        visitor.open("/changes/cr-000012/readout")
        page = visitor.page
        assert "Country BE" in page.locator(".verdict").inner_text()
        rows = page.locator("#segments tbody tr")
        assert rows.count() == 11
        assert "country BE" in page.locator("#segments tr.blocks").inner_text()
        assert page.locator("#segments tr.blocks").count() == 1
        assert page.locator("#figure-segments .plot .main-svg").count() > 0
        assert visitor.basics() == []
        visitor.check()
        visitor.close()


def test_plotly_is_served_by_the_platform_and_cached(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    seen = []
    visitor.page.on("response", lambda answer: seen.append(answer) if "plotly" in answer.url else None)
    visitor.open("/changes/cr-000012/readout")
    assert len(seen) == 1
    headers = seen[0].headers
    assert headers["content-encoding"] == "gzip"
    assert "immutable" in headers["cache-control"]
    visitor.close()


def test_typed_text_is_kept_after_a_refresh(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["otto"])
    visitor.open("/changes/cr-000018")
    page = visitor.page
    page.locator("#do-withdraw summary").click()
    page.locator("#r-withdraw").fill("the features are wrong")
    before = page.locator("footer").inner_text()
    with page.expect_response(lambda answer: answer.url.endswith("/changes/cr-000018")):
        pass
    with page.expect_response(lambda answer: answer.url.endswith("/changes/cr-000018")):
        pass
    assert page.locator("#r-withdraw").input_value() == "the features are wrong"
    assert page.locator("footer").inner_text() == before
    visitor.check()
    visitor.close()


def test_a_waiting_page_is_requested_again_only_after_an_event(site: Any) -> None:
    browser, address, tokens = site
    mia, otto = Visitor(browser, address), Visitor(browser, address)
    mia.sign_in(tokens["mia"])
    otto.sign_in(tokens["otto"])
    requested: list[str] = []
    mia.page.on("request", lambda request: requested.append(request.url.removeprefix(address)))
    with mia.page.expect_request("**/api/v1/changes/cr-000020/events?*"):
        mia.open("/changes/cr-000020")
    assert "Awaiting approval" in mia.page.locator("#live-head").inner_text()
    otto.open("/changes/cr-000020")
    otto.press("Approve and release")
    mia.page.locator("#live-head", has_text="Rolling out").wait_for()
    assert requested.count("/changes/cr-000020") == 2  # when the page is opened, and after the event
    assert "/api/v1/changes/cr-000020/events?after=4&wait=25" in requested
    mia.check()
    mia.close()
    otto.close()


def test_navigation_on_a_phone_shows_every_page_and_the_user(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, size=PHONE)
    visitor.sign_in(tokens["mia"])
    visitor.open("/changes")
    page = visitor.page
    assert page.get_by_role("link", name="Audit").is_hidden()
    page.get_by_role("button", name="Menu").click()
    for place in page.locator("nav a, .who a, .who button").all():
        box = place.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= PHONE[0]
        assert box["height"] >= 40, place.inner_text()
    page.get_by_role("link", name="Audit").click()
    page.wait_for_url(f"{address}/audit")
    assert page.get_by_role("link", name="Calendar").is_hidden()
    visitor.check()
    visitor.close()
