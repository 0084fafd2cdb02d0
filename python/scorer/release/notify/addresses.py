"""Addresses that the platform may connect to when it sends a message.

A receiver must have a public address, or a private one in a network that the operator lists in `[platform]
notification_networks`. Link-local addresses (a cloud's metadata service returns credentials there),
multicast, unspecified and reserved addresses are always rejected. Without TLS, only loopback is allowed.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from scorer.release.errors import InvalidError

# Metadata services outside the link-local range: AWS over IPv6, Alibaba, Oracle.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))
# Addresses that stand for the IPv4 address in their last 32 bits (RFC 6052).
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Destinations:
    """The addresses that messages may be sent to.

    Args:
        networks: Private networks, or loopback, that receivers may be in.
    """

    networks: tuple[Network, ...] = ()

    def check_address(self, text: str, *, encrypted: bool) -> None:
        """Reject a numeric address that messages may not be sent to.

        The error does not repeat the address, because it would disclose what an internal name resolves to.

        Raises:
            InvalidError: The address is special, or it is private and not listed, or TLS is missing.
        """
        try:
            address = _plain(text)
        except ValueError:
            raise InvalidError("the receiver has no IP address; give another host") from None
        if (
            address.is_link_local
            or address.is_multicast
            or address.is_unspecified
            or (address.is_reserved and not address.is_loopback)
            or address in _METADATA
        ):
            raise InvalidError("the host has a reserved or link-local address; give another host")
        listed = any(address.version == network.version and address in network for network in self.networks)
        if not address.is_global and not listed:
            raise InvalidError(
                "the host has a private address, which messages are not sent to; give a public host, or ask "
                "the operator to list its network in [platform] notification_networks"
            )
        if not encrypted and not address.is_loopback:
            raise InvalidError(
                "the host is another machine, and messages go there encrypted only; write https:// "
                "(or the service's form with s, such as jsons://)"
            )

    def check_host(self, host: str, *, encrypted: bool) -> None:
        """Reject a host if any address that it resolves to is rejected.

        This check only reports an error early. Every connection checks its address again.
        """
        try:
            found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            return
        for each in found:
            self.check_address(str(each[4][0]), encrypted=encrypted)


def _plain(text: str) -> _Address:
    """Return an address, or the IPv4 address that it stands for."""
    address = ipaddress.ip_address(text.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address
