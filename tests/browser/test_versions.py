"""The pages of versions and comparisons in a browser: sorting, filters, the form, wrong input, a phone."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, WIDE, Visitor, chromium, serving
from versions import CHECKPOINT, MLFLOW, History

OWN = f"/checkpoints/{CHECKPOINT}"


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[History]:
    history = History(tmp_path_factory.mktemp("history"), built_bundles)
    yield history
    history.close()


@pytest.fixture(scope="module")
def site(history: History) -> Iterator[tuple[Any, str]]:
    with serving(history.world.app()) as address, chromium() as browser:
        yield browser, address


def visit(site: Any, history: History, user: str = "viewer", **options: Any) -> Visitor:
    browser, address = site
    visitor = Visitor(browser, address, **options)
    visitor.sign_in(history.world.tokens[user])
    return visitor


def pages(history: History) -> list[str]:
    return [
        f"{OWN}/versions",
        f"{OWN}/versions?place=retired",
        f"{OWN}/timeline",
        "/checkpoints/action.authorise/timeline",
        "/compare",
        f"/compare?left={history.live}&right={history.passed}",
        f"/compare?left={history.tested}&right={history.passed}",
        "/models",
        f"/models/{history.first.removeprefix('sha256:')}",
        f"/changes/{history.tested}/readout",
    ]


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_every_page_is_complete_and_accessible(site: Any, history: History, size: tuple[int, int]) -> None:
    visitor = visit(site, history, size=size)
    for path in pages(history):
        assert visitor.open(path) == 200, path
        assert visitor.basics() == [], path
    visitor.check()
    visitor.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_reports_no_violation(site: Any, history: History, dark: bool) -> None:
    pytest.importorskip("axe_playwright_python", reason="needs the package axe-playwright-python")
    visitor = visit(site, history, dark=dark)
    for path in [*pages(history), "/compare?left=zzz&right=", f"{OWN}/versions?sort=nothing"]:
        visitor.open(path)
        assert visitor.violations() == [], path
    visitor.close()


def test_headers_sort_and_show_the_order(site: Any, history: History) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(f"{OWN}/versions")
    assert page.locator("th[aria-sort]").count() == 0

    def order() -> list[str]:
        return page.locator("tbody th a.code").all_inner_texts()

    header = page.get_by_role("columnheader", name="auc")
    header.get_by_role("link", name="auc").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert order() == [one[7:19] for one in (history.second, history.first, history.live)]
    header.get_by_role("link", name="auc").click()
    page.wait_for_url("**sort=metrics.auc*")
    assert header.get_attribute("aria-sort") == "ascending"
    assert order() == [one[7:19] for one in (history.first, history.second, history.live)]
    visitor.check()
    visitor.close()


def test_the_filter_keeps_the_order_and_can_be_undone(site: Any, history: History) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(f"{OWN}/versions?sort=-metrics.auc")
    page.locator("select[name=place]").select_option("canary")
    visitor.press("Show")
    assert page.locator("tbody tr").count() == 1
    assert history.second[7:19] in page.locator("tbody").inner_text()
    assert "sort=-metrics.auc" in page.url
    page.get_by_role("link", name="Show all").click()
    assert page.locator("tbody tr").count() == 3
    visitor.close()


def test_a_wrong_order_is_reported_and_the_list_is_shown(site: Any, history: History) -> None:
    visitor = visit(site, history)
    assert visitor.open(f"{OWN}/versions?sort=nothing") == 422
    assert 'cannot be sorted by "nothing"' in visitor.page.get_by_role("alert").inner_text()
    assert visitor.page.locator("tbody tr").count() == 3
    assert visitor.open(f"{OWN}/versions?place=nowhere") == 422
    assert '"nowhere" is not a place' in visitor.page.get_by_role("alert").inner_text()
    assert visitor.open("/checkpoints/nowhere/versions") == 404
    assert visitor.open(f"{OWN}/timeline?metric=gini") == 422
    assert 'no version has a metric "gini"' in visitor.page.get_by_role("alert").inner_text()
    visitor.close()


def test_a_version_links_to_its_run_report_and_changes(site: Any, history: History) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(f"{OWN}/versions")
    row = page.locator("tbody tr", has_text=history.first[7:19])
    assert row.get_by_role("link", name="MLflow run").get_attribute("href") == f"{MLFLOW}/#/runs/{21:032x}"
    row.get_by_role("link", name="rows").click()
    page.wait_for_url(f"**/changes/{history.tested}/readout")
    page.get_by_role("link", name="Versions of fraud.checkout and their reports").click()
    page.wait_for_url(f"**{OWN}/versions")
    live = page.locator("tbody tr", has_text=history.live[7:19])
    assert "no project" in live.inner_text() and "live" in live.inner_text()
    visitor.close()


def test_models_show_lanes_and_the_live_bundle_of_no_project(site: Any, history: History) -> None:
    visitor = visit(site, history)
    visitor.open("/models")
    rows = visitor.page.locator("tbody tr")
    live = rows.filter(has_text=history.live[7:19]).locator("td").all_inner_texts()
    assert live[1:4] == ["score", "live fraud.checkout", "none"]
    canary = rows.filter(has_text=history.second[7:19])
    assert "canary fraud.checkout" in canary.inner_text()
    assert rows.filter(has_text=history.other[7:19]).count() == 0
    visitor.close()


def test_two_versions_are_chosen_in_the_list_and_compared(site: Any, history: History) -> None:
    visitor = visit(site, history)
    page = visitor.page
    visitor.open(f"{OWN}/versions")
    page.get_by_label(f"left side: {history.first[7:19]}").check()
    page.get_by_label(f"right side: {history.second[7:19]}").check()
    visitor.press("Compare left with right")
    page.wait_for_selector("html[data-drawn]", state="attached")
    auc = page.get_by_role("row", name="auc 0.91")
    assert [one.strip() for one in auc.locator("td").all_inner_texts()] == ["0.91", "0.94", "changed"]
    for name in ("reference", "observed-scores", "execution", "importance"):
        assert page.locator(f"#figure-{name} .plot .main-svg").count() > 0, name
    with page.expect_download() as file:
        page.locator("#figure-importance").get_by_role("link", name="CSV").click()
    rows = list(csv.reader(io.StringIO(Path(file.value.path()).read_text())))
    assert rows[0][0] == "feature" and len(rows) == 5
    visitor.check()
    visitor.close()


def test_the_form_chooses_from_lists_and_swaps_the_sides(site: Any, history: History) -> None:
    browser, address = site
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{address}/login")
    page.get_by_label("Token").fill(history.world.tokens["viewer"])
    page.get_by_role("button", name="Sign in").click()
    page.goto(f"{address}/compare")
    page.get_by_label("Left", exact=True).select_option(history.live)
    page.get_by_label("Right: another digest or change request").fill(history.passed)
    page.get_by_role("button", name="Compare").click()
    swaps = page.locator("#swaps tbody tr").all_inner_texts()
    right_only = next(row for row in swaps if row.startswith("right only"))
    page.get_by_role("link", name="Swap sides").click()
    turned = page.locator("#swaps tbody tr").all_inner_texts()
    assert right_only.replace("right", "left") in turned
    context.close()


@pytest.mark.parametrize(
    ("left", "right", "status", "words"),
    [
        ("sha256:" + "0" * 64, "live", 404, "left: "),
        ("live", "", 422, "right is missing"),
        ("live", "action-authorise@live", 422, "no common measures"),
        ("live", "other", 404, "right: there is no bundle"),
        ("cr-999999", "live", 404, "there is no change request"),
    ],
)
def test_wrong_sides_are_reported_and_kept(
    site: Any, history: History, left: str, right: str, status: int, words: str
) -> None:
    visitor = visit(site, history)
    left, right = ({"live": history.live, "other": history.other}.get(one, one) for one in (left, right))
    assert visitor.open(f"/compare?left={left}&right={right}") == status
    assert words in visitor.page.get_by_role("alert").inner_text()
    for name, value in (("left", left), ("right", right)):
        chosen = visitor.page.locator(f"#c-{name}").input_value()
        written = visitor.page.locator(f"#c-{name}-other").input_value()
        assert value in (chosen, written)
    visitor.close()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_no_column_is_truncated(site: Any, history: History, size: tuple[int, int]) -> None:
    visitor = visit(site, history, size=size)
    for path in (f"{OWN}/versions", f"/compare?left={history.tested}&right={history.passed}"):
        visitor.open(path)
        ends = visitor.page.eval_on_selector_all(
            "table.cards :is(td, th)", "all => all.map(one => one.getBoundingClientRect().right)"
        )
        assert ends and max(ends) <= size[0], path
    visitor.close()


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_tick_labels_do_not_overlap(site: Any, history: History, size: tuple[int, int]) -> None:
    visitor = visit(site, history, size=size)
    overlaps = """all => all.flatMap((plot) => {
      const boxes = [...plot.querySelectorAll(".xtick text")].map((one) => one.getBoundingClientRect());
      boxes.sort((a, b) => a.left - b.left);
      return boxes.slice(1).filter((box, at) => box.left < boxes[at].right && box.top < boxes[at].bottom)
        .map((box) => `${plot.id} at ${box.left}`);
    })"""
    for path in (
        f"/changes/{history.tested}/readout",
        f"/compare?left={history.tested}&right={history.passed}",
        f"{OWN}/timeline",
    ):
        visitor.open(path)
        assert visitor.page.locator(".plot .xtick text").count() > 0
        assert visitor.page.eval_on_selector_all(".plot", overlaps) == [], path
    visitor.close()


def test_the_sla_is_visible_on_dark_pages(site: Any, history: History) -> None:
    """The line of the SLA has at least three times the luminance of the background (WCAG 1.4.11)."""
    visitor = visit(site, history, dark=True)
    visitor.open(f"/changes/{history.tested}/readout")
    contrast = """() => {
      const light = (text) => {
        const [r, g, b] = text.match(/[\\d.]+/g).map(Number).map((one) => one / 255)
          .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
      };
      const ground = light(getComputedStyle(document.querySelector(".panel")).backgroundColor);
      return ["execution", "latency"].map((name) => {
        const plot = document.getElementById(`plot-${name}`);
        const at = plot.data.findIndex((one) => one.name.startsWith("SLA"));
        const lines = plot.querySelectorAll(".scatterlayer .trace");
        const own = [...lines].find((one) => one.__data__[0].trace.index === at);
        return (light(getComputedStyle(own.querySelector(".js-line")).stroke) + 0.05) / (ground + 0.05);
      });
    }"""
    assert min(visitor.page.evaluate(contrast)) > 3
    visitor.close()
