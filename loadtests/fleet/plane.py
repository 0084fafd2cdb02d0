"""A data plane that answers no requests and keeps the contract of the real one towards the control plane."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scorer.config import CheckpointSettings
from scorer.control.dataplane import Addresses, LoadFor
from scorer.control.lanes import LaneTable
from scorer.errors import SwapError


class SimulatedPlane:
    """Loads and swaps nothing but names.

    Args:
        swapped: Called with the digests of the answer lanes by checkpoint after each change of lanes.

    Attributes:
        slow: Seconds that every load takes.
    """

    def __init__(self, swapped: Callable[[Mapping[str, list[str]]], None]) -> None:
        self.slow = 0.0
        self._swapped = swapped
        self._loaded: set[str] = set()
        self._version = 0

    def load(self, path: Path, digest: str, wanted: LoadFor | None = None) -> Mapping[str, Any]:
        """Keep the digest of a bundle; see `scorer.control.dataplane.DataPlane` for all methods."""
        time.sleep(self.slow)
        self._loaded.add(digest)
        return {"name": path.name, "load_ms": 0.0, "bytes": 0}

    def swap(self, table: LaneTable, previous: Mapping[str, str] | None = None) -> None:
        """Activate a table."""
        if missing := table.bundles() - self._loaded:
            raise SwapError(f"not loaded: {sorted(missing)}; load them first")
        if table.version < self._version:
            raise SwapError(f"version {table.version} is older than {self._version}; read the status")
        self._version = table.version
        self._swapped({name: [lane.bundle for lane in lanes] for name, lanes in table.checkpoints.items()})

    def add_checkpoint(self, name: str, settings: CheckpointSettings) -> None:
        """Accept every checkpoint."""

    def unload(self, digest: str) -> None:
        """Forget a bundle."""
        self._loaded.discard(digest)

    def note_registry(self, reachable: bool, last_seen_ms: int) -> None:
        """Ignore the state of the registry."""

    def note_quarantined(self, bundles: int) -> None:
        """Ignore the quarantine."""

    def status(self) -> Mapping[str, Any]:
        """Return the loaded bundles, each with a closed breaker."""
        return {"bundles": [{"digest": one, "decisions": 0, "breaker": "closed"} for one in self._loaded]}

    def events(self) -> Sequence[str]:
        """Return no events."""
        return ()

    def operator(self, pem: bytes, token: str | None) -> Mapping[str, str]:
        """Accept every caller."""
        return {"principal": "spiffe://fleet.internal/platform"}

    def addresses(self) -> Addresses:
        """Return no address: no request is answered."""
        return Addresses((), None)

    def drain(self, seconds: float) -> None:
        """Have nothing to drain."""
