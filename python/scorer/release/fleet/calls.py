"""Calls to control services: one at a time, each with a deadline, each failure as this project's error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from scorer.credentials import ClientTls, channel
from scorer.errors import ConfigError
from scorer.release.errors import NotFoundError, PlatformError, RefusedError, UnreachableError
from scorer.release.fleet.members import BrokenGlass, CheckpointStatus, Member, MemberStatus, StaleError
from scorer.release.model import LaneSpec
from scorer.v1 import control_pb2 as pb
from scorer.v1 import control_pb2_grpc

STATUS_SECONDS = 2.0
"""A page waits for this."""
CHANGE_SECONDS = 60.0
"""Loading, verifying and warming a large bundle takes seconds."""

_CHANNEL = [
    # A server that comes back is found at once: a default channel waits for up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]
_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_FORBIDDEN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
_AS_SAID: Mapping[grpc.StatusCode, type[PlatformError]] = {
    grpc.StatusCode.ABORTED: StaleError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
}

Response = TypeVar("Response")


class Fleet:
    """Calls one server at a time; a server that does not answer raises UnreachableError.

    Args:
        members: The servers. No connection is made before the first call.
        status_seconds: Longest wait for a status.
        change_seconds: Longest wait for new lanes. One that took longer may have been made all the
            same: every call here may be repeated.
        platform: The name that checkpoints are marked with as managed.
        tls: The platform's certificate, and the authorities that vouch for the servers; None: plaintext.
            Replaced files are used from the next call on.
    """

    def __init__(
        self,
        members: Sequence[Member],
        *,
        status_seconds: float = STATUS_SECONDS,
        change_seconds: float = CHANGE_SECONDS,
        platform: str = "platform",
        tls: ClientTls | None = None,
    ) -> None:
        self.platform = platform
        self._members = tuple(members)
        self._status_seconds = status_seconds
        self._change_seconds = change_seconds
        self._tls = tls
        self._files = None if tls is None else tls.version
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = Lock()

    @property
    def members(self) -> Sequence[Member]:
        """All servers that the platform manages."""
        return self._members

    @property
    def status_seconds(self) -> float:
        """The longest wait for a status."""
        return self._status_seconds

    def status(self, member: Member) -> MemberStatus:
        """Never raises: a server that is away says so."""
        try:
            found = self._call(
                member, lambda stub: stub.GetStatus, pb.GetStatusRequest(), self._status_seconds
            )
        except PlatformError as error:
            return MemberStatus(reachable=False, error=str(error))
        return member_status(found)

    def set_answer(
        self,
        member: Member,
        checkpoint: str,
        lanes: Sequence[LaneSpec],
        *,
        reason: str,
        expected: int | None = None,
    ) -> int:
        """Replace the answer lanes of a checkpoint.

        A server compares the warm-up of a new bundle with its live one's; the platform does not ask for
        that, since gates have judged the bundle's execution under traffic. Nor does it ask that a release be
        newer: which bundle answers was decided by a change request, a rollback among them.

        Args:
            member: The server.
            checkpoint: Where.
            lanes: In place of those there are.
            reason: Kept in the server's log.
            expected: The lane table that this was decided on; None: not compared.

        Returns:
            The server's version of the new table.

        Raises:
            StaleError: The server has another table than `expected` by now.
            UnreachableError: It does not answer.
            PlatformError: It refuses; with its message.
        """
        wanted = [pb.Lane(name=lane.name, bundle=lane.bundle, share=lane.share) for lane in lanes]
        request = pb.SetLanesRequest(
            checkpoint=checkpoint,
            lanes=wanted,
            reason=reason,
            allow_slower=True,
            allow_rollback=True,
            expected_lane_table=expected,
            platform=self.platform,
        )
        return self._call(member, lambda stub: stub.SetLanes, request, self._change_seconds).lane_table

    def set_observers(
        self,
        member: Member,
        checkpoint: str,
        lanes: Sequence[LaneSpec],
        *,
        reason: str,
        expected: int | None = None,
    ) -> int:
        """Replace the observe lanes of a checkpoint; arguments, result and errors as of `set_answer`."""
        wanted = [
            pb.Lane(
                name=lane.name, bundle=lane.bundle, sample=lane.sample, filter=lane.filter, pool=lane.pool
            )
            for lane in lanes
        ]
        request = pb.SetObserversRequest(
            checkpoint=checkpoint, lanes=wanted, reason=reason, expected_lane_table=expected
        )
        return self._call(member, lambda stub: stub.SetObservers, request, self._change_seconds).lane_table

    def manage(self, member: Member, checkpoint: str) -> None:
        """Mark a checkpoint of a server as managed by this platform; errors as of `set_answer`."""
        request = pb.SetManagementRequest(checkpoint=checkpoint, platform=self.platform)
        self._call(member, lambda stub: stub.SetManagement, request, self._status_seconds)

    def close(self) -> None:
        """Closes the channels. A later call opens its own."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for opened in channels:
            opened.close()

    def _stub(self, member: Member) -> control_pb2_grpc.ControlServiceStub:
        with self._lock:
            files = None if self._tls is None else self._tls.version
            if files != self._files:
                # Calls under way end on their channel, which is closed once nothing refers to it.
                self._channels, self._files = {}, files
            opened = self._channels.get(member.control)
            if opened is None:
                opened = channel(member.control, self._tls, _CHANNEL)
                self._channels[member.control] = opened
        return control_pb2_grpc.ControlServiceStub(opened)

    def _call(
        self,
        member: Member,
        method: Callable[[control_pb2_grpc.ControlServiceStub], Callable[..., Response]],
        request: Message,
        seconds: float,
    ) -> Response:
        try:
            return method(self._stub(member))(request, timeout=seconds)
        except grpc.RpcError as error:
            raise _failure(member, error.code(), error.details() or "", seconds) from None
        except ConfigError as error:
            raise UnreachableError(f'server "{member.name}": {error}') from None
        except ValueError as error:
            # A channel that another thread closed.
            raise UnreachableError(f'server "{member.name}": {error}; try again') from None


def _failure(member: Member, code: grpc.StatusCode, details: str, seconds: float) -> PlatformError:
    where = f'server "{member.name}" ({member.control})'
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return UnreachableError(f"{where} has not answered within {seconds:g} s; is it overloaded, or stuck?")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RefusedError(f"{where} does not know this call; it is of an older version: upgrade it")
    if code in _REFUSED or code in _FORBIDDEN:
        return RefusedError(f"{where} refuses: {details}")
    if code in _AS_SAID:
        return _AS_SAID[code](f"{where}: {details}")
    if code in _AWAY:
        # The server itself says so when it stops, or when its registry is away; else gRPC tells of sockets.
        is_own = "registry" in details or "stopping" in details
        return UnreachableError(
            f"{where}: {details}" if is_own else f"{where} does not answer; is `scorer serve` running there?"
        )
    return PlatformError(f"{where}: {details} ({code.name})")


def member_status(found: pb.GetStatusResponse) -> MemberStatus:
    """A status as the platform has it."""
    raw = plain(found)
    return MemberStatus(
        reachable=True,
        state=found.state,
        lane_table=found.lane_table,
        checkpoints={
            entry.checkpoint: CheckpointStatus(
                entry.kind,
                entry.following,
                tuple(LaneSpec(lane.name, lane.bundle, share=lane.share) for lane in entry.lanes),
                tuple(
                    LaneSpec(
                        lane.name,
                        lane.bundle,
                        "observe",
                        sample=lane.sample,
                        filter=lane.filter,
                        pool=lane.pool,
                    )
                    for lane in entry.observers
                ),
                entry.managed_by,
                entry.drift,
                _broken_glass(entry),
            )
            for entry in found.checkpoints
        },
        observers=raw["observers"],
        bundles=raw["bundles"],
        raw=raw,
        role=found.role or "live",
        pool=raw["pool"],
    )


def _broken_glass(entry: pb.CheckpointLanes) -> BrokenGlass | None:
    if not entry.HasField("break_glass"):
        return None
    found = entry.break_glass
    return BrokenGlass(
        datetime.fromtimestamp(found.at_ms / 1000, UTC), found.by, found.reason, found.lane_table
    )


def plain(message: Message) -> dict[str, Any]:
    """Every field of a message by its name, integers as integers; None for a message that is not there."""
    made: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, Message):
            made[field.name] = plain(value) if message.HasField(field.name) else None
        elif isinstance(value, Mapping):
            made[field.name] = dict(value)
        elif isinstance(value, str | bytes | int | float):
            made[field.name] = value
        else:
            made[field.name] = [plain(one) if isinstance(one, Message) else one for one in value]
    return made
