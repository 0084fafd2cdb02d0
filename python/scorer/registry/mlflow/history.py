"""The history of aliases, stored as tags of the registered model because MLflow keeps no such history.

Each entry is one tag, ``scorer.alias.<alias>.<number>``, which is never changed. MLflow has no transactions.
A move that was made in MLflow's user interface, or one of two simultaneous moves, may therefore be missing
here. `explained` adds an entry for such a move when the alias does not point to the last entry's bundle.
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
    """Return the entries of a registered model, sorted by alias and sequence. Skip unreadable tags."""
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
    """Return the entries of an alias, with one more if another tool has moved the alias since the last entry.

    Args:
        changes: The recorded entries.
        current: The digest that the alias points to now; None if there is no such alias or no digest.
        alias: ``name@alias``.
        at_ms: The time of this call, in milliseconds since the Unix epoch. The time of the move is unknown.
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
    """Return the sequence number of an alias's next entry."""
    return _next(of_alias(changes, alias))


def _next(own: Sequence[AliasChange]) -> int:
    return max((change.sequence for change in own), default=0) + 1
