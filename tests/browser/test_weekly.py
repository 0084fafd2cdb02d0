"""The page of versions by week in a browser: choice, progress, charts, metrics, a phone, wrong input."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, WIDE, Visitor, chromium, serving
from versions import CHECKPOINT, History
from waiting import PATIENCE
from weekly_logs import CONFIGURED, write_log

# The process of a comparison has a low priority, so a busy machine takes long.
pytestmark = pytest.mark.timeout(600)
OWN = f"/checkpoints/{CHECKPOINT}/comparison"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    directory = tmp_path_factory.mktemp("weekly")
    history = History(directory, built_bundles, settings=CONFIGURED)
    write_log(directory / "live-1-log", built_bundles["score-1"])
    yield history
    history.world.service.weekly.close()
    history.close()


@pytest.fixture(scope="module")
def site(history: History) -> Iterator[tuple[Any, str]]:
    with serving(history.world.app()) as address, chromium() as browser:
        yield browser, address


def visit(site: Any, history: History, **options: Any) -> Visitor:
    browser, address = site
    visitor = Visitor(browser, address, **options)
    visitor.sign_in(history.world.tokens["viewer"])
    return visitor


def choose(visitor: Visitor, history: History) -> None:
    """Choose two versions and start the comparison."""
    page = visitor.page
    visitor.open(OWN)
    for box in page.locator("input[name=versions]").all():
        box.set_checked(box.get_attribute("value") in (history.live, history.second))
    page.locator("input[name=weeks]").fill("8")
    visitor.press("Compare")


@pytest.fixture(scope="module")
def compared(site: Any, history: History) -> str:
    """Compare two versions on the page, and return the path of the result."""
    visitor = visit(site, history)
    choose(visitor, history)
    # The page loads itself again until the process of low priority has ended.
    visitor.page.get_by_role("heading", name="All settled weeks").wait_for(timeout=PATIENCE * 16_000)
    path = visitor.page.url.removeprefix(visitor.address).split("?")[0]
    visitor.close()
    return path


def test_versions_are_chosen_and_compared_on_the_page(site: Any, history: History, compared: str) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(compared)
    # Axes, bands and one line for each version that has values.
    backtest = page.locator(".js-plotly-plot").first
    assert backtest.locator(".scatterlayer .trace").count() >= 2
    values = page.get_by_role("region", name="All settled weeks")
    assert "it served no decision" in values.inner_text()
    weeks = page.get_by_role("region", name="Weeks", exact=True).locator("tbody tr")
    assert weeks.count() == 8
    states = weeks.locator("td:last-child").all_inner_texts()
    assert "settled" in states
    assert states[-1] != "settled"
    # What was compared stays chosen in the form below.
    chosen = page.locator("input[name=versions]:checked").evaluate_all("all => all.map(one => one.value)")
    assert set(chosen) == {history.live, history.second}
    visitor.check()
    visitor.close()


def test_another_metric_and_other_lines_are_drawn(site: Any, history: History, compared: str) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(compared)
    before = page.locator("figure, .figure").first.inner_text()
    page.locator("select[name=metric]").select_option("recall")
    page.locator("select[name=group]").select_option("algorithm")
    visitor.press("Show")
    assert "metric=recall" in page.url and "group=algorithm" in page.url
    assert page.locator("select[name=metric]").input_value() == "recall"
    assert page.locator("figure, .figure").first.inner_text() != before
    answer = page.request.get(f"{visitor.address}{compared}/figures/weeks-backtest.csv?metric=recall")
    rows = list(csv.DictReader(io.StringIO(answer.text())))
    assert any(one["value"] for one in rows)
    visitor.check()
    visitor.close()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_pages_are_complete_and_accessible(
    site: Any, history: History, compared: str, size: tuple[int, int]
) -> None:
    visitor = visit(site, history, size=size)
    for path in (OWN, compared, f"{compared}?metric=value"):
        assert visitor.open(path) == 200, path
        assert visitor.basics() == [], path
    visitor.check()
    visitor.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_reports_no_violation(site: Any, history: History, compared: str, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs the package axe-playwright-python")
    visitor = visit(site, history, dark=dark)
    for path in (OWN, compared):
        visitor.open(path)
        assert visitor.violations() == [], path
    visitor.close()


def test_a_form_without_a_version_says_what_is_missing(site: Any, history: History) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(OWN)
    for box in page.locator("input[name=versions]").all():
        box.set_checked(False)
    visitor.press("Compare")
    assert "versions" in page.get_by_role("alert").inner_text()
    assert page.locator("input[name=versions]").count() >= 3
    assert visitor.open(f"{OWN}/{'0' * 16}") == 404
    visitor.close()
