"""The editor of rules in a real browser: checks while typing, completion, grids, cases, bench and saving."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, WIDE, Visitor, chromium, serving
from bundles import tiny_score_bundle
from platforms import World
from waiting import wait_until

from scorer.bundle.rules import BundleRules
from scorer.release.requests import SaveRules

RULES = """name = "checkout"
decisions = ["decline", "review"]

[[rules]]
id = "night"
when = "hour < 5.0"
floor = 0.5

[[tables]]
id = "limits"
inputs = ["amount", "hour"]
outputs = ["decision"]
rows = [
  ["> 5000.0", "-", "decline"], # the first row
  ["[500..5000]", "> 3.0", "review"],
]
"""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, built_bundles: dict[str, Path]) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("editor")
    tiny_score_bundle(directory / "ruled", variant=2, rules=BundleRules(RULES))
    world = World(directory, {**built_bundles, "score-2": directory / "ruled"})
    yield world
    world.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    with serving(world.app()) as found:
        yield found


def opened(browser: Any, address: str, world: World, **options: Any) -> Visitor:
    visitor = Visitor(browser, address, **options)
    visitor.sign_in(world.tokens["modeler"])
    visitor.open(f"/models/{world.candidate[7:]}")
    visitor.page.get_by_role("link", name="Edit rules").click()
    visitor.page.get_by_text("No problems in 3 rules.").wait_for()
    return visitor


def text_of(visitor: Visitor) -> str:
    return str(visitor.page.get_by_label("rules.toml").input_value())


@pytest.mark.parametrize(("size", "dark"), [(WIDE, False), (WIDE, True), (PHONE, False), (PHONE, True)])
def test_the_editor_is_accessible(
    browser: Any, address: str, world: World, size: tuple[int, int], dark: bool
) -> None:
    visitor = opened(browser, address, world, size=size, dark=dark)
    assert text_of(visitor) == RULES
    visitor.page.get_by_role("region", name="Decision table limits").wait_for(state="visible")
    assert visitor.basics() == []
    assert visitor.violations() == []
    visitor.check()
    visitor.close()


def test_problems_are_shown_while_the_user_types(browser: Any, address: str, world: World) -> None:
    visitor = opened(browser, address, world)
    page = visitor.page
    area = page.get_by_label("rules.toml")
    area.fill(RULES.replace("hour <", "huor <"))
    problem = page.get_by_role("button", name='night, line 6, column 9: unknown name "huor"')
    problem.wait_for()
    assert page.locator(".gutter .wrong").inner_text().strip() == "6"
    assert page.locator(".marks mark").inner_text() == "huor"
    problem.click()
    start = area.evaluate("area => area.selectionStart")
    assert text_of(visitor)[start:].startswith("huor")
    assert visitor.basics() == []
    visitor.check()
    visitor.close()


def test_names_are_completed_with_the_keyboard(browser: Any, address: str, world: World) -> None:
    visitor = opened(browser, address, world)
    page = visitor.page
    page.get_by_label("rules.toml").focus()
    page.keyboard.press("Control+End")
    page.keyboard.type('\n[[rules]]\nid = "far"\nwhen = "dis')
    page.get_by_role("option", name="distance double").wait_for()
    page.keyboard.press("Tab")
    page.keyboard.type(' > 9.0"\ndecision = "rev')
    page.get_by_role("option", name="review").wait_for()
    page.keyboard.press("Enter")
    page.keyboard.type('"\n')
    page.get_by_text("No problems in 4 rules.").wait_for()
    assert tomllib.loads(text_of(visitor))["rules"][1] == {
        "id": "far",
        "when": "distance > 9.0",
        "decision": "review",
    }
    names = page.get_by_role("listbox", name="Names")
    assert names.count() == 0
    page.keyboard.press("Control+Space")
    names.get_by_role("option").first.wait_for()
    page.keyboard.press("Escape")
    assert names.count() == 0
    visitor.check()
    visitor.close()


def test_the_grid_writes_into_the_text(browser: Any, address: str, world: World) -> None:
    visitor = opened(browser, address, world)
    page = visitor.page

    def table() -> dict[str, Any]:
        # The policy of the page's content forbids a condition in JavaScript.
        page.locator("[data-grids]:not([aria-busy])").wait_for()
        found: dict[str, Any] = tomllib.loads(text_of(visitor))["tables"][0]
        return found

    # A wrong cell has its own message; a cell keeps the comments of the text.
    cell = page.get_by_label("amount, row 2 of limits")
    cell.fill("> x1")
    cell.press("Tab")
    page.locator('[aria-invalid="true"][aria-label="amount, row 2 of limits"]').wait_for()
    page.get_by_label("amount, row 2 of limits").fill("> 100.0")
    page.keyboard.press("Enter")
    page.get_by_text("No problems in 3 rules.").wait_for()
    assert table()["rows"][1] == ["> 100.0", "> 3.0", "review"]
    assert "# the first row" in text_of(visitor)
    # With the keyboard alone: the arrow keys with Alt move between cells.
    page.get_by_label("amount, row 1 of limits").focus()
    page.keyboard.press("Alt+ArrowRight")
    page.keyboard.press("Alt+ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "hour, row 2 of limits"
    page.get_by_role("button", name="Move row 2 of limits up").focus()
    page.keyboard.press("Enter")
    wait_until(lambda: [row[0] for row in table()["rows"]] == ["> 100.0", "> 5000.0"])
    page.get_by_role("button", name="Add a row to limits").click()
    page.get_by_label("amount, row 3 of limits").wait_for()
    assert table()["rows"][2] == ["-", "-", "-"]
    page.get_by_role("button", name="Remove row 3 of limits").click()
    page.get_by_label("amount, row 3 of limits").wait_for(state="detached")
    page.get_by_role("button", name="Add an output to limits").click()
    page.get_by_label("Output 2 of limits").wait_for()
    assert table()["outputs"] == ["decision", "reason"]
    assert [len(row) for row in table()["rows"]] == [4, 4]
    page.get_by_role("button", name="Remove column hour of limits").click()
    page.get_by_label("Input 2 of limits").wait_for(state="detached")
    assert table()["inputs"] == ["amount"] and table()["rows"][0] == ["> 100.0", "review", "-"]
    # Without its other condition, the first row decides whenever the second one would.
    page.get_by_role("button", name="limits.row2, line 15").wait_for()
    page.get_by_role("button", name="Move row 2 of limits up").click()
    page.get_by_text("No problems in 3 rules.").wait_for()
    visitor.check()
    visitor.close()


def test_cases_bench_and_saving_with_a_conflict(browser: Any, address: str, world: World) -> None:
    visitor = opened(browser, address, world)
    page = visitor.page
    cases = '[[cases]]\nname = "late"\nfeatures = { hour = 5.5 }\nexpect = { fired = ["night"] }\n'
    page.get_by_label("Author's cases").fill(cases)
    visitor.press("Run the cases")
    page.get_by_text("late: fired [], expected ['night']").wait_for()
    page.get_by_label("rules.toml").fill(RULES.replace("hour < 5.0", "hour < 6.0"))
    page.get_by_label("Features").fill("hour = 5.5\namount = 1")
    visitor.press("Evaluate")
    page.get_by_role("region", name="Results of the test bench").wait_for()
    assert page.locator("#benched td").nth(2).inner_text().split("\n")[-1].startswith("night")
    assert visitor.basics() == [] and visitor.violations() == []
    # Another user saves first: the difference is shown, and the newer rules are replaced knowingly.
    other = SaveRules(
        text=RULES.replace("hour < 5.0", "hour < 7.0"),
        checkpoint="fraud.checkout",
        note="wider",
        submit=False,
    )
    world.service.authoring.save(world.actor("owner"), "fraud", world.candidate, other)
    page.get_by_label("Note").fill("Nights end at six.")
    visitor.press("Save and open a TEST")
    page.get_by_role("heading", name="Difference from the newer rules").wait_for()
    assert '+when = "hour < 6.0"' in page.locator("#difference").inner_text()
    assert visitor.basics() == [] and visitor.violations() == []
    page.get_by_label("Replace the newer rules of owner").check()
    visitor.press("Save and open a TEST")
    page.get_by_text("its TEST is submitted").wait_for()
    assert page.get_by_role("heading", name="Nights end at six.").is_visible()
    assert not [one for one in visitor.problems if "409" not in one]
    visitor.close()


def test_the_page_works_without_scripts(browser: Any, address: str, world: World) -> None:
    visitor = Visitor(browser, address)
    visitor.sign_in(world.tokens["viewer"])
    context = browser.new_context(java_script_enabled=False)
    context.add_cookies(visitor.page.context.cookies())
    page = context.new_page()
    page.goto(f"{address}/models/{world.candidate[7:]}/rules")
    page.get_by_label("rules.toml").fill(RULES.replace("hour <", "huor <"))
    page.get_by_role("button", name="Check the rules").click()
    assert 'line 6, column 9: unknown name "huor"' in page.locator("#problems").inner_text()
    # A viewer cannot save.
    assert page.get_by_role("button", name="Save and open a TEST").count() == 0
    context.close()
    visitor.close()
