"""Filters of observe lanes: a JSON list of conditions on features, all of which must hold.

::

    [{"feature": "amount", "op": ">=", "value": 100},
     {"feature": "country", "op": "in", "value": ["NL", "BE"]}]

Operators: ``==  !=  <  <=  >  >=  in  missing  present``. Categories are compared by name, flags with true or
false. For a missing value, only ``missing`` holds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

from scorer.errors import InvalidLanesError

_COMPARE = ("==", "!=")
_ORDER = ("<", "<=", ">", ">=")
_PRESENCE = ("missing", "present")
OPERATORS = (*_COMPARE, *_ORDER, "in", *_PRESENCE)


def parse_filter(
    text: str, *, where: str = "filter", features: Collection[str] | None = None
) -> list[dict[str, Any]]:
    """Parse the conditions of a filter. An empty text has no conditions.

    Args:
        text: The filter.
        where: Prefix of error messages.
        features: Names of features that conditions may refer to; None allows any.

    Raises:
        InvalidLanesError: The filter is not valid.
    """
    if not text.strip():
        return []
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidLanesError(f"{where}: the filter is no JSON ({error}); {_EXAMPLE}") from None
    if not isinstance(found, list):
        raise InvalidLanesError(f"{where}: the filter is no list of conditions; {_EXAMPLE}")
    return [
        _condition(one, f"{where}: condition {at} of the filter", features) for at, one in enumerate(found, 1)
    ]


_EXAMPLE = 'write for example [{"feature": "amount", "op": ">=", "value": 100}]'


def _condition(one: Any, where: str, features: Collection[str] | None) -> dict[str, Any]:
    if not isinstance(one, dict) or not one.keys() <= {"feature", "op", "value"}:
        raise InvalidLanesError(f'{where} is not made of "feature", "op" and "value"; {_EXAMPLE}')
    feature, op, value = one.get("feature"), one.get("op"), one.get("value")
    if not isinstance(feature, str) or not feature:
        raise InvalidLanesError(f"{where} names no feature; {_EXAMPLE}")
    if features is not None and feature not in features:
        from scorer.config.problems import nearest

        raise InvalidLanesError(
            f'{where}: the bundle that answers has no feature "{feature}"; {nearest(feature, features)}'
        )
    if op not in OPERATORS:
        raise InvalidLanesError(
            f"{where} has the operator {json.dumps(op)}; use one of {' '.join(OPERATORS)}"
        )
    if op in _PRESENCE:
        if value is not None:
            raise InvalidLanesError(f'{where}: "{op}" takes no value; leave it out')
        return {"feature": feature, "op": op}
    if op in _ORDER and not _is_number(value):
        raise InvalidLanesError(f'{where}: "{op}" takes a number, not {json.dumps(value)}')
    if op in _COMPARE and not _is_scalar(value):
        raise InvalidLanesError(
            f'{where}: "{op}" takes a number, a category\'s name, true or false, not {json.dumps(value)}'
        )
    if op == "in" and not (isinstance(value, list) and value and all(map(_is_scalar, value))):
        raise InvalidLanesError(
            f'{where}: "in" takes a list of numbers or names that is not empty, not {json.dumps(value)}'
        )
    return {"feature": feature, "op": op, "value": value}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | bool) or _is_number(value)
