"""Names of the values of features that are categories or flags."""

from __future__ import annotations

import math
from collections.abc import Sequence

MISSING_LEVEL = "(missing)"


def level_name(categories: Sequence[str], code: float) -> str:
    """Return the name of a value of a category, or of a flag, which has no categories.

    Args:
        categories: Names of the categories; empty for a flag.
        code: The encoded value; NaN: missing.
    """
    if math.isnan(code):
        return MISSING_LEVEL
    if categories:
        return categories[int(code)]
    return "yes" if code else "no"
