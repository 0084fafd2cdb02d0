"""Checks the address of every connection that is opened to send a message.

apprise's services and smtplib resolve names and open connections themselves. An audit hook of the interpreter
therefore checks the event `socket.connect`, which carries the numeric address. A name that resolves to
another address between the check and the connection (DNS rebinding) has no effect. The hook applies only to
threads that are inside `only_to`.
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
    """Restrict the connections of this thread to allowed addresses, whichever library opens them.

    Args:
        destinations: The addresses that are allowed.
        encrypted: Whether the connections use TLS; without it only loopback is allowed.

    Raises:
        InvalidError: A connection was rejected, even if the library suppressed the error.
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
        # Libraries close the socket after an OSError. `only_to` raises the original error.
        raise PermissionError(str(error)) from error


@cache
def _install() -> None:
    sys.addaudithook(_check)
