"""The one connector of messages: every socket that a message opens is checked when it connects.

apprise's services and smtplib open their own connections, and look names up themselves. The interpreter's
audit event `socket.connect` carries the numeric address that a socket is about to connect to, so a name that
changes its meaning between a check and the connection (DNS rebinding) has no effect. The hook acts only in a
thread that is inside `only_to`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from scorer.release.errors import InvalidError
from scorer.release.notify.addresses import Destinations


class _Inside(threading.local):
    rule: tuple[Destinations, bool] | None = None
    rejected: InvalidError | None = None


_INSIDE = _Inside()


@contextmanager
def only_to(destinations: Destinations, *, encrypted: bool) -> Iterator[None]:
    """Have this thread connect to allowed addresses only, whichever library opens the socket.

    Args:
        destinations: The addresses that are allowed.
        encrypted: Whether the connections use TLS; without it only loopback is allowed.

    Raises:
        InvalidError: A connection was rejected, whatever the library made of that.
    """
    _install()
    before = _INSIDE.rule
    _INSIDE.rule, _INSIDE.rejected = (destinations, encrypted), None
    try:
        yield
    finally:
        rejected, _INSIDE.rule, _INSIDE.rejected = _INSIDE.rejected, before, None
        if rejected is not None:
            raise rejected


_SOCKET_EVENTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})


def _check(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _SOCKET_EVENTS or _INSIDE.rule is None:
        return
    address = arguments[1]
    if event != "socket.connect" and address is None:
        return  # data of a connected socket
    destinations, encrypted = _INSIDE.rule
    host = address[0] if isinstance(address, tuple) and address else ""
    try:
        destinations.check_address(str(host), encrypted=encrypted)
    except InvalidError as error:
        _INSIDE.rejected = error
        # Libraries close a socket whose connection fails by an OSError; `only_to` raises the error itself.
        raise PermissionError(str(error)) from error


@cache
def _install() -> None:
    sys.addaudithook(_check)
