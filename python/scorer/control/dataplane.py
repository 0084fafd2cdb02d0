"""Interface to the Rust data plane, which exchanges JSON. It is never called per request."""

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

from scorer.config import CheckpointSettings, Settings
from scorer.config.features import feature_config
from scorer.config.identity import client_tls_config, identity_config, tls_config
from scorer.config.tracing import tracing_config
from scorer.control.lanes import LaneTable
from scorer.features import feature_definition


@dataclass(frozen=True, slots=True)
class Addresses:
    """Addresses that the data plane listens on, with the actual port in place of port 0."""

    grpc: tuple[str, ...]
    metrics: str | None


@dataclass(frozen=True, slots=True)
class LoadFor:
    """Purpose of a load, and the times from which its duration is measured."""

    checkpoint: str | None = None
    """Checkpoint whose SLA and live bundle the warm-up is compared with; None: it is not compared."""
    changed_at_us: int | None = None
    """Time at which the alias was moved, in microseconds since the Unix epoch."""
    noticed_at_us: int | None = None
    """Time at which this server detected the move, in microseconds since the Unix epoch."""
    fetch_us: int = 0
    """Duration of the copy, in microseconds."""
    allow_slower: bool = False
    """Whether to accept a bundle that is slower than `warmup_max_ratio` allows."""
    name: str | None = None
    """The bundle name that its signature must state; None: any."""
    floors: Mapping[str, int] = field(default_factory=dict)
    """The lowest accepted release by bundle name."""
    known: bool = False
    """Whether this server has served the bundle before. Its key may have expired since."""


class DataPlane(Protocol):
    """Calls of the control plane to the data plane. They block, and none of them holds the GIL."""

    def load(self, path: Path, digest: str, wanted: LoadFor | None = None) -> Mapping[str, Any]:
        """Read, verify and warm up a bundle, and keep it in memory.

        Raises:
            LoadError: The bundle was rejected. The active lanes stay unchanged.
        """

    def load_list(
        self, path: Path, digest: str, name: str, minimum_version: int = 0, *, known: bool = False
    ) -> Mapping[str, Any]:
        """Load a version of an external list and use it for all bundles that declare the list.

        Args:
            path: Directory of the version.
            digest: Digest that the version must have.
            name: Name of the list.
            minimum_version: Older versions are refused.
            known: Whether this server has used the version before. Its key may have expired since.

        Returns:
            The report, among others with `version` and `already_loaded`.

        Raises:
            LoadError: The version is refused. The one before it stays in use.
        """

    def note_list_copy_failed(self, name: str) -> None:
        """Count a version of an external list that could not be copied."""

    def swap(self, table: LaneTable, previous: Mapping[str, str] | None = None) -> None:
        """Activate a lane table for all new requests.

        Args:
            table: The lane table.
            previous: Digest of the previous bundle by checkpoint.

        Raises:
            SwapError: The table was rejected. The active lanes stay unchanged.
        """

    def add_checkpoint(self, name: str, settings: CheckpointSettings) -> None:
        """Add a checkpoint, which has no lanes yet. The same again has no effect.

        Raises:
            ConfigError: The settings are not valid, or a checkpoint of this name has others.
        """

    def unload(self, digest: str) -> None:
        """Unload a bundle that no lane table contains."""

    def note_registry(self, reachable: bool, last_seen_ms: int) -> None:
        """Set the metrics of whether the registry is reachable, and when it was read last."""

    def forget_entity(self, entity: str, key: str) -> Mapping[str, Any]:
        """Remove an entity from the store of computed features, and wait until this is on stable storage.

        Args:
            entity: Name of the entity, such as `card`.
            key: The key, as requests and events state it.

        Returns:
            `known`: whether it had state; `pending`: number of erasures whose keys are still in files.

        Raises:
            ConfigError: No feature set has such entities, or the key breaks a rule.
            FeatureStoreError: The server has no store, or the erasure is not on stable storage.
        """

    def note_quarantined(self, bundles: int) -> None:
        """Set the metric of the number of bundles in quarantine."""

    def status(self) -> Mapping[str, Any]:
        """Return counters and states of the data plane."""

    def events(self) -> Sequence[str]:
        """Return the events since the last call, as JSON lines."""

    def operator(self, pem: bytes, token: str | None) -> Mapping[str, str]:
        """Return who makes a control call with this certificate chain or bearer token.

        Returns:
            `principal`, or `code` and `error` of a caller that may not operate the server.
        """

    def addresses(self) -> Addresses:
        """Return the addresses that the data plane listens on."""

    def drain(self, seconds: float) -> None:
        """Stop accepting requests, answer those in flight, and seal the log. The call is idempotent."""


class NativeDataPlane:
    """The data plane in this process. After construction, it listens and reports NOT_SERVING.

    In a forked child, every call raises `ForkedProcessError`, because the threads exist only in the parent.
    """

    def __init__(self, settings: Settings) -> None:
        from scorer import bridge  # the extension is loaded when a server starts, not before

        self._pid = os.getpid()
        self._in_pool = settings.server.role == "shadow"
        self._server = bridge.Server(json.dumps(server_config(settings)))
        # The runtime's threads are joined before the interpreter shuts down.
        atexit.register(_drain_if_alive, weakref.ref(self))

    def load(self, path: Path, digest: str, wanted: LoadFor | None = None) -> Mapping[str, Any]:
        """Implement `DataPlane.load` with the extension."""
        wanted_json = json.dumps(asdict(wanted or LoadFor()))
        report: Mapping[str, Any] = json.loads(self._server.load(str(path), digest, wanted_json))
        return report

    def load_list(
        self, path: Path, digest: str, name: str, minimum_version: int = 0, *, known: bool = False
    ) -> Mapping[str, Any]:
        """Implement `DataPlane.load_list` with the extension."""
        report: Mapping[str, Any] = json.loads(
            self._server.load_list(str(path), digest, name, minimum_version, known)
        )
        return report

    def note_list_copy_failed(self, name: str) -> None:
        """Implement `DataPlane.note_list_copy_failed` with the extension."""
        self._server.note_list_copy_failed(name)

    def swap(self, table: LaneTable, previous: Mapping[str, str] | None = None) -> None:
        """Implement `DataPlane.swap` with the extension."""
        self._server.swap(
            json.dumps({**table.to_dict(in_pool=self._in_pool), "previous": dict(previous or {})})
        )

    def add_checkpoint(self, name: str, settings: CheckpointSettings) -> None:
        """Implement `DataPlane.add_checkpoint` with the extension."""
        self._server.add_checkpoint(name, json.dumps(_checkpoint_config(settings)))

    def unload(self, digest: str) -> None:
        """Implement `DataPlane.unload` with the extension."""
        self._server.unload(digest)

    def note_registry(self, reachable: bool, last_seen_ms: int) -> None:
        """Implement `DataPlane.note_registry` with the extension."""
        self._server.note_registry(reachable, last_seen_ms)

    def forget_entity(self, entity: str, key: str) -> Mapping[str, Any]:
        """Implement `DataPlane.forget_entity` with the extension."""
        forgotten: Mapping[str, Any] = json.loads(self._server.forget_entity(entity, key))
        return forgotten

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
    """Convert the settings to the configuration of the data plane."""
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
        "connections_per_second_per_peer": server.connections_per_second_per_peer,
        "misuse_pause_seconds": server.misuse_pause_seconds,
        "trusted_networks": server.trusted_networks,
        "max_inflight": server.max_inflight,
        "max_inflight_per_peer": server.max_inflight_per_peer,
        "max_inflight_bytes": server.max_inflight_bytes,
        "max_inflight_bytes_per_peer": server.max_inflight_bytes_per_peer,
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
        "explain_threads": server.explain_threads,
        "explain_queue": server.explain_queue,
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
        "tracing": tracing_config(settings.tracing, _name(server.listen)),
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
            "features": dict(settings.privacy.features),
            "public_key_file": None
            if settings.privacy.public_key_file is None
            else str(settings.privacy.public_key_file),
        },
        "features": feature_config(settings.features, feature_definition),
        "outcomes": {
            **settings.outcomes.model_dump(),
            "token_keys": None if settings.outcomes.token_keys is None else str(settings.outcomes.token_keys),
        },
        "checkpoints": {
            name: _checkpoint_config(checkpoint) for name, checkpoint in settings.checkpoints.items()
        },
    }


def _checkpoint_config(checkpoint: CheckpointSettings) -> dict[str, Any]:
    return {
        "kind": checkpoint.kind,
        "p99_ms": checkpoint.p99_ms,
        "warmup_max_ratio": checkpoint.warmup_max_ratio,
        "tier": checkpoint.tier,
        "mode": checkpoint.mode,
        "durability": checkpoint.effective_durability,
        "max_batch_rows": checkpoint.max_batch_rows,
        "reasons": checkpoint.reasons,
        "outcomes": {kind: one.model_dump() for kind, one in (checkpoint.outcomes or {}).items()},
        "fallback": checkpoint.fallback and checkpoint.fallback.model_dump(exclude_none=True),
        "caps": checkpoint.caps and checkpoint.caps.model_dump(exclude_none=True),
    }


def _name(listen: str | None) -> str:
    """Return the name of this server in the shadow pool and in traces: its host name and its port."""
    port = "" if listen is None else listen.rpartition(":")[2]
    return socket.gethostname() + (f":{port}" if port not in ("", "0") else "")


def _drain_if_alive(reference: weakref.ref[NativeDataPlane]) -> None:
    plane = reference()
    if plane is not None and plane.owned_here():
        plane.drain(0.0)
