"""Parts of pages: one text for equal values, each viewer's own CSRF token, and a bound."""

from __future__ import annotations

import re
from typing import Any

from scorer.web.fragments import Fragments


class Template:
    """A template that renders its values and records its tokens."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def __call__(self, name: str, *, csrf: str, **values: Any) -> str:
        self.tokens.append(csrf)
        return f'{name} {values["title"]} <input value="{csrf}"> <input value="{csrf}">'


def test_equal_values_are_rendered_once_with_the_token_of_each_viewer() -> None:
    template = Template()
    parts = Fragments(template)
    texts = [parts.get("a.html", "cr-1", f"token-{one}", {"title": ["Trees"]}) for one in range(5)]
    assert parts.count == 1
    assert texts[3] == 'a.html [\'Trees\'] <input value="token-3"> <input value="token-3">'
    assert not any(template.tokens[0] in text for text in texts)


def test_a_changed_value_another_key_and_another_template_are_rendered_again() -> None:
    parts = Fragments(Template())
    assert "Trees" in parts.get("a.html", "cr-1", "t", {"title": "Trees"})
    assert "Roots" in parts.get("a.html", "cr-1", "t", {"title": "Roots"})
    assert "Roots" in parts.get("a.html", "cr-2", "t", {"title": "Roots"})
    assert parts.get("b.html", "cr-1", "t", {"title": "Roots"}).startswith("b.html")
    assert parts.count == 4
    assert "Roots" in parts.get("a.html", "cr-1", "t", {"title": "Roots"})
    assert parts.count == 4


def test_a_token_is_escaped() -> None:
    text = Fragments(Template()).get("a.html", "cr-1", '"><script>', {"title": ""})
    assert "<script>" not in text and "&gt;&lt;script&gt;" in text


def test_the_number_of_texts_is_bounded() -> None:
    parts = Fragments(Template(), most=3)
    for key in range(10):
        parts.get("a.html", key, "t", {"title": key})
    assert len(parts) == 3 and parts.count == 10
    parts.get("a.html", 9, "t", {"title": 9})
    assert parts.count == 10
    parts.get("a.html", 6, "t", {"title": 6})
    assert parts.count == 11


def test_the_placeholder_cannot_be_guessed() -> None:
    first, second = Template(), Template()
    for template in (first, second):
        Fragments(template).get("a.html", 1, "t", {"title": ""})
    assert first.tokens != second.tokens
    assert all(re.fullmatch(r"[0-9a-f]{64}", token) for token in (*first.tokens, *second.tokens))
