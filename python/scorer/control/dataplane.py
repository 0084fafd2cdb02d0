"""The door to the Rust data plane: few calls, JSON across, never one per request."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from scorer.config import Settings
from scorer.control.lanes import LaneTable


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the data plane really listens, port 0 resolved."""

    grpc: tuple[str, ...]
    metrics: str | None


class DataPlane(Protocol):
    """What the control plane asks of the data plane. Blocking calls; none of them holds the GIL."""

    def load(self, path: Path, digest: str) -> Mapping[str, Any]:
        """Reads, verifies and warms a bundle, and keeps it ready.

        Raises:
            LoadError: With the reason; what is served is not touched.
        """

    def swap(self, table: LaneTable) -> None:
        """Serves by this table from the next request on.

        Raises:
            SwapError: With the reason; the table in force stays.
        """

    def unload(self, digest: str) -> None:
        """Lets go of a bundle that no table names."""

    def status(self) -> Mapping[str, Any]:
        """Counters and states."""

    def events(self) -> Sequence[str]:
        """What happened since the last call, as JSON lines."""

    def addresses(self) -> Addresses:
        """Where it listens."""

    def drain(self, seconds: float) -> None:
        """Stops taking requests, answers those in flight, seals the log. Idempotent."""


class NativeDataPlane:
    """The data plane in this process. It listens, and answers NOT_SERVING, once this returns.

    In a forked child every call raises `ForkedProcessError`: the threads stayed in the parent.
    """

    def __init__(self, settings: Settings) -> None:
        from scorer import bridge  # the extension is loaded when a server starts, not before

        self._pid = os.getpid()
        self._server = bridge.Server(json.dumps(server_config(settings)))
        # The runtime's threads are joined before the interpreter tears itself down.
        atexit.register(_drain_if_alive, weakref.ref(self))

    def load(self, path: Path, digest: str) -> Mapping[str, Any]:
        """See `DataPlane.load`."""
        report: Mapping[str, Any] = json.loads(self._server.load(str(path), digest))
        return report

    def swap(self, table: LaneTable) -> None:
        """See `DataPlane.swap`."""
        self._server.swap(json.dumps(table.to_dict()))

    def unload(self, digest: str) -> None:
        """See `DataPlane.unload`."""
        self._server.unload(digest)

    def status(self) -> Mapping[str, Any]:
        """See `DataPlane.status`."""
        status: Mapping[str, Any] = json.loads(self._server.status())
        return status

    def events(self) -> Sequence[str]:
        """See `DataPlane.events`."""
        events: Sequence[str] = self._server.events()
        return events

    def addresses(self) -> Addresses:
        """See `DataPlane.addresses`."""
        found = json.loads(self._server.addresses())
        return Addresses(tuple(found["grpc"]), found.get("metrics"))

    def drain(self, seconds: float) -> None:
        """See `DataPlane.drain`."""
        self._server.drain(seconds)

    def owned_here(self) -> bool:
        """Whether this is the process that started the server."""
        return os.getpid() == self._pid


def server_config(settings: Settings) -> dict[str, Any]:
    """The settings as the data plane reads them."""
    server, log = settings.server, settings.log
    return {
        "listen": server.listen,
        "uds": None if server.uds is None else str(server.uds),
        "metrics_listen": server.metrics_listen,
        "threads": server.threads,
        "max_message_bytes": server.max_message_bytes,
        "max_connections": server.max_connections,
        "log": None
        if log.dir is None
        else {
            "dir": str(log.dir),
            "segment_bytes": log.segment_mb << 20,
            "sync_ms": log.sync_ms,
            "queue": log.queue,
        },
        "checkpoints": {
            name: {
                "kind": checkpoint.kind,
                "p99_ms": checkpoint.p99_ms,
                "tier": checkpoint.tier,
                "mode": checkpoint.mode,
                "durability": checkpoint.effective_durability,
                "max_batch_rows": checkpoint.max_batch_rows,
                "fallback": checkpoint.fallback and checkpoint.fallback.model_dump(exclude_none=True),
                "caps": checkpoint.caps and checkpoint.caps.model_dump(exclude_none=True),
            }
            for name, checkpoint in settings.checkpoints.items()
        },
    }


def _drain_if_alive(reference: weakref.ref[NativeDataPlane]) -> None:
    plane = reference()
    if plane is not None and plane.owned_here():
        plane.drain(0.0)
