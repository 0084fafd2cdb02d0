"""Calls of `ReportOutcome` at the scoring services of servers."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock

import grpc

from scorer.credentials import ClientTls, channel
from scorer.errors import ConfigError
from scorer.release.errors import ConflictError, UnreachableError
from scorer.release.fleet.calls import CHANNEL_OPTIONS
from scorer.release.fleet.failures import failure
from scorer.release.fleet.members import Member
from scorer.v1 import scoring_pb2 as pb
from scorer.v1.scoring_pb2_grpc import ScoringServiceStub

_SECONDS = 5.0
_CHANNELS = 256
"""Limit on the open connections."""


@dataclass(frozen=True, slots=True)
class ScoringAddress:
    """The scoring service of a server, or of a balancer."""

    name: str
    address: str
    """`host:port`."""


class OutcomeCalls:
    """Reports outcomes to servers. A repeated report has no further effect.

    Args:
        tls: The platform's certificate and the authorities of the servers' certificates; None: plaintext.
            Replaced files are used from the next call on.
        seconds: Deadline of a call.
    """

    def __init__(self, tls: ClientTls | None = None, *, seconds: float = _SECONDS) -> None:
        self._tls, self._seconds = tls, seconds
        self._files = None if tls is None else tls.version
        self._channels: dict[str, grpc.Channel] = {}
        self._lock = Lock()

    def report(self, to: ScoringAddress, request: pb.ReportOutcomeRequest) -> pb.ReportOutcomeResponse:
        """Report one outcome.

        Args:
            to: The server.
            request: The outcome.

        Raises:
            ConflictError: The server has the same revision with another value.
            NotFoundError: The server does not have the checkpoint.
            UnreachableError: The server does not respond.
            PlatformError: The server rejects the outcome, with its message.
        """
        member = Member(to.name, to.address)
        try:
            response: pb.ReportOutcomeResponse = self._stub(to.address).ReportOutcome(
                request, timeout=self._seconds
            )
        except grpc.RpcError as error:
            details = error.details() or ""
            if error.code() is grpc.StatusCode.ALREADY_EXISTS:
                raise ConflictError(f'server "{to.name}" ({to.address}): {details}') from None
            raise failure(member, error.code(), details, self._seconds, self._tls) from None
        except (ConfigError, ValueError) as error:
            # A certificate cannot be read, or another thread has closed the channel.
            raise UnreachableError(f'server "{to.name}": {error}') from None
        return response

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        with self._lock:
            channels, self._channels = list(self._channels.values()), {}
        for opened in channels:
            opened.close()

    def _stub(self, address: str) -> ScoringServiceStub:
        with self._lock:
            files = None if self._tls is None else self._tls.version
            if files != self._files or len(self._channels) >= _CHANNELS:
                # A channel closes when the last call that uses it has ended.
                self._channels, self._files = {}, files
            opened = self._channels.get(address)
            if opened is None:
                opened = channel(address, self._tls, CHANNEL_OPTIONS)
                self._channels[address] = opened
        return ScoringServiceStub(opened)
