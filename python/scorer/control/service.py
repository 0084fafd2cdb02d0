"""The gRPC service ``scorer.v1.ControlService``, which calls the controller."""

from __future__ import annotations

import asyncio
import functools
import os
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict

from scorer.config.identity import TlsSettings
from scorer.control import added
from scorer.control.controller import Controller
from scorer.control.lanes import LIVE, Lane, Lanes
from scorer.control.management import BreakGlass, Caller
from scorer.control.operators import NotOperatorError, principal_of
from scorer.control.tls import ControlTls
from scorer.control.vetting import VettingError
from scorer.control.watcher import Watcher
from scorer.errors import (
    AmbiguousReferenceError,
    BundleError,
    CheckpointExistsError,
    ConfigError,
    ControlUnavailableError,
    FeatureStoreError,
    InvalidLanesError,
    InvalidReferenceError,
    LoadError,
    ManagedCheckpointError,
    NothingToRestoreError,
    RegistryError,
    RegistryUnavailableError,
    ScorerError,
    ServerError,
    StaleLaneTableError,
    SwapError,
    UnknownCheckpointError,
    UnknownReferenceError,
)
from scorer.events import PRINCIPAL
from scorer.v1 import control_pb2 as pb
from scorer.v1 import control_pb2_grpc

_STATUS: tuple[tuple[type[ScorerError], grpc.StatusCode], ...] = (
    (UnknownCheckpointError, grpc.StatusCode.NOT_FOUND),
    (UnknownReferenceError, grpc.StatusCode.NOT_FOUND),
    (CheckpointExistsError, grpc.StatusCode.ALREADY_EXISTS),
    (ConfigError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidLanesError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidReferenceError, grpc.StatusCode.INVALID_ARGUMENT),
    (AmbiguousReferenceError, grpc.StatusCode.INVALID_ARGUMENT),
    (RegistryUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (ControlUnavailableError, grpc.StatusCode.UNAVAILABLE),
    (NothingToRestoreError, grpc.StatusCode.FAILED_PRECONDITION),
    (ManagedCheckpointError, grpc.StatusCode.FAILED_PRECONDITION),
    (StaleLaneTableError, grpc.StatusCode.ABORTED),
    (RegistryError, grpc.StatusCode.FAILED_PRECONDITION),
    (FeatureStoreError, grpc.StatusCode.FAILED_PRECONDITION),
    (BundleError, grpc.StatusCode.FAILED_PRECONDITION),
    (LoadError, grpc.StatusCode.FAILED_PRECONDITION),
    (SwapError, grpc.StatusCode.FAILED_PRECONDITION),
    (VettingError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ServerError, grpc.StatusCode.UNAVAILABLE),
)


def status_of(error: ScorerError) -> grpc.StatusCode:
    """Return the gRPC status of an error: that of the first class in the table which it is an instance of."""
    return next((code for kind, code in _STATUS if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


_READING = frozenset({"GetStatus", "ListLanes"})

Request = TypeVar("Request")
Response = TypeVar("Response")
Method = Callable[["ControlService", Request, Any], Awaitable[Response]]


def _answered(method: Method[Request, Response]) -> Method[Request, Response]:
    """Identify the caller, and convert errors to statuses.

    Errors of scorer are returned with their message. Other errors are logged under an id, which is returned.
    """

    @functools.wraps(method)
    async def wrapper(self: ControlService, request: Request, context: Any) -> Response:
        try:
            self.identify(context)
            response = await method(self, request, context)
            self.note_change(method.__name__, "OK")
        except NotOperatorError as error:
            code, message = error.code, str(error)
        except ScorerError as error:
            code, message = status_of(error), str(error)
        except OSError as error:
            code = grpc.StatusCode.FAILED_PRECONDITION
            message = (
                f"the state directory cannot be written: {error.strerror or error}; free space and try again"
            )
        except Exception as error:
            identifier = uuid.uuid4().hex
            self.controller.events.defect("control_failed", error, id=identifier)
            code = grpc.StatusCode.INTERNAL
            message = f"internal error, id {identifier}; the server's log has the details under this id"
        else:
            return response
        self.note_change(method.__name__, code.name)
        await context.abort(code, message)
        raise AssertionError  # abort raises

    return wrapper


class ControlService(control_pb2_grpc.ControlServiceServicer):
    """Converts between gRPC messages and calls of the controller.

    Args:
        controller: The controller.
        watcher: The watcher of the registry, for the status.
        version: Version of scorer.
        build_profile: Build profile of the extension.
        started_at_ms: Start of the process in milliseconds since the Unix epoch.

    Attributes:
        ready_after_ms: Time from the start until the server was ready, in milliseconds.
    """

    def __init__(
        self,
        controller: Controller,
        watcher: Watcher,
        *,
        version: str,
        build_profile: str,
        started_at_ms: int,
    ) -> None:
        self.controller = controller
        self.watcher = watcher
        self.ready_after_ms = 0.0
        self._version = version
        self._build_profile = build_profile
        self._started_at_ms = started_at_ms

    def identify(self, context: Any) -> None:
        """Determine the principal of a call and store it for the log, if the settings contain grants.

        Raises:
            NotOperatorError: The caller may not operate this server.
        """
        PRINCIPAL.set(None)
        if self.controller.settings.identity.enabled:
            PRINCIPAL.set(principal_of(self.controller.plane, context))

    def note_change(self, method: str, code: str) -> None:
        """Log a call of an authenticated caller to a method that changes the server, whatever its result."""
        if PRINCIPAL.get() is not None and method not in _READING:
            self.controller.events.info("control_call", method=method, code=code)

    @_answered
    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:  # noqa: N802
        """Return versions, lanes, bundles, rejections, and the state of registry, log and observers."""
        controller, watcher = self.controller, self.watcher
        status = controller.plane.status()
        addresses = controller.plane.addresses()
        log: Mapping[str, Any] = status.get("log") or {}
        return pb.GetStatusResponse(
            version=self._version,
            build_profile=self._build_profile,
            started_at_ms=self._started_at_ms,
            ready_after_ms=self.ready_after_ms,
            state=self._state(),
            lane_table=controller.table.version,
            checkpoints=self._checkpoints(),
            bundles=self._bundles(status),
            lists=self._lists(status),
            feature_store=_feature_store(status),
            rejections=[
                pb.Rejection(at_ms=r.at_ms, checkpoint=r.checkpoint, bundle=r.bundle, reason=r.reason)
                for r in watcher.rejections.values()
            ],
            registry=pb.RegistryStatus(
                location=controller.source.location,
                reachable=watcher.reachable,
                error=watcher.error,
                last_seen_ms=watcher.last_seen_ms,
            ),
            log=pb.LogStatus(
                directory=str(controller.settings.log.dir or ""),
                state="off" if controller.settings.log.dir is None else str(log.get("state", "unavailable")),
                error=str(log.get("error") or ""),
                next_sequence=int(log.get("next_sequence") or 0),
                unsynced_bytes=int(log.get("unsynced_bytes") or 0),
                dropped=int(log.get("dropped") or 0),
            ),
            resident_bytes=resident_bytes(),
            addresses=addresses.grpc,
            observers=[
                ParseDict(dict(entry), pb.ObserverStatus(), ignore_unknown_fields=True)
                for entry in status.get("observers") or ()
            ],
            role=controller.role,
            quarantine=[
                pb.QuarantinedBundle(digest=digest, at_ms=entry.at_ms, by=entry.by, reason=entry.reason)
                for digest, entry in controller.vetting.quarantine.items()
            ],
            pool=None
            if not status.get("pool")
            else ParseDict(dict(status["pool"]), pb.PoolStatus(), ignore_unknown_fields=True),
        )

    @_answered
    async def ListLanes(self, request: pb.ListLanesRequest, context: Any) -> pb.ListLanesResponse:  # noqa: N802
        """Return the active lane table."""
        return pb.ListLanesResponse(lane_table=self.controller.table.version, checkpoints=self._checkpoints())

    @_answered
    async def SetLanes(self, request: pb.SetLanesRequest, context: Any) -> pb.SetLanesResponse:  # noqa: N802
        """Replace the lanes of one checkpoint."""
        changed = await self.controller.set_lanes(
            request.checkpoint,
            [*map(_lane, request.lanes)],
            reason=request.reason,
            allow_slower=request.allow_slower,
            allow_rollback=request.allow_rollback,
            expected=_expected(request),
            caller=_caller(request.platform, request.break_glass, request.by),
        )
        return pb.SetLanesResponse(lane_table=changed.version)

    @_answered
    async def SetObservers(  # noqa: N802
        self, request: pb.SetObserversRequest, context: Any
    ) -> pb.SetObserversResponse:
        """Replace the observe lanes of one checkpoint."""
        changed = await self.controller.set_observers(
            request.checkpoint,
            [*map(_lane, request.lanes)],
            reason=request.reason,
            expected=_expected(request),
        )
        return pb.SetObserversResponse(lane_table=changed.version)

    @_answered
    async def Swap(self, request: pb.SwapRequest, context: Any) -> pb.SwapResponse:  # noqa: N802
        """Route all requests of a checkpoint to one bundle."""
        changed = await self.controller.set_lanes(
            request.checkpoint,
            [Lane(LIVE, request.bundle, 1.0)],
            reason=request.reason,
            cause="swap",
            allow_slower=request.allow_slower,
            allow_rollback=request.allow_rollback,
            expected=_expected(request),
            caller=_caller("", request.break_glass, request.by),
        )
        (lane,) = self.controller.table.checkpoints[request.checkpoint]
        return pb.SwapResponse(
            lane_table=changed.version,
            bundle=lane.bundle,
            previous_bundle=changed.previous[0].bundle if len(changed.previous) == 1 else "",
            load_ms=changed.load_ms,
        )

    @_answered
    async def Rollback(self, request: pb.RollbackRequest, context: Any) -> pb.RollbackResponse:  # noqa: N802
        """Restore the lanes before the current ones."""
        changed = await self.controller.rollback(
            request.checkpoint,
            reason=request.reason,
            expected=_expected(request),
            caller=_caller("", request.break_glass, request.by),
        )
        return pb.RollbackResponse(lane_table=changed.version)

    @_answered
    async def SetManagement(  # noqa: N802
        self, request: pb.SetManagementRequest, context: Any
    ) -> pb.SetManagementResponse:
        """Mark a checkpoint as managed by a platform, or end its management."""
        if not request.platform and not request.release:
            raise InvalidLanesError("platform is empty; name the platform, or set release")
        version = await self.controller.manage(
            request.checkpoint,
            "" if request.release else request.platform,
            caller=_caller(request.platform, request.break_glass, request.by),
            reason=request.reason,
        )
        return pb.SetManagementResponse(lane_table=version)

    @_answered
    async def AddCheckpoint(  # noqa: N802
        self, request: pb.AddCheckpointRequest, context: Any
    ) -> pb.AddCheckpointResponse:
        """Add a checkpoint to those of the server's settings."""
        settings = added.read(request.checkpoint, request.settings, role=self.controller.role)
        version, is_new = await self.controller.add_checkpoint(
            request.checkpoint, settings, by=_name(request.by), reason=request.reason
        )
        self.watcher.wake()
        return pb.AddCheckpointResponse(lane_table=version, added=is_new)

    @_answered
    async def RemoveCheckpoint(  # noqa: N802
        self, request: pb.RemoveCheckpointRequest, context: Any
    ) -> pb.RemoveCheckpointResponse:
        """End all lanes of a checkpoint that was added, so that the next start does not add it again."""
        version = await self.controller.remove_checkpoint(
            request.checkpoint,
            caller=_caller(request.platform, request.break_glass, request.by),
            reason=request.reason,
        )
        return pb.RemoveCheckpointResponse(lane_table=version)

    @_answered
    async def SetQuarantine(  # noqa: N802
        self, request: pb.SetQuarantineRequest, context: Any
    ) -> pb.SetQuarantineResponse:
        """Put a bundle into quarantine, or lift its quarantine."""
        digest = await self.controller.quarantine.digest_of(request.bundle)
        answering: tuple[str, ...] = ()
        if request.remove:
            await self.controller.quarantine.lift(digest, by=_name(request.by), reason=request.reason)
        else:
            answering = await self.controller.quarantine.add(
                digest, by=_name(request.by), reason=request.reason
            )
        return pb.SetQuarantineResponse(
            digest=digest, lane_table=self.controller.table.version, answering=answering
        )

    @_answered
    async def ForgetEntity(  # noqa: N802
        self, request: pb.ForgetEntityRequest, context: Any
    ) -> pb.ForgetEntityResponse:
        """Remove an entity from the store of computed features. Its key is in no event and no message."""
        forgotten = await asyncio.to_thread(self.controller.plane.forget_entity, request.entity, request.key)
        self.controller.events.warning(
            "feature_entity_forgotten",
            entity=request.entity,
            known=forgotten["known"],
            by=_name(request.by),
            reason=request.reason,
        )
        return pb.ForgetEntityResponse(known=forgotten["known"], pending=forgotten["pending"])

    def _state(self) -> str:
        if self.controller.is_draining:
            return "DRAINING"
        return "SERVING" if self.controller.is_ready() else "NOT_SERVING"

    def _checkpoints(self) -> list[pb.CheckpointLanes]:
        controller = self.controller
        return [
            pb.CheckpointLanes(
                checkpoint=name,
                kind=controller.settings.checkpoints[name].kind,
                lanes=_messages(lanes),
                following=self._following(name),
                observers=_messages(controller.table.observe.get(name, ())),
                managed_by=controller.managed.get(name, ""),
                drift=self.watcher.drifts.get(name, ""),
                break_glass=_break_glass(controller.break_glass.get(name)),
            )
            for name, lanes in controller.table.checkpoints.items()
        ]

    def _following(self, checkpoint: str) -> str:
        following = self.controller.following[checkpoint]
        is_followed = (
            not following.pinned
            and self.controller.role == "live"
            and checkpoint not in self.controller.managed
        )
        return following.alias if is_followed else ""

    def _lists(self, status: Mapping[str, Any]) -> list[pb.ListStatus]:
        refused = self.controller.lists.refused
        found = []
        for one in status.get("lists") or ():
            message = ParseDict(dict(one), pb.ListStatus(), ignore_unknown_fields=True)
            message.error = refused[message.name].reason if message.name in refused else ""
            found.append(message)
        return found

    def _bundles(self, status: Mapping[str, Any]) -> list[pb.BundleStatus]:
        live = self.controller.table.bundles()
        counted = {str(entry.get("digest")): entry for entry in status.get("bundles", ())}
        return [
            pb.BundleStatus(
                digest=digest,
                name=str(report.get("name", "")),
                load_ms=float(report.get("load_ms", 0.0)),
                bytes=int(report.get("bytes", 0)),
                decisions=int(counted.get(digest, {}).get("decisions", 0)),
                live=digest in live,
                release=int((report.get("signed") or {}).get("release", 0)),
                signed_by=str((report.get("signed") or {}).get("key", "")),
                breaker=str(counted.get(digest, {}).get("breaker", "")),
                nodes=[pb.NodeStatus(**node) for node in counted.get(digest, {}).get("nodes", ())],
            )
            for digest, report in self.controller.load_reports.items()
        ]


def _caller(platform: str, break_glass: bool, by: str) -> Caller:
    """Return the origin of a change. The user is the authenticated principal, followed by the stated name."""
    return Caller(platform, break_glass, _name(by))


def _name(by: str) -> str:
    principal = PRINCIPAL.get()
    if principal is None:
        return by
    return f"{principal} ({by})" if by else principal


def _lane(lane: pb.Lane) -> Lane:
    return Lane(lane.name, lane.bundle, lane.share, lane.sample, lane.filter, lane.pool)


def _expected(
    request: pb.SetLanesRequest | pb.SetObserversRequest | pb.SwapRequest | pb.RollbackRequest,
) -> int | None:
    return request.expected_lane_table if request.HasField("expected_lane_table") else None


def _break_glass(found: BreakGlass | None) -> pb.BreakGlass | None:
    if found is None:
        return None
    return pb.BreakGlass(at_ms=found.at_ms, by=found.by, reason=found.reason, lane_table=found.lane_table)


def _messages(lanes: Lanes) -> list[pb.Lane]:
    return [
        pb.Lane(
            name=lane.name,
            bundle=lane.bundle,
            share=lane.share,
            sample=lane.sample,
            filter=lane.filter,
            pool=lane.pool,
        )
        for lane in lanes
    ]


async def start(
    service: ControlService, address: str, tls: TlsSettings | None = None
) -> tuple[grpc.aio.Server, str]:
    """Bind the control listener and start serving.

    Args:
        service: The service.
        address: host:port; port 0 lets the system choose a port.
        tls: Settings of TLS. The listener uses TLS only if clients can present certificates.

    Returns:
        The server, and its address with the actual port.

    Raises:
        ServerError: The address is in use or not of this machine.
        ConfigError: The certificates cannot be used.
    """
    # With SO_REUSEPORT, the default, two processes could share the port, and calls would reach either.
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    control_pb2_grpc.add_ControlServiceServicer_to_server(service, server)
    try:
        if tls is not None and tls.knows_clients:
            credentials = ControlTls(tls, service.controller.events).credentials()
            port = server.add_secure_port(address, credentials)
        else:
            port = server.add_insecure_port(address)
    except RuntimeError:
        port = 0
    if port == 0:
        raise ServerError(
            f"control_listen {address}: the address is in use or not of this machine; "
            "stop the process that holds it or use another (port 0 lets the system choose)"
        )
    await server.start()
    return server, f"{address.rpartition(':')[0]}:{port}"


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 if /proc does not provide it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _feature_store(status: Mapping[str, Any]) -> pb.FeatureStoreStatus | None:
    """Return the status of the store of computed features; None if there is none."""
    store = status.get("feature_store")
    return (
        None if store is None else ParseDict(dict(store), pb.FeatureStoreStatus(), ignore_unknown_fields=True)
    )
