"""The address that a request comes from, as limits count it."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope


def source_of(scope: Scope) -> str:
    """Return the client's address of a request; see `source`.

    Where a trusted proxy is in front, the outermost layer has put the client's own address into the scope.
    """
    client = scope.get("client")
    return source(client[0] if client else "")


def source(address: str) -> str:
    """Return an address as limits count it: an IPv6 client has a whole /64, so that is one source."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
