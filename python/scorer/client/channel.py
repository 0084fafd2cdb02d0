"""The addresses of servers and the options of the channel to them."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Sequence
from typing import Final

from scorer.client.errors import InvalidTargetError

DEFAULT_MAX_MESSAGE_BYTES = 1 << 20
_HOST_PORT = re.compile(r"(?:dns:///)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})")
_REMEDY = 'give "host:port" or "unix:///absolute/path"'
_LIST_REMEDY = (
    'give different addresses of one family, such as ["10.0.0.1:7700", "10.0.0.2:7700"], or one name'
)
_LISTS = ("ipv4:", "ipv6:")

_SERVICE_CONFIG: Final = json.dumps(
    {
        # The channel watches the health service of each replica and calls those that report SERVING.
        "healthCheckConfig": {"serviceName": ""},
        "loadBalancingConfig": [
            {
                # gRFC A50. A replica that stays connected but answers hardly any call is left out.
                "outlier_detection_experimental": {
                    "interval": "1s",
                    "baseEjectionTime": "5s",
                    "maxEjectionTime": "30s",
                    "maxEjectionPercent": 50,
                    # Every status but OK counts as a failure, also those of invalid requests, which all
                    # replicas answer alike. The threshold is therefore high.
                    "failurePercentageEjection": {
                        "threshold": 85,
                        "enforcementPercentage": 100,
                        "minimumHosts": 2,
                        "requestVolume": 10,
                    },
                    "childPolicy": [{"round_robin": {}}],
                }
            }
        ],
    }
)
"""Balancing between the replicas of a list, in gRPC's format."""


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


def parse_targets(targets: str | Sequence[str]) -> str:
    """Check one target or the addresses of replicas, and return them in gRPC's form.

    Args:
        targets: A target as for `parse_target`, or IP addresses with ports.

    Raises:
        InvalidTargetError: A target has none of these forms, or an address is given twice.
    """
    if isinstance(targets, str) or not isinstance(targets, Sequence):
        return parse_target(targets)
    if not targets:
        raise InvalidTargetError("the list of addresses is empty", remedy=_LIST_REMEDY)
    addresses = [parse_target(target) for target in targets]
    versions = {_ip_version(address) for address in addresses}
    if len(versions) != 1:
        raise InvalidTargetError("the list has IPv4 and IPv6 addresses", remedy=_LIST_REMEDY)
    if len(set(addresses)) != len(addresses):
        raise InvalidTargetError("the list has the same address twice", remedy=_LIST_REMEDY)
    return f"ipv{versions.pop()}:{','.join(addresses)}"


def _ip_version(address: str) -> int:
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host).version
    except ValueError:
        raise InvalidTargetError(
            f"target {address!r} in a list is no IP address", remedy=_LIST_REMEDY
        ) from None


def channel_options(
    address: str, max_message_bytes: int, server_name: str | None = None
) -> list[tuple[str, int | str]]:
    """Return the channel arguments for gRPC as name-value pairs.

    Args:
        address: An address that `parse_targets` returned.
        max_message_bytes: Largest request in bytes.
        server_name: Name in the servers' certificates, which is also the authority of requests; None: the
            host of the target, or of the first address of a list.
    """
    is_list = address.startswith(_LISTS)
    authority = server_name
    if authority is None and address.startswith("unix:"):
        # gRPC would send the escaped path as the authority, which is not a valid authority by RFC 3986.
        # Strict HTTP/2 servers, including scorer, reset such a stream.
        authority = "localhost"
    elif authority is None and is_list:
        # gRPC would send the whole list.
        authority = address.partition(":")[2].partition(",")[0]
    balancing: list[tuple[str, int | str]] = [
        # A name with several addresses stands for replicas; the default would use only the first available.
        ("grpc.lb_policy_name", "round_robin")
    ]
    if is_list:
        balancing = [("grpc.service_config", _SERVICE_CONFIG)]
    return [
        *([] if authority is None else [("grpc.default_authority", authority)]),
        *balancing,
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
