"""Card numbers in texts and numbers, found as the servers find them (`rust/privacy`).

A card number has 13 to 19 digits, begins with the leading digits of a payment network and passes the Luhn
check. Its digits may be in groups with one separator between them. Digests and UUIDs are skipped.
"""

from __future__ import annotations

import re
from typing import Final

REMOVED: Final = "(card number removed)"
_SEPARATOR = r"(?:[ \-._/\t,*:]|[^\x00-\x7f\w])"
_GROUPS = re.compile(rf"\d+(?:{_SEPARATOR}\d+)*")
_GROUP = re.compile(r"\d+")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_DIGEST = 32


def masked(text: str) -> str:
    """Return a text with each card number replaced by a remark.

    Args:
        text: Any text.
    """
    if len(text) < 13 or _UUID.fullmatch(text):
        return text
    found = []
    for match in _GROUPS.finditer(text):
        found += _cards(
            text,
            [(match.start() + one.start(), match.start() + one.end()) for one in _GROUP.finditer(match[0])],
        )
    for start, end in reversed(found):
        text = f"{text[:start]}{REMOVED}{text[end:]}"
    return text


def is_number(value: float) -> bool:
    """Whether a number is an integer whose decimal digits are a card number."""
    return 1e12 <= value < 1e19 and value == int(value) and _is_card(str(int(value)))


def _cards(text: str, groups: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the spans of adjacent groups of digits that are card numbers, from left to right."""
    found = []
    at = 0
    parts = [_digits(text[start:end]) for start, end in groups]
    while at < len(groups):
        for last in range(len(groups) - 1, at - 1, -1):
            digits = "".join(parts[at : last + 1])
            if _is_card(digits) and not _is_digest(text, groups[at][0]):
                found.append((groups[at][0], groups[last][1]))
                at = last
                break
        at += 1
    return found


def _digits(text: str) -> str:
    """Return digits of any script as ASCII digits."""
    return text if text.isascii() else "".join(str(int(one)) for one in text)


def _is_card(digits: str) -> bool:
    if not 13 <= len(digits) <= 19:
        return False
    lead, size = int(digits[:4]), len(digits)
    issued = (
        (3000 <= lead <= 3999 and size >= 14)
        or 4000 <= lead <= 6999
        or (
            size >= 16
            and (2200 <= lead <= 2204 or 2221 <= lead <= 2720 or 8100 <= lead <= 8299 or lead == 9792)
        )
    )
    doubled = [int(one) * (1 + place % 2) for place, one in enumerate(reversed(digits))]
    return issued and sum(one - 9 if one > 9 else one for one in doubled) % 10 == 0


def _is_digest(text: str, at: int) -> bool:
    """Whether the letters and digits around a position are at least 32 hexadecimal ones with a letter."""
    start, end = at, at
    while start > 0 and text[start - 1].isascii() and text[start - 1].isalnum():
        start -= 1
    while end < len(text) and text[end].isascii() and text[end].isalnum():
        end += 1
    row = text[start:end]
    return len(row) >= _DIGEST and bool(re.fullmatch(r"[0-9a-fA-F]+", row)) and not row.isdigit()
