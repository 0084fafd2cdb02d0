"""Parts of pages that are rendered once for all viewers with the same rights."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from markupsafe import Markup, escape

_MOST: Final = 32
_TURN_SECONDS: Final = 5.0
"""Longest wait for another thread that renders. After it, a thread renders by itself."""


class Fragments:
    """Keeps rendered parts of pages, and renders one again when a value that it shows has changed.

    A part is a function of its values, so that viewers with equal values see the same text. What differs
    between them is the CSRF token of their forms, which is filled in for each.

    Args:
        render: Renders a template with values.
        most: Limit on the texts that are kept. The least recently used ones are dropped.
    """

    def __init__(self, render: Callable[..., str], most: int = _MOST) -> None:
        self._render, self._most = render, most
        self._kept: OrderedDict[Hashable, tuple[Mapping[str, Any], str]] = OrderedDict()
        self._lock = threading.Lock()
        # Stands for the token. No text of a user contains it, because it never leaves the process.
        self._token = secrets.token_hex(32)
        self.count = 0
        """Number of times that a part was rendered."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, template: str, key: Hashable, csrf: str, values: Mapping[str, Any]) -> Markup:
        """Return a part of a page.

        Args:
            template: File name below templates/.
            key: What is shown, and the rights of the viewer. One text is kept for each key.
            csrf: CSRF token of the viewer's forms.
            values: All other variables of the template.
        """
        # Viewers are woken by the same event, so the first one renders and the others wait for the text.
        is_held = self._lock.acquire(timeout=_TURN_SECONDS)
        try:
            text = self._text(template, key, values)
        finally:
            if is_held:
                self._lock.release()
        return Markup(text.replace(self._token, str(escape(csrf))))  # noqa: S704 - rendered with escaping

    def _text(self, template: str, key: Hashable, values: Mapping[str, Any]) -> str:
        kept = self._kept.get((template, key))
        if kept is not None and kept[0] == values:
            self._kept.move_to_end((template, key))
            return kept[1]
        text = self._render(template, csrf=self._token, **values)
        self.count += 1
        self._kept[template, key] = values, text
        self._kept.move_to_end((template, key))
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return text
