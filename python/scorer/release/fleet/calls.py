"""Calls to the control services of servers. Each call has a deadline, and each failure is a PlatformError."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from threading import Lock
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from scorer.credentials import ClientTls, channel
from scorer.errors import ConfigError
from scorer.release.errors import PlatformError, UnreachableError
from scorer.release.fleet.failures import failure
from scorer.release.fleet.members import BrokenGlass, CheckpointStatus, Member, MemberStatus
from scorer.release.model import LaneSpec
from scorer.v1 import control_pb2 as pb
from scorer.v1 import control_pb2_grpc

STATUS_SECONDS = 2.0
"""Deadline of a status call in seconds. Pages wait for it."""
CHANGE_SECONDS = 60.0
"""Deadline of a change of lanes in seconds. Loading, verifying and warming a large bundle takes seconds."""

CHANNEL_OPTIONS = [
    # Reconnect within a second of a server's restart. gRPC's default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]
"""Options of connections to servers."""

Response = TypeVar("Response")


class Fleet:
    """Calls the control services of the managed servers.

    All calls are idempotent and may be repeated.

    Args:
        members: The servers. A connection is opened by the first call.
        status_seconds: Deadline of a status call.
        change_seconds: Deadline of a change of lanes. A server may complete a change after the deadline.
        platform: Name of this platform, which marks managed checkpoints.
        tls: The platform's certificate and the authorities of the servers' certificates; None: plaintext.
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

    def replace(self, members: Sequence[Member]) -> None:
        """Replace the servers. Calls in progress complete."""
        self._members = tuple(members)
        present = {member.control for member in members}
        with self._lock:
            # A channel closes when the last call that uses it has ended.
            self._channels = {one: opened for one, opened in self._channels.items() if one in present}

    @property
    def status_seconds(self) -> float:
        """Deadline of a status call in seconds."""
        return self._status_seconds

    def status(self, member: Member) -> MemberStatus:
        """Return the status of a server. For a failed call, the status is not reachable and has the error."""
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

        The request disables two checks of the server. The comparison of warm-up times is not needed, because
        gates have evaluated the bundle's execution time under traffic. A lower release number is allowed,
        because the change request may be a rollback.

        Args:
            member: The server.
            checkpoint: Name of the checkpoint.
            lanes: The new answer lanes, which replace all present ones.
            reason: Reason for the server's log.
            expected: Version of the lane table that the decision is based on; None: not compared.

        Returns:
            The version of the server's new lane table.

        Raises:
            StaleError: The server's lane table is not the expected one any more.
            UnreachableError: The server does not respond.
            PlatformError: The server rejects the lanes, with its message.
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
        """Replace the observe lanes of a checkpoint. See `set_answer` for arguments, result and errors."""
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

    def add_checkpoint(
        self, member: Member, checkpoint: str, settings: Mapping[str, Any], *, by: str, reason: str
    ) -> None:
        """Add a checkpoint to a server, without a restart. The same again has no effect.

        Args:
            member: The server.
            checkpoint: Name of the checkpoint.
            settings: Keys of a table `[checkpoints."NAME"]` of the server's settings file.
            by: Who adds it, for the server's log.
            reason: Reason for the server's log.

        Raises:
            UnreachableError: The server does not respond.
            PlatformError: The server rejects the settings, or has the checkpoint with others.
        """
        request = pb.AddCheckpointRequest(
            checkpoint=checkpoint, settings=json.dumps(dict(settings)), by=by, reason=reason
        )
        self._call(member, lambda stub: stub.AddCheckpoint, request, self._status_seconds)

    def manage(self, member: Member, checkpoint: str) -> None:
        """Mark a checkpoint of a server as managed by this platform. Errors are those of `set_answer`."""
        request = pb.SetManagementRequest(checkpoint=checkpoint, platform=self.platform)
        self._call(member, lambda stub: stub.SetManagement, request, self._status_seconds)

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for opened in channels:
            opened.close()

    def _stub(self, member: Member) -> control_pb2_grpc.ControlServiceStub:
        with self._lock:
            files = None if self._tls is None else self._tls.version
            if files != self._files:
                # Active calls complete on their channel, which closes when its last reference is dropped.
                self._channels, self._files = {}, files
            opened = self._channels.get(member.control)
            if opened is None:
                opened = channel(member.control, self._tls, CHANNEL_OPTIONS)
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
            raise failure(member, error.code(), error.details() or "", seconds, self._tls) from None
        except ConfigError as error:
            raise UnreachableError(f'server "{member.name}": {error}') from None
        except ValueError as error:
            # Another thread has closed the channel.
            raise UnreachableError(f'server "{member.name}": {error}; try again') from None


def member_status(found: pb.GetStatusResponse) -> MemberStatus:
    """Convert a server's response to a `MemberStatus`."""
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
    """Convert a message to a dictionary by field name; an unset message is None, integers stay integers."""
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if isinstance(value, Message):
            values[field.name] = plain(value) if message.HasField(field.name) else None
        elif isinstance(value, Mapping):
            values[field.name] = dict(value)
        elif isinstance(value, str | bytes | int | float):
            values[field.name] = value
        else:
            values[field.name] = [plain(item) if isinstance(item, Message) else item for item in value]
    return values
