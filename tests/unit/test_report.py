"""Tests of the report page: escaped, self-contained, and no larger than its content."""

from __future__ import annotations

import html
import json
import re

from scorer.report import STOP, Mark, ReportPage

EVIL = "</script><script>alert(1)</script>"


def test_all_text_is_escaped_and_marks_keep_their_colour() -> None:
    page = ReportPage(EVIL, EVIL)
    page.verdict(EVIL, [EVIL], STOP)
    page.tiles([(EVIL, EVIL)])
    page.section(EVIL, EVIL)
    page.table((EVIL, "b"), [(EVIL, Mark(EVIL, STOP)), (None, {"a": [EVIL]})], texts=(0, 1))
    text = page.text()
    assert "<script" not in text
    assert f'<span class="mark stop">{html.escape(EVIL)}</span>' in text


def test_a_plotly_figure_is_data_that_cannot_end_its_element() -> None:
    page = ReportPage("title", "lead")
    page.plotly("latency", "Latency", "words", {"data": [{"name": EVIL}]}, ("a", "b"), [(0.123456789, 2)])
    text = page.text()
    (data,) = re.findall(r'<script type="application/json" id="data-latency">(.*?)</script>', text)
    assert json.loads(data)["data"][0]["name"] == EVIL
    assert '<td class="text">0.123457</td>' in text
    assert "Plotly.newPlot" in text
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=", text)


def test_a_page_without_plotly_figures_contains_no_script() -> None:
    page = ReportPage("title", "lead")
    page.plots([("<svg></svg>", "caption")])
    page.table(("a",), [])
    text = page.text()
    assert "<script" not in text
    assert len(text) < 10_000
    assert "<svg></svg><figcaption>caption" in text
    assert '<p class="note">none</p>' in text
