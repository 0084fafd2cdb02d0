"""Conversion of failed calls to a control service to one-line errors with the server and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

import grpc

from scorer import bridge
from scorer.credentials import ClientTls
from scorer.errors import ConfigError
from scorer.release.errors import NotFoundError, PlatformError, RefusedError, UnreachableError
from scorer.release.fleet.members import Member, StaleError

_UNREACHABLE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_FORBIDDEN = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
_REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)
_ERRORS: Mapping[grpc.StatusCode, type[PlatformError]] = {
    grpc.StatusCode.ABORTED: StaleError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
}
_NOT_VERIFIED = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([a-zA-Z ]+)|(Hostname Verification Check failed)")
_CLOSED = re.compile(r"Socket closed|Connection reset|Broken pipe|handshake", re.IGNORECASE)


def failure(
    member: Member, code: grpc.StatusCode, details: str, seconds: float, tls: ClientTls | None
) -> PlatformError:
    """Return the error for a failed call.

    Args:
        member: The server.
        code: Status code of the call.
        details: Message of the status.
        seconds: Deadline of the call in seconds.
        tls: TLS files of the connection; None: plaintext.
    """
    where = f'server "{member.name}" ({member.control})'
    if code in _UNREACHABLE:
        return UnreachableError(f"{where} {_unreachable(code, details, seconds, tls, member.control)}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return RefusedError(f"{where} does not implement this call, because its version is older; upgrade it")
    if code in _REFUSED or code in _FORBIDDEN:
        return RefusedError(f"{where} rejects the request: {details}")
    if code in _ERRORS:
        return _ERRORS[code](f"{where}: {details}")
    return PlatformError(f"{where}: {details} ({code.name})")


def _unreachable(
    code: grpc.StatusCode, details: str, seconds: float, tls: ClientTls | None, address: str
) -> str:
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"has not responded within {seconds:g} s; check whether it is overloaded"
    # The server writes these messages when it stops or cannot reach its registry. Others are gRPC's own.
    if "registry" in details or "stopping" in details:
        return f"reports: {details}"
    reason = None if tls is None else _handshake(details, tls, address)
    return reason or "does not respond; check that `scorer serve` runs there"


def _handshake(details: str, tls: ClientTls, address: str) -> str | None:
    """Return the reason why a TLS handshake failed; None if no server accepted the connection."""
    if match := _NOT_VERIFIED.search(details):
        why = (match[1] or "its name does not match").strip()
        return f"presents a certificate that is not accepted: {why}; replace the certificate, or {tls.ca}"
    if not _CLOSED.search(details):
        return None
    if tls.certificate is None:
        return "closed the connection; it may require a client certificate: set certificate and key"
    # With TLS 1.3, a server rejects a client certificate after the handshake, and gRPC shows no reason.
    if ended := _ended(tls, address):
        return f"closed the connection: {tls.certificate} expired at {ended:%Y-%m-%d %H:%M} UTC; replace it"
    return f"closed the connection; check that its client_ca has issued the certificate {tls.certificate}"


def _ended(tls: ClientTls, address: str) -> datetime | None:
    """Return the time at which the client's certificate expired; None if it is valid or cannot be read."""
    files = {"ca": tls.ca, "certificate": tls.certificate, "key": tls.key, "server_name": tls.server_name}
    texts = {name: None if value is None else str(value) for name, value in files.items()}
    try:
        expires = bridge.check_client_tls(json.dumps(texts), address)
    except ConfigError:
        return None
    if expires is None:
        return None
    ended = datetime.fromtimestamp(expires, UTC)
    return ended if ended <= datetime.now(UTC) else None
