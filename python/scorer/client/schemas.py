"""The schema of the caller's dense values, per checkpoint."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from scorer.client.results import CheckpointInfo


@dataclass(frozen=True, slots=True)
class SchemaInUse:
    """A schema's fingerprint and, if known, the names of its features in order."""

    fingerprint: int
    names: tuple[str, ...] | None


class SchemaCache:
    """The schema in use and the last description of each checkpoint.

    They are stored separately: when a description shows another schema, dense calls must still use the old
    one, because the caller still orders the values by it.
    """

    def __init__(self) -> None:
        self._in_use: dict[str, SchemaInUse] = {}
        self._seen: dict[str, CheckpointInfo] = {}
        self._lock = threading.Lock()

    def get(self, checkpoint: str) -> SchemaInUse | None:
        """Return the schema in use for a checkpoint, or None before its first dense call."""
        return self._in_use.get(checkpoint)

    def first(self, described: CheckpointInfo) -> SchemaInUse:
        """Use the schema of a description unless one is in use already; return the schema in use."""
        with self._lock:
            return self._in_use.setdefault(
                described.checkpoint, SchemaInUse(described.fingerprint, described.feature_names)
            )

    def use(self, checkpoint: str, schema: SchemaInUse) -> None:
        """Use this schema for the later dense calls of a checkpoint."""
        with self._lock:
            self._in_use[checkpoint] = schema

    def seen(self, described: CheckpointInfo) -> None:
        """Store the last description of a checkpoint."""
        self._seen[described.checkpoint] = described

    def action_places(self, checkpoint: str) -> Mapping[str, int]:
        """Places in the catalogue last seen; empty if none was."""
        described = self._seen.get(checkpoint)
        return {action.id: place for place, action in enumerate(described.actions)} if described else {}

    def action_factors(self, checkpoint: str, action: str) -> Mapping[str, str]:
        """Return the factors of an action in the last described catalogue; empty if it is not listed."""
        described = self._seen.get(checkpoint)
        if described is None:
            return {}
        return next((known.factors for known in described.actions if known.id == action), {})


def describe_change(old: SchemaInUse, new: CheckpointInfo) -> str:
    """Return the difference of the schemas in one line."""
    text = f"the values follow schema {old.fingerprint:016x}, the server now serves {new.fingerprint:016x}"
    if old.names is None:
        return text
    gone = [name for name in old.names if name not in new.feature_names]
    added = [name for name in new.feature_names if name not in old.names]
    if gone or added:
        changes = [f"without {_listed(gone)}"] * bool(gone) + [f"with {_listed(added)}"] * bool(added)
        return f"{text}: {' and '.join(changes)}"
    if old.names != new.feature_names:
        place = next(i for i, name in enumerate(old.names) if new.feature_names[i] != name)
        return f'{text}: another order, from position {place} ("{old.names[place]}" is now elsewhere)'
    return f"{text}: the same names in the same order with other types, categories or limits"


def _listed(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
