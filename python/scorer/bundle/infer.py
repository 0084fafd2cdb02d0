"""Inference of a schema from a table, from an example request, or from lines of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from scorer.bundle.models import Feature
from scorer.errors import BundleError

MAX_LEVELS = 10_000
"""Most levels that a category may have if they are read from a table."""
_EXAMPLE_BYTES = 1 << 20
_FORM = 'write "name type", such as "amount number", "amount number 0..5000" or "country category DE, FR"'


def from_table(table: Any, *, names: Sequence[str] = (), without: Sequence[str] = ()) -> list[Feature]:
    """Return the features of a table's columns. Every feature may be missing, and no range is set.

    The levels of a category are in alphabetical order, as those of a pandas categorical column are.

    Args:
        table: A pyarrow table.
        names: Columns of the model, in its order; empty: every column of the table, in the table's order.
        without: Columns of the table that are not features, such as the label.

    Raises:
        BundleError: A column is missing, or has a type that is not a number, a boolean or text.
    """
    wanted = names or [name for name in table.column_names if name not in without]
    return [_of_column(table, name) for name in wanted]


def from_example(text: bytes, table: Any, *, names: Sequence[str] = ()) -> list[Feature]:
    """Return the features of an example request. The levels of categories are read from the table.

    Args:
        text: A JSON object from feature to value, or an object with such an object as `features`.
        table: A pyarrow table with a column of each category.
        names: Columns of the model, in its order; empty: the order of the example.

    Raises:
        BundleError: The example is not such an object, or does not have the columns of the model.
    """
    if len(text) > _EXAMPLE_BYTES:
        raise BundleError(f"the example has more than {_EXAMPLE_BYTES:,} bytes; send one request")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise BundleError("the example is not JSON; send an object from feature to value") from None
    values = found.get("features", found) if isinstance(found, dict) else None
    if not isinstance(values, dict) or not values:
        raise BundleError('the example is no JSON object such as {"amount": 12.5, "country": "DE"}; send one')
    if names and (other := set(names) ^ set(values)):
        raise BundleError(
            f'feature "{min(other)[:100]}" is in only one of the model and the example; '
            "send an example with exactly the columns of the model"
        )
    return [_of_value(name, values[name], table) for name in names or values]


def from_lines(text: str) -> list[Feature]:
    """Return the features of lines such as `amount number 0..5000` and `country category DE, FR`.

    A feature may be missing unless its line ends with `required`.

    Args:
        text: One feature per line; empty lines are ignored.

    Raises:
        BundleError: A line does not have this form, or a name occurs twice.
    """
    features = [_of_line(line.strip()) for line in text.splitlines() if line.strip()]
    if not features:
        raise BundleError(f"no features are written down; {_FORM}")
    names = [feature.name for feature in features]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BundleError(f'feature "{twice}" is written down twice; remove one line')
    return features


def _of_column(table: Any, name: str) -> Feature:
    import pyarrow.types as kinds

    column = _column(table, name)
    if kinds.is_boolean(column.type):
        return Feature(name=name, type="flag")
    if kinds.is_integer(column.type) or kinds.is_floating(column.type) or kinds.is_null(column.type):
        return Feature(name=name)
    if kinds.is_string(column.type) or kinds.is_large_string(column.type):
        return Feature(name=name, type="category", categories=_levels(column, name))
    raise BundleError(
        f'column "{name}" has the type {column.type}; a feature is a number, a boolean or text: '
        "convert the column, or leave it out of the table"
    )


def _of_value(name: str, value: Any, table: Any) -> Feature:
    if isinstance(value, bool):
        return Feature(name=name, type="flag")
    if isinstance(value, int | float):
        return Feature(name=name)
    if isinstance(value, str):
        return Feature(name=name, type="category", categories=_levels(_column(table, name), name))
    if value is None:
        return _of_column(table, name)
    raise BundleError(
        f'feature "{name[:100]}" of the example is a {type(value).__name__}; '
        "a feature is a number, true or false, text, or null"
    )


def _column(table: Any, name: str) -> Any:
    count = table.column_names.count(name)
    if count != 1:
        rule = "has no such column; add it" if not count else "has several such columns; rename the others"
        raise BundleError(f'feature "{name[:100]}": the table {rule}')
    return table.column(name)


def _levels(column: Any, name: str) -> list[str]:
    levels = sorted(str(level) for level in column.unique().to_pylist() if level is not None)
    if not levels:
        raise BundleError(f'column "{name}" has no values; write its levels down')
    if len(levels) > MAX_LEVELS:
        raise BundleError(
            f'column "{name}" has {len(levels):,} different texts, more than {MAX_LEVELS:,}; '
            "it is rather an identifier than a category: leave it out"
        )
    return levels


def _of_line(line: str) -> Feature:
    words = line.split(maxsplit=2)
    if len(words) < 2:
        raise BundleError(f'the line "{line[:80]}" has no type; {_FORM}')
    name, kind, rest = words[0], words[1], words[2] if len(words) > 2 else ""
    missing = "allow"
    if rest == "required" or rest.endswith(" required"):
        missing, rest = "refuse", rest.removesuffix("required").strip()
    values: dict[str, Any] = {"name": name, "type": kind, "missing": missing}
    if kind == "category":
        values["categories"] = [level.strip() for level in rest.split(",") if level.strip()]
    elif rest:
        low, dots, high = rest.partition("..")
        if not dots:
            raise BundleError(f'the line "{line[:80]}" cannot be read; {_FORM}')
        values |= {key: end.strip() for key, end in (("minimum", low), ("maximum", high)) if end.strip()}
    try:
        return Feature.model_validate(values)
    except ValidationError as error:
        first: Any = error.errors(include_url=False)[0]
        raise BundleError(f'the line "{line[:80]}": {first["msg"]}; {_FORM}') from None
