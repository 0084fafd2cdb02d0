"""Small edits of one rule in the text of a rule set: snooze it, retire it, enable it."""

from __future__ import annotations

import copy
import re
import tomllib
from datetime import datetime
from typing import Any, Final

from scorer.bundle.rule_text import toml_text
from scorer.release.authoring.tables import masked
from scorer.release.errors import InvalidError, NotFoundError

_BLOCK: Final = re.compile(r"^[ \t]*\[\[", re.MULTILINE)


def with_switch(text: str, rule: str, key: str, value: datetime | bool | None) -> str:
    """Return the text of a rule set with one key of one rule replaced.

    Args:
        text: The TOML text.
        rule: Id of one of the ``[[rules]]``.
        key: ``enabled`` or ``snoozed_until``.
        value: The new value; None removes the key.

    Raises:
        NotFoundError: There is no such rule.
        InvalidError: The text is not valid TOML, or the key cannot be replaced without the editor.
    """
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidError(f"rules: {error}; correct the text") from None
    numbers = [at for at, one in enumerate(before.get("rules", [])) if one.get("id") == rule]
    if not numbers:
        raise NotFoundError(
            f'there is no rule "{rule[:100]}" in the file\'s [[rules]]; rows of tables and packs of several '
            "rules are changed in the editor"
        )
    wanted: dict[str, Any] = copy.deepcopy(before)
    own = wanted["rules"][numbers[0]]
    own.pop(key, None)
    if value is not None:
        own[key] = value
    after = _edited(text, numbers[0], key, value)
    try:
        is_right = tomllib.loads(after) == wanted
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise InvalidError(
            f'rule "{rule}": {key} cannot be replaced in this text; edit the rule in the editor'
        )
    return after


def _edited(text: str, number: int, key: str, value: datetime | bool | None) -> str:
    blank = masked(text)
    starts = [one.start() for one in _BLOCK.finditer(blank)]
    rules = [at for at in starts if re.match(r"[ \t]*\[\[[ \t]*rules[ \t]*\]\]", blank[at:])]
    if number >= len(rules):
        return text
    begin = blank.find("\n", rules[number]) + 1 or len(text)
    end = next((at for at in starts if at >= begin), len(text))
    line = "" if value is None else f"{key} = {toml_text(value)}\n"
    present = re.compile(rf"^[ \t]*{key}[ \t]*=[^\n]*(\n|$)", re.MULTILINE).search(blank, begin, end)
    if present is not None:
        return text[: present.start()] + line + text[present.end() :]
    name = re.compile(r"^[ \t]*id[ \t]*=[^\n]*(\n|$)", re.MULTILINE).search(blank, begin, end)
    if name is None or not line:
        return text
    return text[: name.end()] + ("" if name[1] else "\n") + line + text[name.end() :]
