"""Servers behind a DNS name: one for each of its addresses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from scorer.release.discovery_settings import DiscoverySettings
from scorer.release.errors import UnreachableError
from scorer.release.fleet.discovery import FoundServer, Publish, found_server

Resolve = Callable[[str, int], Sequence[Any]]
"""`socket.getaddrinfo` for a name and a port."""


def look_up(host: str, port: int) -> Sequence[Any]:
    """Return the addresses of a name as `socket.getaddrinfo` does, for TCP."""
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)


class DnsName:
    """Looks a name up again and again.

    Args:
        settings: The group, with `dns`.
        resolve: Looks a name up.
    """

    def __init__(self, settings: DiscoverySettings, *, resolve: Resolve = look_up) -> None:
        self._settings, self._resolve = settings, resolve

    def run(self, publish: Publish, stopping: threading.Event) -> None:
        """Publish the servers after every look-up."""
        while not stopping.is_set():
            publish(self.servers())
            stopping.wait(self._settings.seconds)

    def servers(self) -> list[FoundServer]:
        """Look the name up once.

        Raises:
            UnreachableError: There is no answer, or no such name.
        """
        settings = self._settings
        host, _, port = (settings.dns or "").rpartition(":")
        try:
            answers = self._resolve(host, int(port))
        except OSError as error:
            raise UnreachableError(f"{error.strerror or error}; check the name and the name server") from None
        addresses = sorted({str(answer[4][0]) for answer in answers})
        return [found_server(settings, address, int(port)) for address in addresses]
