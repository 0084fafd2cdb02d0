"""The server's address and the options of the channel to it."""

from __future__ import annotations

import re

from scorer.client.errors import InvalidTargetError

DEFAULT_MAX_MESSAGE_BYTES = 1 << 20
_HOST_PORT = re.compile(r"(?:dns:///)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_REMEDY = 'give "host:port" or "unix:///absolute/path"'


def parse_target(target: str) -> str:
    """Return the target in gRPC's form, checked, so that a typing error is no UNAVAILABLE later."""
    if not isinstance(target, str):
        raise InvalidTargetError(f"target must be a string, not {type(target).__name__}", remedy=_REMEDY)
    if target.startswith("unix:"):
        path = target.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path.startswith("/") or path.startswith("//") or path.endswith("/"):
            raise InvalidTargetError(f"target {target!r} has no absolute socket path", remedy=_REMEDY)
        # sockaddr_un holds 108 bytes with the closing NUL.
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
    """Return the channel arguments for gRPC as name-value pairs."""
    # For a socket, gRPC would name the escaped path as the authority, which is no authority by
    # RFC 3986: strict HTTP/2 servers, ours among them, reset the stream.
    authority: list[tuple[str, int | str]] = [("grpc.default_authority", "localhost")]
    return [
        *(authority if address.startswith("unix:") else []),
        # A name with several addresses stands for replicas: use them all, not the first that answers.
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.max_send_message_length", max_message_bytes),
        # Replies to the largest batch are smaller than its request, but a description need not be.
        ("grpc.max_receive_message_length", max(max_message_bytes, 4 << 20)),
        # Notice a dead peer while idle, so that the next shopper does not find it out.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The default waits a second before it tries a restarted server again, growing to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        # In spite of its name, what one attempt to connect may take.
        ("grpc.min_reconnect_backoff_ms", 1_000),
        # A connection of one's own: two clients in one process do not queue behind each other.
        ("grpc.use_local_subchannel_pool", 1),
        # A scorer stands beside or near its caller, never behind the proxy for the outside world.
        ("grpc.enable_http_proxy", 0),
    ]
