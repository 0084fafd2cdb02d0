"""The door to the Rust data plane: few calls, JSON across, never one per request."""

from __future__ import annotations

import atexit
import json
import os
import socket
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from scorer.config import Settings
from scorer.config.identity import client_tls_config, identity_config, tls_config
from scorer.control.lanes import LaneTable


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the data plane really listens, port 0 resolved."""

    grpc: tuple[str, ...]
    metrics: str | None


@dataclass(frozen=True, slots=True)
class LoadFor:
    """For whom a bundle is loaded, and since when; what the way to its first answer is measured by."""

    checkpoint: str | None = None
    """The warm-up is compared with its SLA and its live bundle; None: with nothing."""
    changed_at_us: int | None = None
    """When the alias was moved, microseconds since the Unix epoch."""
    noticed_at_us: int | None = None
    """When this server saw it."""
    fetch_us: int = 0
    """How long copying took."""
    allow_slower: bool = False
    """Take it although it is slower than `warmup_max_ratio` allows."""
    name: str | None = None
    """The bundle name that its signature must state; None: any."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """By bundle name: the lowest release that is accepted."""
    known: bool = False
    """This server has served it: a key that has expired since is no reason to refuse it."""


class DataPlane(Protocol):
    """What the control plane asks of the data plane. Blocking calls; none of them holds the GIL."""

    def load(self, path: Path, digest: str, wanted: LoadFor | None = None) -> Mapping[str, Any]:
        """Reads, verifies and warms a bundle, and keeps it ready.

        Raises:
            LoadError: With the reason; what is served is not touched.
        """

    def swap(self, table: LaneTable, previous: Mapping[str, str] | None = None) -> None:
        """Serves by this table from the next request on; `previous` names, by checkpoint, the bundle before.

        Raises:
            SwapError: With the reason; the table in force stays.
        """

    def unload(self, digest: str) -> None:
        """Lets go of a bundle that no table names."""

    def note_registry(self, reachable: bool, last_seen_ms: int) -> None:
        """Tells whether the registry could be read, and when it could last, for the metrics."""

    def note_quarantined(self, bundles: int) -> None:
        """Tells how many bundles are in quarantine, for the metrics."""

    def status(self) -> Mapping[str, Any]:
        """Return counters and states of the data plane."""

    def events(self) -> Sequence[str]:
        """What happened since the last call, as JSON lines."""

    def operator(self, pem: bytes, token: str | None) -> Mapping[str, str]:
        """Return who makes a control call with this certificate chain or bearer token.

        Returns:
            `principal`, or `code` and `error` of a caller that may not operate the server.
        """

    def addresses(self) -> Addresses:
        """Return the addresses that the data plane listens on."""

    def drain(self, seconds: float) -> None:
        """Stops taking requests, answers those in flight, seals the log. Idempotent."""


class NativeDataPlane:
    """The data plane in this process. It listens, and answers NOT_SERVING, once this returns.

    In a forked child every call raises `ForkedProcessError`: the threads stayed in the parent.
    """

    def __init__(self, settings: Settings) -> None:
        from scorer import bridge  # the extension is loaded when a server starts, not before

        self._pid = os.getpid()
        self._in_pool = settings.server.role == "shadow"
        self._server = bridge.Server(json.dumps(server_config(settings)))
        # The runtime's threads are joined before the interpreter tears itself down.
        atexit.register(_drain_if_alive, weakref.ref(self))

    def load(self, path: Path, digest: str, wanted: LoadFor | None = None) -> Mapping[str, Any]:
        """Implement `DataPlane.load` with the extension."""
        wanted_json = json.dumps(asdict(wanted or LoadFor()))
        report: Mapping[str, Any] = json.loads(self._server.load(str(path), digest, wanted_json))
        return report

    def swap(self, table: LaneTable, previous: Mapping[str, str] | None = None) -> None:
        """Implement `DataPlane.swap` with the extension."""
        self._server.swap(
            json.dumps({**table.to_dict(in_pool=self._in_pool), "previous": dict(previous or {})})
        )

    def unload(self, digest: str) -> None:
        """Implement `DataPlane.unload` with the extension."""
        self._server.unload(digest)

    def note_registry(self, reachable: bool, last_seen_ms: int) -> None:
        """Implement `DataPlane.note_registry` with the extension."""
        self._server.note_registry(reachable, last_seen_ms)

    def note_quarantined(self, bundles: int) -> None:
        """Implement `DataPlane.note_quarantined` with the extension."""
        self._server.note_quarantined(bundles)

    def status(self) -> Mapping[str, Any]:
        """Implement `DataPlane.status` with the extension."""
        status: Mapping[str, Any] = json.loads(self._server.status())
        return status

    def events(self) -> Sequence[str]:
        """Implement `DataPlane.events` with the extension."""
        events: Sequence[str] = self._server.events()
        return events

    def operator(self, pem: bytes, token: str | None) -> Mapping[str, str]:
        """Implement `DataPlane.operator` with the extension."""
        found: Mapping[str, str] = json.loads(self._server.operator(pem, token))
        return found

    def addresses(self) -> Addresses:
        """Implement `DataPlane.addresses` with the extension."""
        found = json.loads(self._server.addresses())
        return Addresses(tuple(found["grpc"]), found.get("metrics"))

    def drain(self, seconds: float) -> None:
        """Implement `DataPlane.drain` with the extension."""
        self._server.drain(seconds)

    def owned_here(self) -> bool:
        """Whether this is the process that started the server."""
        return os.getpid() == self._pid


def server_config(settings: Settings) -> dict[str, Any]:
    """The settings as the data plane reads them."""
    server, log = settings.server, settings.log
    return {
        "role": server.role,
        "listen": server.listen,
        "uds": None if server.uds is None else str(server.uds),
        "uds_mode": server.uds_mode,
        "metrics_listen": server.metrics_listen,
        "threads": server.threads,
        "max_message_bytes": server.max_message_bytes,
        "max_batch_bytes": server.max_batch_bytes,
        "max_connections": server.max_connections,
        "max_connections_per_peer": server.max_connections_per_peer,
        "max_inflight": server.max_inflight,
        "max_inflight_per_peer": server.max_inflight_per_peer,
        "body_timeout_ms": server.body_timeout_ms,
        "reply_timeout_ms": server.reply_timeout_ms,
        "write_timeout_ms": server.write_timeout_ms,
        "idle_timeout_seconds": server.idle_timeout_seconds,
        "memory_budget_bytes": None if server.memory_budget_mb is None else server.memory_budget_mb << 20,
        "bundles": {
            "trusted_keys": [str(path) for path in settings.bundles.trusted_keys],
            "unsigned": settings.bundles.unsigned,
        },
        "observe_cpu": server.observe_cpu,
        "observe_queue": server.observe_queue,
        "shadow_pool": None
        if server.shadow_pool is None or server.role == "shadow"
        else {
            "address": server.shadow_pool,
            "server": _name(server.listen),
            "queue_bytes": server.shadow_pool_queue_mb << 20,
            "tls": client_tls_config(server.shadow_pool_tls),
        },
        "tls": tls_config(server.tls),
        "identity": identity_config(settings.identity),
        "log": None
        if log.dir is None
        else {
            "dir": str(log.dir),
            "segment_bytes": log.segment_mb << 20,
            "sync_ms": log.sync_ms,
            "queue": log.queue,
            "unsynced_bytes": log.unsynced_mb << 20,
            "retain_seconds": None if log.retain_days is None else round(log.retain_days * 86_400),
            "retain_bytes": None if log.retain_mb is None else log.retain_mb << 20,
            "prune_unshipped": log.prune_unshipped,
            "warn_full_seconds": round(log.warn_full_hours * 3600),
        },
        "privacy": {
            "card_numbers": settings.privacy.card_numbers,
            "entities": settings.privacy.entities,
            "key_file": None if settings.privacy.key_file is None else str(settings.privacy.key_file),
        },
        "outcomes": {
            **settings.outcomes.model_dump(),
            "token_keys": None if settings.outcomes.token_keys is None else str(settings.outcomes.token_keys),
        },
        "checkpoints": {
            name: {
                "kind": checkpoint.kind,
                "p99_ms": checkpoint.p99_ms,
                "warmup_max_ratio": checkpoint.warmup_max_ratio,
                "tier": checkpoint.tier,
                "mode": checkpoint.mode,
                "durability": checkpoint.effective_durability,
                "max_batch_rows": checkpoint.max_batch_rows,
                "outcomes": {kind: one.model_dump() for kind, one in (checkpoint.outcomes or {}).items()},
                "fallback": checkpoint.fallback and checkpoint.fallback.model_dump(exclude_none=True),
                "caps": checkpoint.caps and checkpoint.caps.model_dump(exclude_none=True),
            }
            for name, checkpoint in settings.checkpoints.items()
        },
    }


def _name(listen: str | None) -> str:
    """What the shadow pool calls this server: its machine, and the port where several share one."""
    port = "" if listen is None else listen.rpartition(":")[2]
    return socket.gethostname() + (f":{port}" if port not in ("", "0") else "")


def _drain_if_alive(reference: weakref.ref[NativeDataPlane]) -> None:
    plane = reference()
    if plane is not None and plane.owned_here():
        plane.drain(0.0)
