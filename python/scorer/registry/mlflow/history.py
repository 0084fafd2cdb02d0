"""The history of aliases, which MLflow itself does not keep: tags of the registered model.

One tag an entry, ``scorer.alias.<alias>.<number>``, never changed. MLflow has no transactions: a
move in its own user interface, or two at once, may be missing here, and is then shown as what it
is: a pointer that the last entry does not explain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scorer.registry.base import AliasChange
from scorer.registry.mlflow.rest import Rest

_PREFIX = "scorer.alias."


def read(model: Mapping[str, Any]) -> list[AliasChange]:
    """The entries of a registered model, those of one alias in order; what cannot be read is left out."""
    changes = []
    for tag in model.get("tags") or ():
        if str(tag.get("key", "")).startswith(_PREFIX):
            try:
                changes.append(AliasChange(**json.loads(tag["value"])))
            except (ValueError, TypeError, KeyError):
                continue
    return sorted(changes, key=lambda change: (change.alias, change.sequence))


def of_alias(changes: Sequence[AliasChange], alias: str) -> list[AliasChange]:
    """Return the history entries of ``name@alias``."""
    return [change for change in changes if change.alias == alias]


def explained(
    changes: Sequence[AliasChange], current: str | None, alias: str, at_ms: int
) -> list[AliasChange]:
    """The entries of an alias, and one more where it points elsewhere than the last of them says.

    Args:
        changes: What is known.
        current: The digest that it points to now.
        alias: ``name@alias``.
        at_ms: When that was seen; when it was done nobody knows.
    """
    own = of_alias(changes, alias)
    if current is not None and (not own or own[-1].digest != current):
        previous = own[-1].digest if own else None
        own.append(
            AliasChange(_next(own), alias, current, previous, "alias", at_ms, "", "moved by other means")
        )
    return own


def append(rest: Rest, name: str, change: AliasChange) -> None:
    """Append an entry to the history of an alias."""
    alias = change.alias.partition("@")[2]
    rest.post(
        "/registered-models/set-tag",
        name=name,
        key=f"{_PREFIX}{alias}.{change.sequence:06d}",
        value=json.dumps(asdict(change), ensure_ascii=False),
    )


def next_sequence(changes: Sequence[AliasChange], alias: str) -> int:
    """The number of an alias's next entry."""
    return _next(of_alias(changes, alias))


def _next(own: Sequence[AliasChange]) -> int:
    return max((change.sequence for change in own), default=0) + 1
