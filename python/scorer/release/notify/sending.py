"""Sends one message within a time limit, or reports in one line why it was not sent."""

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
"""Time limit of one message in seconds, from the connection to the reply."""

_CONNECT = 5.0


NOT_ACCEPTED = "the receiver did not accept the message; the platform's log has the reason under its id"
"""The only error that users see. A receiver's status would let them scan ports and services."""


class NotSentError(ScorerError):
    """A message was not confirmed by its receiver.

    Args:
        reason: Reason, for the platform's log.
        rejected: Whether the platform rejected the address. Users may then see the reason.
    """

    def __init__(self, reason: str, *, rejected: bool = False) -> None:
        super().__init__(reason)
        self.public = reason if rejected else NOT_ACCEPTED
        """Text of the error for the channel's users."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message for one channel."""

    delivery: str
    subject: str
    body: str
    severity: Severity
    document: bytes
    """Body of a webhook's request, as JSON."""


def send(
    url: str,
    secret: str | None,
    message: Message,
    destinations: Destinations,
    *,
    seconds: float = SECONDS,
) -> None:
    """Send one message over connections to allowed addresses only.

    Args:
        url: Address of the channel.
        secret: Signing secret of a webhook; None: an apprise service.
        message: The message.
        destinations: Addresses that are allowed.
        seconds: Time limit.

    Raises:
        NotSentError: The message was not sent. Its text contains no secrets of the URL.
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
    # A secret with the prefix of the Standard Webhooks specification is base64; other text is the key itself.
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
        # The status decides; the body is not read.
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
    """A stream whose reads and writes all end at one deadline, so that a slow receiver cannot extend it."""

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
    log = _apprise_log()
    log.begin()
    with only_to(destinations, encrypted=targets.is_encrypted(plugin)):
        sent = plugin.notify(body=message.body, title=message.subject, notify_type=kinds[message.severity])
    if not sent:
        lines = "; ".join(log.end()) or "the service did not accept it"
        raise NotSentError(_short(lines, url, targets.APPRISE))


class _AppriseLog(logging.Handler):
    """Collects apprise's log records of this thread, because its calls return only success or failure."""

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
def _apprise_log() -> _AppriseLog:
    handler = _AppriseLog()
    logging.getLogger("apprise").addHandler(handler)
    return handler


_SLOTS = threading.BoundedSemaphore(8)
"""Limits the threads that run apprise, including those that exceeded their time limit."""


def _within(seconds: float, work: Any) -> None:
    """Run `work` in a separate thread and stop waiting for it after a time limit.

    The thread is needed because apprise limits single socket operations only.

    Raises:
        NotSentError: The time limit passed, or eight earlier threads are still running.
    """
    slots = _SLOTS
    if not slots.acquire(blocking=False):
        raise NotSentError("8 earlier messages are still being sent; the platform retries later")
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
    """Return the text in one line of at most 300 characters, without parts of the URL that may be secret."""
    line = " ".join(text.split())
    known = targets.shown(url, kind)
    pieces = {piece for piece in re.split(r"[/:@?&=#,%+]+", url) if len(piece) > 3 and piece not in known}
    pieces |= {unquote(piece) for piece in pieces}
    for piece in sorted(pieces, key=len, reverse=True):
        line = line.replace(piece, "****")
    return line[:300]
