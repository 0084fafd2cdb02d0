"""Settings of what the platform takes in at once, and from whom."""

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
    """Limits of pages and REST, so that no client can use up the process."""

    trusted_proxies: Networks = Field(
        default=_LOOPBACK,
        description="Networks of the proxies in front. For their connections, and no others, the address of "
        "the client is read from X-Forwarded-For, from its right end.",
    )
    max_connections: int = Field(
        default=1024,
        ge=8,
        le=65_536,
        description="Open connections. With more, the one that has waited longest without a whole request is "
        "closed.",
    )
    connections_per_address: int = Field(
        default=128,
        ge=4,
        le=65_536,
        description="Open connections of one address that is no trusted proxy.",
    )
    header_seconds: float = Field(
        default=10.0, gt=0, le=600, description="Time for the whole head of a request to arrive."
    )
    body_seconds: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Time for a body to arrive, plus 1 s for every 64 KiB of it. Also the time for a client "
        "to take each part of a response.",
    )
    body_kb: int = Field(
        default=1024,
        ge=64,
        le=65_536,
        description="Largest body of a request that is no upload. Sign-in forms have 16 KiB.",
    )
    bodies_mb: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="Memory for the bodies of all requests that are being read; one address has a quarter "
        "of it.",
    )
    streams: int = Field(
        default=256,
        ge=1,
        le=65_536,
        description="Clients that wait for events at once (streams, long polls).",
    )
    streams_per_user: int = Field(default=16, ge=1, le=65_536, description="Those of one user.")
    stream_minutes: float = Field(
        default=15.0,
        gt=0,
        le=1440,
        description="A stream of events ends after this time; its client resumes it, and its permissions are "
        "checked again.",
    )
    key_days: float = Field(
        default=30.0,
        ge=1,
        le=3650,
        description="Age at which the key that signs sign-in forms is replaced. The one before stays valid.",
    )
    sign_in_attempts: int = Field(
        default=10,
        ge=1,
        le=10_000,
        description="Failed sign-ins with one token prefix within 5 minutes, after which more are refused. "
        "One address has ten times as many.",
    )
