"""Single decisions, with what every shadow said and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scorer.release.model import Actor


class Decisions:
    """Reads the logs of the fleet."""

    def find(self, actor: Actor, decision_id: str) -> Mapping[str, Any]:
        """`{"decision": {...}, "observations": [...], "outcomes": [...], "features": [{name, value}]}`."""
        raise NotImplementedError

    def recent(self, actor: Actor, checkpoint: str, *, limit: int = 50) -> Sequence[Mapping[str, Any]]:
        """The newest decisions of a checkpoint."""
        raise NotImplementedError
