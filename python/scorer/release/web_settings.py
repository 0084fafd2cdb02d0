"""Settings of the web server's limits and trusted proxies."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, Field

from scorer.config.fields import Section

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(value: Any) -> Any:
    """Read a list of networks as CIDR; a single address is a network of one."""
    if not isinstance(value, list | tuple):
        return value
    found = []
    for each in value:
        try:
            found.append(ipaddress.ip_network(each if isinstance(each, str) else str(each)))
        except ValueError:
            raise ValueError(
                f'"{each}" is not a network; write "10.0.0.0/8", or one address such as "10.1.2.3"'
            ) from None
    return tuple(found)


if TYPE_CHECKING:
    Networks = tuple[Network, ...]
else:
    Networks = Annotated[tuple[Network, ...], BeforeValidator(_networks)]

_LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128"))


class WebSettings(Section):
    """Limits of the pages and REST, so that no client can exhaust the process."""

    trusted_proxies: Networks = Field(
        default=_LOOPBACK,
        description="Networks of reverse proxies. Only for their connections, the client's address is read "
        "from X-Forwarded-For, from its right end.",
    )
    max_connections: int = Field(
        default=1024,
        ge=8,
        le=65_536,
        description="Limit on open connections. Beyond it, the connection that has waited longest without a "
        "complete request is closed.",
    )
    connections_per_address: int = Field(
        default=128,
        ge=4,
        le=65_536,
        description="Limit on open connections of one address other than a trusted proxy.",
    )
    header_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Time limit for receiving a request's head, in seconds."
    )
    body_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time limit for receiving a body, in seconds, plus 1 s per 64 KiB. It also limits the "
        "time in which a client reads each part of a response.",
    )
    body_kb: int = Field(
        default=1024,
        ge=64,
        le=65_536,
        description="Largest request body except for uploads, in KiB. Sign-in forms may have 16 KiB.",
    )
    bodies_mb: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="Memory for all request bodies that are being received, in MiB. One address may use a "
        "quarter of it.",
    )
    streams: int = Field(
        default=256,
        ge=1,
        le=65_536,
        description="Limit on clients that wait for events (streams, long polls).",
    )
    streams_per_user: int = Field(
        default=16, ge=1, le=65_536, description="Limit on streams and long polls of one user."
    )
    stream_minutes: float = Field(
        default=15.0,
        gt=0,
        le=1440,
        description="Duration in minutes after which a stream of events ends. Its client resumes it, and the "
        "permissions are checked again.",
    )
    key_days: float = Field(
        default=30.0,
        ge=1,
        le=3650,
        description="Age in days at which the key of sign-in forms is replaced. Its predecessor stays valid.",
    )
    sign_in_attempts: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="Limit on failed sign-ins with one token prefix within 5 minutes. One address may have "
        "ten times as many.",
    )
