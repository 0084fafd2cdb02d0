"""The same by keyboard and by mouse: new change requests, the calendar."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from browser import Visitor, chromium, serving
from demo_platform import NEXT, demo_platform

from scorer.web.app import create_app


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, str, dict[str, str]]]:
    platform, tokens = demo_platform(tmp_path_factory.mktemp("platform"))
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        yield browser, address, tokens
    platform.close()


@pytest.fixture
def modeler(site: Any) -> Iterator[Visitor]:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["mia"])
    yield visitor
    visitor.check()
    visitor.close()


def _tab_to(visitor: Visitor, selector: str, most: int = 60) -> None:
    for _ in range(most):
        visitor.page.keyboard.press("Tab")
        if visitor.page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            outline = visitor.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            native = visitor.page.evaluate("document.activeElement.matches('input, select, textarea')")
            assert outline != "none" or native, f"{selector} has no visible focus"
            return
    raise AssertionError(f"{selector} cannot be reached by Tab")


def test_a_change_request_by_keyboard_alone(modeler: Visitor) -> None:
    page, keys = modeler.page, modeler.page.keyboard
    modeler.open("/")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    keys.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    _tab_to(modeler, "a[href='/changes/new']")
    keys.press("Enter")
    page.wait_for_url("**/changes/new")
    _tab_to(modeler, "#f-title")
    keys.type("By keyboard alone")
    _tab_to(modeler, "#k-test")
    keys.press("ArrowDown")
    assert page.locator("#k-release").is_checked()
    keys.press("ArrowUp")
    _tab_to(modeler, "#f-bundle")
    keys.type(NEXT)
    _tab_to(modeler, "button[value=draft]")
    keys.press("Enter")
    page.wait_for_url("**/changes/cr-*")
    assert page.locator("h1").inner_text() == "By keyboard alone"
    assert "TEST" in page.locator("#live-head").inner_text()


def test_dragging_over_free_time_opens_a_completed_form(modeler: Visitor) -> None:
    modeler.open("/calendar")
    row = modeler.page.locator(".slot-row[data-checkpoint='fraud.checkout'][data-slot='2']")
    box = row.bounding_box()
    day = box["width"] / 7
    y = box["y"] + box["height"] / 2
    modeler.page.mouse.move(box["x"] + 5.25 * day, y)
    modeler.page.mouse.down()
    modeler.page.mouse.move(box["x"] + 5.4 * day, y)
    modeler.page.mouse.move(box["x"] + 5.75 * day, y)
    assert "fraud.checkout slot 2" in modeler.page.locator("#drag-words").inner_text()
    modeler.page.mouse.up()
    modeler.page.wait_for_url("**/changes/new?**")
    query = {name: values[0] for name, values in parse_qs(urlsplit(modeler.page.url).query).items()}
    assert (query["checkpoint"], query["slot"], query["minutes"]) == ("fraud.checkout", "2", "720")
    assert query["start"].endswith("T06:00")
    assert modeler.page.locator("#f-start").input_value() == query["start"]
    assert modeler.page.locator("#f-minutes").input_value() == "720"


def test_the_form_for_times_opens_the_same_form(modeler: Visitor) -> None:
    modeler.open("/calendar")
    page = modeler.page
    page.locator("#f-checkpoint").select_option("fraud.checkout")
    page.locator("#f-start").fill("2030-01-02T06:00")
    page.locator("#f-slot").fill("2")
    page.locator("#f-minutes").fill("720")
    modeler.press("Continue to the change request")
    page.wait_for_url("**/changes/new?**")
    assert page.locator("#f-start").input_value() == "2030-01-02T06:00"
    assert page.locator("#f-slot").input_value() == "2"


def test_an_own_booking_can_be_dragged_and_a_refusal_names_the_next_free_slot(modeler: Visitor) -> None:
    modeler.open("/calendar?checkpoint=fraud.checkout")
    booking = modeler.page.locator("a.mine[data-change='cr-000023'] svg.booking")
    box = booking.bounding_box()
    modeler.page.mouse.move(box["x"] + 10, box["y"] + 10)
    modeler.page.mouse.down()
    modeler.page.mouse.move(box["x"] + 60, box["y"] + 12)
    modeler.page.mouse.move(box["x"] + 120, box["y"] + 12)
    modeler.page.mouse.up()
    alert = modeler.page.get_by_role("alert")
    alert.wait_for()
    assert "the next free is slot 2" in alert.inner_text()
    # The form still has the values of the request.
    assert modeler.page.locator("#m-change").input_value() == "cr-000023"
    modeler.problems.clear()  # the browser logs the status 409 on its console


def test_bookings_of_others_cannot_be_dragged(modeler: Visitor) -> None:
    modeler.open("/calendar")
    assert modeler.page.locator("a[href='/changes/cr-000024']").count() > 0
    assert modeler.page.locator("a.mine[data-change='cr-000024']").count() == 0


def test_an_error_keeps_what_was_typed(modeler: Visitor) -> None:
    modeler.open("/changes/new")
    page = modeler.page
    page.locator("#f-title").fill("Kept")
    page.locator("#f-bundle").fill(NEXT)
    page.locator("details summary").first.click()
    page.locator("#f-stages").fill("five percent")
    modeler.press("Save as a draft")
    assert "is not a share and minutes" in page.get_by_role("alert").inner_text()
    assert page.locator("#f-title").input_value() == "Kept"
    assert page.locator("#f-stages").input_value() == "five percent"
    modeler.problems.clear()


def test_the_form_shows_the_gates_of_the_chosen_checkpoint(modeler: Visitor) -> None:
    modeler.open("/changes/new")
    aside = modeler.page.locator("aside")
    modeler.page.locator("#f-checkpoint").select_option("action.authorise")
    assert "Distance of the policies" in aside.inner_text()
    assert "Change of the approve rate" not in aside.inner_text()
    modeler.page.locator("#f-checkpoint").select_option("fraud.checkout")
    assert "Change of the approve rate" in aside.inner_text()
