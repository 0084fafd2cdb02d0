"""The source address of a request, by which limits count."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import Scope


def source_of(scope: Scope) -> str:
    """Return the source of a request; see `source`.

    Behind a trusted proxy, the outermost layer has set the client's address in the scope.
    """
    client = scope.get("client")
    return source(client[0] if client else "")


def source(address: str) -> str:
    """Return the source of an address. An IPv6 client usually has a /64 network, which is one source."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, 64), strict=False))
    return str(parsed)
