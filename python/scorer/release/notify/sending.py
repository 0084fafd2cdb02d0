"""Sends one message, within a bound, or reports in a line why it was not sent."""

from __future__ import annotations

import logging
import re
import ssl
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import unquote

import httpcore
from standardwebhooks import Webhook

from scorer.errors import ScorerError
from scorer.release.errors import InvalidError
from scorer.release.model import Severity
from scorer.release.notify import targets
from scorer.release.notify.addresses import Destinations
from scorer.release.notify.connector import only_to

SECONDS = 20.0
"""For one message, everything included."""

_CONNECT = 5.0


NOT_ACCEPTED = "the receiver did not accept the message; the platform's log has the reason under its id"
"""What users see of a receiver's answer. Its status would make a channel a scanner of ports and services."""


class NotSentError(ScorerError):
    """A message that did not arrive, as far as we know.

    Args:
        reason: Why, for the platform's log.
        rejected: Whether the platform itself rejected the address.
    """

    def __init__(self, reason: str, *, rejected: bool = False) -> None:
        super().__init__(reason)
        self.public = reason if rejected else NOT_ACCEPTED
        """What the channel's users may see of it."""


@dataclass(frozen=True, slots=True)
class Message:
    """What goes to one channel."""

    delivery: str
    subject: str
    body: str
    severity: Severity
    document: bytes
    """What a webhook posts."""


def send(
    url: str,
    secret: str | None,
    message: Message,
    destinations: Destinations,
    *,
    seconds: float = SECONDS,
) -> None:
    """Send one message over connections to allowed addresses only.

    Raises:
        NotSentError: With the reason for the platform's log, without the URL's secrets.
    """
    try:
        if secret is not None:
            _post(url, secret, message, destinations, time.monotonic() + seconds)
        else:
            _within(seconds, lambda: _notify(url, message, destinations))
    except NotSentError:
        raise
    except InvalidError as error:
        raise NotSentError(str(error), rejected=True) from error
    except Exception as error:
        kind = targets.APPRISE if secret is None else targets.WEBHOOK
        raise NotSentError(_short(str(error) or type(error).__name__, url, kind)) from error


# === webhooks ===


def _post(url: str, secret: str, message: Message, destinations: Destinations, until: float) -> None:
    at = datetime.now(UTC)
    # The specification's own form of a secret is base64; any other text is the key as it is.
    key = secret if secret.startswith("whsec_") else secret.encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "scorer-platform",
        "webhook-id": message.delivery,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": Webhook(key).sign(message.delivery, at, message.document.decode()),
    }
    timeout = {"connect": _CONNECT, "read": SECONDS, "write": SECONDS, "pool": _CONNECT}
    with (
        only_to(destinations, encrypted=url.startswith("https:")),
        httpcore.ConnectionPool(ssl_context=_tls(), network_backend=_Backend(until)) as pool,
        # The reply's status says everything; its body is not read.
        pool.stream(
            "POST",
            url,
            headers=list(headers.items()),
            content=message.document,
            extensions={"timeout": timeout},
        ) as reply,
    ):
        status = reply.status
    if 300 <= status < 400:
        raise NotSentError(
            f"the receiver answered {status}: redirects are not followed; give the final address"
        )
    if not 200 <= status < 300:
        raise NotSentError(f"the receiver answered {status}")


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Backend(httpcore.NetworkBackend):
    """Connects within the message's deadline; `only_to` checks the address."""

    def __init__(self, until: float) -> None:
        self._until = until
        self._backend = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(self._until, timeout)
        try:
            stream = self._backend.connect_tcp(host, port, left, local_address, socket_options)
        except (httpcore.ConnectError, httpcore.ConnectTimeout, UnicodeError) as error:
            raise NotSentError(f"{host}:{port} does not answer ({error})") from error
        return _Timed(stream, self._until)

    def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.NetworkStream:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError


class _Timed(httpcore.NetworkStream):
    """A stream whose every wait ends at the deadline: who answers a byte a second holds nobody up."""

    def __init__(self, stream: httpcore.NetworkStream, until: float) -> None:
        self._stream = stream
        self._until = until

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(self._until, timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(self._until, timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = _left(self._until, timeout)
        return _Timed(self._stream.start_tls(ssl_context, server_hostname, left), self._until)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(until: float, timeout: float | None) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise NotSentError("the receiver was too slow")
    return left if timeout is None else min(left, timeout)


# === apprise ===


def _notify(url: str, message: Message, destinations: Destinations) -> None:
    from apprise import NotifyType

    plugin = targets.open_plugin(url)
    kinds = {
        Severity.INFO: NotifyType.INFO,
        Severity.WARNING: NotifyType.WARNING,
        Severity.ERROR: NotifyType.FAILURE,
    }
    said = _said()
    said.begin()
    with only_to(destinations, encrypted=targets.is_encrypted(plugin)):
        sent = plugin.notify(body=message.body, title=message.subject, notify_type=kinds[message.severity])
    if not sent:
        lines = "; ".join(said.end()) or "the service did not take it"
        raise NotSentError(_short(lines, url, targets.APPRISE))


class _Said(logging.Handler):
    """What apprise logs in this thread: it returns only whether something went wrong."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._local = threading.local()

    def begin(self) -> None:
        self._local.lines = []

    def end(self) -> list[str]:
        lines: list[str] = self._local.lines
        return list(dict.fromkeys(lines))

    def emit(self, record: logging.LogRecord) -> None:
        lines = getattr(self._local, "lines", None)
        if lines is not None and len(lines) < 10:
            lines.append(record.getMessage())


@cache
def _said() -> _Said:
    handler = _Said()
    logging.getLogger("apprise").addHandler(handler)
    return handler


_STUCK = threading.BoundedSemaphore(8)
"""Threads of apprise that may be under way, those included that took too long and were left behind."""


def _within(seconds: float, work: Any) -> None:
    """Run `work` in a thread of its own, and leave it behind if it takes longer.

    apprise bounds single waits only.

    Raises:
        NotSentError: It took longer, or eight such threads have not ended yet.
    """
    slots = _STUCK
    if not slots.acquire(blocking=False):
        raise NotSentError("8 earlier messages have not ended yet; it is tried again later")
    outcome: list[BaseException | None] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcome.append(error)
        else:
            outcome.append(None)
        finally:
            slots.release()

    thread = threading.Thread(target=run, name="notify-apprise", daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise NotSentError(f"the service did not finish within {seconds:g} s")
    if outcome[0] is not None:
        raise outcome[0]


def _short(text: str, url: str, kind: str) -> str:
    """One line, without any longer piece of the URL that is not shown anyway: it may be a secret."""
    line = " ".join(text.split())
    known = targets.shown(url, kind)
    pieces = {piece for piece in re.split(r"[/:@?&=#,%+]+", url) if len(piece) > 3 and piece not in known}
    pieces |= {unquote(piece) for piece in pieces}
    for piece in sorted(pieces, key=len, reverse=True):
        line = line.replace(piece, "****")
    return line[:300]
