"""The server's address and the options of the channel to it."""

from __future__ import annotations

import re

from scorer.client.errors import InvalidTargetError

DEFAULT_MAX_MESSAGE_BYTES = 1 << 20
_HOST_PORT = re.compile(r"(?:dns:///)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_REMEDY = 'give "host:port" or "unix:///absolute/path"'


def parse_target(target: str) -> str:
    """Check a target and return it in gRPC's form.

    Without this check, a mistyped target would fail only at the first call, with UNAVAILABLE.

    Args:
        target: "host:port" or "unix:///absolute/path".

    Raises:
        InvalidTargetError: The target has neither form.
    """
    if not isinstance(target, str):
        raise InvalidTargetError(f"target must be a string, not {type(target).__name__}", remedy=_REMEDY)
    if target.startswith("unix:"):
        path = target.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path.startswith("/") or path.startswith("//") or path.endswith("/"):
            raise InvalidTargetError(f"target {target!r} has no absolute socket path", remedy=_REMEDY)
        # The path of a sockaddr_un has 108 bytes, including the terminating NUL.
        if len(path.encode()) > 107:
            raise InvalidTargetError(
                f"the socket path of {len(path.encode())} bytes is longer than the 107 that sockets allow",
                remedy="use a shorter directory",
            )
        return f"unix:{path}"
    if "://" in target and not target.startswith("dns:///"):
        raise InvalidTargetError(f"target {target!r} is a URL", remedy=_REMEDY)
    matched = _HOST_PORT.fullmatch(target)
    if matched is None:
        raise InvalidTargetError(f"target {target!r} is no address", remedy=_REMEDY)
    if not 1 <= int(matched["port"]) <= 65535:
        raise InvalidTargetError(
            f"target {target!r}: port {matched['port']} is not 1 to 65535", remedy=_REMEDY
        )
    return target


def channel_options(address: str, max_message_bytes: int) -> list[tuple[str, int | str]]:
    """Return the channel arguments for gRPC as name-value pairs.

    Args:
        address: An address that `parse_target` returned.
        max_message_bytes: Largest request in bytes.
    """
    # For a Unix socket, gRPC would send the escaped path as the authority, which is not a valid authority by
    # RFC 3986. Strict HTTP/2 servers, including scorer, reset such a stream.
    authority: list[tuple[str, int | str]] = [("grpc.default_authority", "localhost")]
    return [
        *(authority if address.startswith("unix:") else []),
        # A name with several addresses stands for replicas; the default would use only the first available.
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.max_send_message_length", max_message_bytes),
        # The reply to a batch is smaller than its request, but the reply to Describe can be larger.
        ("grpc.max_receive_message_length", max(max_message_bytes, 4 << 20)),
        # Detect a dead connection while it is idle, so that no request has to time out on it.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # By default the wait before a reconnection starts at 1 s and grows to 2 min.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # Despite its name, this option limits the duration of one attempt to connect.
        ("grpc.min_reconnect_backoff_ms", 1_000),
        # Two clients in one process do not share a connection, so neither waits for the other's requests.
        ("grpc.use_local_subchannel_pool", 1),
        # Servers are in the caller's network, so the proxy for external addresses must not be used.
        ("grpc.enable_http_proxy", 0),
    ]
