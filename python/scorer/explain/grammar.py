"""The text form of actionable features, as the command line takes it."""

from __future__ import annotations

import math
import re
from typing import Final, Literal

from scorer.errors import BundleError
from scorer.explain.counterfactual import ActionableFeature

_FORM: Final = re.compile(r"(?P<name>[^=+#]*?[^=+#-])(?P<marks>[-+#]*)(?:=(?P<values>.*))?", re.DOTALL)
_RANGE: Final = re.compile(r"(?P<low>[^.,]*(?:\.\d+)?)\.\.(?P<high>.*)")


def read_actionable(text: str) -> ActionableFeature:
    """Read an actionable feature such as ``amount-=0..100``, ``hour#=0..23`` or ``country=NL,DE``.

    Args:
        text: The name, its marks (``+`` may only grow, ``-`` may only shrink, ``#`` must be whole), and a
            range or levels.

    Raises:
        BundleError: The text has another form.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None or len(set(found["marks"])) < len(found["marks"]) or {"+", "-"} <= set(found["marks"]):
        raise _wrong(text)
    marks, values = found["marks"], found["values"]
    direction: Literal["any", "increase", "decrease"] = "any"
    if "+" in marks:
        direction = "increase"
    elif "-" in marks:
        direction = "decrease"
    low = high = None
    levels: tuple[str, ...] = ()
    if values is not None:
        ends = _RANGE.fullmatch(values)
        if ends is not None:
            low, high = (_end(text, ends[name]) for name in ("low", "high"))
        else:
            levels = tuple(part.strip() for part in values.split(","))
            if not all(levels):
                raise _wrong(text)
    return ActionableFeature(found["name"].strip(), low, high, levels, direction, "#" in marks)


def _end(text: str, value: str) -> float | None:
    if not value.strip():
        return None
    try:
        end = float(value)
    except ValueError:
        raise _wrong(text) from None
    if not math.isfinite(end):
        raise _wrong(text)
    return end


def _wrong(text: str) -> BundleError:
    return BundleError(
        f'change "{text[:80]}" is not understood; write NAME, NAME=LOW..HIGH or NAME=A,B, with +, - or # '
        "after the name"
    )
