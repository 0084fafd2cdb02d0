"""Which machines the platform connects to for a channel.

Private networks are allowed: chat and mail servers live there. Refused are addresses that no receiver has:
link-local ones (a cloud's metadata service answers there, with credentials), multicast, unspecified and
reserved ones. Without TLS only this machine itself is spoken to.
"""

from __future__ import annotations

import ipaddress
import socket

from scorer.release.errors import InvalidError

# Metadata services outside the link-local range: AWS over IPv6, Alibaba, Oracle.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, in the order to try them. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


def check(host: str, addresses: list[str], *, encrypted: bool) -> None:
    """Refuses a host by its addresses, any of them. Raises InvalidError."""
    for text in addresses:
        address = _plain(text)
        if (
            address.is_link_local
            or address.is_multicast
            or address.is_unspecified
            or address.is_reserved
            or address in _METADATA
        ):
            raise InvalidError(f"{host} is {address}, where no receiver of messages is; give another host")
        if not encrypted and not address.is_loopback:
            raise InvalidError(
                f"{host} is another machine, and messages go there encrypted only; write https:// "
                "(or the service's form with s, such as jsons://)"
            )


def check_if_known(host: str, *, encrypted: bool) -> None:
    """As `check`; a name that does not resolve now may later, and is checked again when it is spoken to."""
    try:
        addresses = resolve(host, 0)
    except (OSError, UnicodeError):
        return
    check(host, addresses, encrypted=encrypted)


def _plain(text: str) -> _Address:
    address = ipaddress.ip_address(text.partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped or address
