"""Settings of what the platform takes in: networks, limits of requests."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

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
