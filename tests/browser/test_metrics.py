"""The page of a checkpoint's metrics over time in a browser."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
from browser import PHONE, WIDE, Visitor, chromium, serving
from demo_platform import NEXT, demo_platform

from scorer.web.app import create_app

PAGE = "/checkpoints/fraud.checkout/metrics"
NAMES = ["rate", "decisions", "outcomes", "execution", "data-load", "fallbacks", "drift"]
LABELS = """() => {
  const boxes = (plot, which) => [...plot.querySelectorAll(which)].map((one) => one.getBoundingClientRect());
  const meet = (a, b) =>
    Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
    Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const found = [];
  for (const plot of document.querySelectorAll(".plot")) {
    const all = boxes(plot, ".xtick text, .ytick text, .legendtext, .annotation-text, .xtitle, .ytitle");
    all.forEach((a, at) => all.slice(at + 1).forEach((b) => { if (meet(a, b)) found.push(plot.id); }));
  }
  return found;
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, dict[str, str]]]:
    platform, tokens = demo_platform(tmp_path_factory.mktemp("platform"))
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        yield browser, address, tokens
    platform.close()


def test_the_overview_leads_to_charts_of_a_day_with_links_to_the_changes(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, size=WIDE)
    visitor.sign_in(tokens["ada"])
    visitor.open("/")
    visitor.page.get_by_role("link", name="Metrics of fraud.checkout over time").click()
    visitor.page.locator("html[data-drawn=yes]").wait_for()
    page = visitor.page
    assert page.url == f"{address}{PAGE}"
    assert page.locator(".figure").count() == len(NAMES)
    for name in NAMES:
        plot = page.locator(f"#plot-{name}")
        assert plot.locator(".scatterlayer .trace").count() >= 1, name
        assert plot.locator(".shapelayer path").count() == 3, (
            "there is a canary with two stages, and a rollback"
        )
        links = plot.locator(".annotation-text a")
        assert links.first.get_attribute("xlink:href") == "/changes/cr-000017", name
    page.locator("#plot-rate .annotation-text a").last.click(force=True)
    assert page.url == f"{address}/changes/cr-000012"
    visitor.check()
    visitor.close()


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (PHONE, True)], ids=["wide", "phone-dark"])
def test_no_label_of_a_chart_covers_another(site: Any, size: tuple[int, int], dark: bool) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address, size=size, dark=dark)
    visitor.sign_in(tokens["ada"])
    visitor.open(PAGE)
    assert visitor.page.evaluate(LABELS) == []
    visitor.close()


def test_a_version_has_one_colour_in_all_charts(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["ada"])
    visitor.open(PAGE)
    colours = visitor.page.evaluate(
        """(version) => [...document.querySelectorAll("script[data-plot]")].map((script) => [...new Set(
          JSON.parse(script.textContent).data.filter((one) => one.name.includes(version))
            .map((one) => one.line.color))])""",
        NEXT.removeprefix("sha256:")[:12],
    )
    assert len(colours) == len(NAMES) and len({str(one) for one in colours}) == 1 and len(colours[0]) == 1
    visitor.close()


def test_filters_narrow_the_charts_and_the_downloads(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["ada"])
    page = visitor.page
    visitor.open(PAGE)
    page.get_by_role("navigation", name="Window").get_by_role("link", name="7 d").click()
    page.locator("select[name=server]").select_option("scorer-1")
    page.locator("select[name=lane]").select_option("canary")
    page.get_by_role("button", name="Show").click()
    assert "window=7d" in page.url and page.locator("select[name=lane]").input_value() == "canary"
    with page.expect_download() as csv_file:
        page.locator("#figure-rate").get_by_role("link", name="CSV").click()
    table = list(csv.reader(io.StringIO(csv_file.value.path().read_text())))
    assert table[0] == ["start", "lane", "version", "rows", "per_second"]
    assert {(row[1], row[2]) for row in table[1:]} == {("canary", NEXT)}
    with page.expect_download() as json_file:
        page.get_by_role("link", name="Download as JSON").click()
    whole = json.loads(json_file.value.path().read_text())
    assert [one["name"] for one in whole["figures"]] == NAMES
    assert whole["rows"] == sum(int(row[3]) for row in table[1:])
    page.locator("#figure-rate summary").click()
    shown = page.locator("#figure-rate table tbody tr")
    assert shown.count() == min(len(table) - 1, 200), "the table for screen readers has the same numbers"
    visitor.close()


def test_an_invalid_window_is_reported_and_keeps_the_form(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["ada"])
    for query, message in (
        ("start=2026-01-02T00:00&end=2026-01-01T00:00", "give a later end"),
        ("start=yesterday", "is not a time"),
        ("start=2020-01-01T00:00", "shorter window"),
        ("window=2h", "there is no window"),
    ):
        assert visitor.open(f"{PAGE}?{query}") == 422, query
        assert visitor.page.get_by_text(message).count() == 1, query
        assert visitor.page.get_by_role("button", name="Show").is_visible()
    visitor.open(f"{PAGE}?start=2026-01-02T00:00&end=2026-01-01T00:00")
    assert visitor.page.get_by_label("From").input_value() == "2026-01-02T00:00"
    visitor.close()
