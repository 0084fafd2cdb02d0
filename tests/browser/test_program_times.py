"""The drawing of a bundle's program with the times of its nodes, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


def test_the_drawing_has_a_time_and_a_bar_in_the_box_of_each_measured_node(site: Any) -> None:
    browser, address, tokens = site
    visitor = Visitor(browser, address)
    visitor.sign_in(tokens["vera"])
    visitor.open(f"/models/{NEXT.removeprefix('sha256:')}")
    page = visitor.page
    drawing = page.locator("svg.program")
    times = drawing.locator("text.time").all_text_contents()
    assert times == ["420 ns", "4.83 µs", "31 ns", "44 ns", "38 ns", "2.7 µs", "20 ns"]
    # Every time is inside its own box and does not cover the node's kind.
    boxes = drawing.locator("g").evaluate_all(
        """all => all.filter(one => one.querySelector(".time")).map(one => {
          const at = (name) => one.querySelector(name).getBoundingClientRect();
          return [at("rect").right - at(".time").right, at(".time").left - at(".kind").right];
        })"""
    )
    assert all(inside > 0 and apart > 0 for inside, apart in boxes)
    widths = drawing.locator("rect.bar").evaluate_all("all => all.map(one => one.width.baseVal.value)")
    assert len(widths) < len(times) and max(widths) == 100  # 4.83 of 8.08 µs, in a box of 168
    assert page.get_by_text("one in 61. A bar shows").is_visible()
    visitor.check()
    visitor.close()
