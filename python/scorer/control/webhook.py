"""Receiver of MLflow's registry webhooks, signed notifications that an alias has moved.

A delivery only starts the next poll of the registry earlier; its content is not acted on. A lost delivery is
therefore replaced by polling, and a forged or repeated one causes at most one request to the registry.

The signature is MLflow's (mlflow/webhooks/delivery.py, after standardwebhooks.com): base64 of
HMAC-SHA256 over ``<delivery id>.<Unix seconds>.<body>``, sent as ``v1,<base64>``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from scorer.errors import ServerError
from scorer.events import EventLog

_MAX_HEAD = 16_384
_MAX_BODY = 65_536
_MAX_DIGITS = 19
_SECONDS = 5.0
_CONNECTIONS = 16
_FRESH_SECONDS = 300.0
_REMEMBERED = 4096
_MIN_SECRET = 16

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    503: "Service Unavailable",
}


class Refused(Exception):  # noqa: N818 - an answer, not an error of this program
    """A delivery that is rejected, with the HTTP status of the response."""

    def __init__(self, status: int, reason: str) -> None:
        self.status = status
        super().__init__(reason)


def read_secret(path: Path) -> bytes:
    """Read the secret in a file, without surrounding white space.

    Raises:
        ServerError: The file cannot be read, other users can access it, or the secret has fewer than 16
            bytes.
    """
    try:
        mode = path.stat().st_mode
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ServerError(f'webhook_secret_file "{path}" cannot be read: {error.strerror}') from error
    if mode & 0o007:
        raise ServerError(f'webhook_secret_file "{path}" can be read by everybody; run chmod 600 on it')
    if len(secret) < _MIN_SECRET:
        raise ServerError(
            f'webhook_secret_file "{path}" holds fewer than {_MIN_SECRET} characters; '
            "make one with `openssl rand -hex 32`"
        )
    return secret


class Deliveries:
    """Validates deliveries: their signature, their age, and that they were not received before.

    Args:
        secret: The secret of the webhook.
        aliases: Returns the aliases that this server follows.
        now: Returns the time in seconds since the Unix epoch.
    """

    def __init__(
        self, secret: bytes, aliases: Callable[[], Collection[str]], *, now: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret
        self._aliases = aliases
        self._now = now
        self._heard: OrderedDict[str, None] = OrderedDict()

    def concerns_us(self, headers: Mapping[str, str], body: bytes) -> bool:
        """Return whether a delivery reports a move of an alias that this server follows.

        Args:
            headers: Headers of the request, with names in lower case.
            body: Body of the request, not decoded.

        Raises:
            Refused: The signature is wrong, the delivery is more than 300 s old, or it is not an event of
                MLflow's registry.
        """
        identity, sent = headers.get("x-mlflow-delivery-id", ""), headers.get("x-mlflow-timestamp", "")
        signed = f"{identity}.{sent}.".encode() + body
        wanted = base64.b64encode(hmac.new(self._secret, signed, hashlib.sha256).digest()).decode()
        given = headers.get("x-mlflow-signature", "")
        if not hmac.compare_digest(f"v1,{wanted}".encode(), given.encode()):
            raise Refused(401, "the signature is not ours" if given else "not signed")
        if not sent.isdecimal() or abs(self._now() - int(sent)) > _FRESH_SECONDS:
            raise Refused(401, f"sent more than {_FRESH_SECONDS:g} s away from this machine's clock")
        if identity in self._heard:
            return False
        self._heard[identity] = None
        if len(self._heard) > _REMEMBERED:
            self._heard.popitem(last=False)
        try:
            event = json.loads(body)
            data = event["data"]
            return (
                event["entity"] == "model_version_alias"
                and f"{data['name']}@{data['alias']}" in self._aliases()
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Refused(400, "signed, and not an event of MLflow's registry") from None


class Listener:
    """A minimal HTTP server for deliveries.

    It reads one POST request per connection, with bounded size and time.

    Args:
        deliveries: The validation of deliveries.
        wake: Called for each delivery that concerns this server.
        events: Event log for deliveries and rejections.
    """

    def __init__(self, deliveries: Deliveries, wake: Callable[[], None], events: EventLog) -> None:
        self._deliveries = deliveries
        self._wake = wake
        self._events = events
        self._server: asyncio.Server | None = None
        self._open = 0
        self._said = ""

    async def start(self, address: str) -> str:
        """Start listening and return the address with the actual port.

        Args:
            address: host:port; port 0 lets the system choose a port.

        Raises:
            ServerError: The address cannot be used.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._converse, host.strip("[]"), int(port), limit=_MAX_HEAD
            )
        except OSError as error:
            raise ServerError(
                f"webhook_listen {address}: {error.strerror or error}; stop the process that holds it or use "
                "another"
            ) from error
        return f"{host}:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        """Stop listening for new deliveries."""
        if self._server is not None:
            self._server.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            status = await self._answer(reader)
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            writer.write(head.encode())
            await asyncio.wait_for(writer.drain(), _SECONDS)
        except (OSError, TimeoutError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> int:
        try:
            headers, body = await self._request(reader)
            if self._deliveries.concerns_us(headers, body):
                self._events.info("registry_webhook", delivery=headers.get("x-mlflow-delivery-id", ""))
                self._wake()
        except Refused as refused:
            reason = str(refused)
            if reason != self._said:  # successive rejections with the same reason are logged once
                self._events.warning("webhook_refused", reason=reason)
            self._said = reason
            return refused.status
        self._said = ""
        return 200

    async def _request(self, reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
        if self._open > _CONNECTIONS:
            raise Refused(503, "too many connections")
        try:
            return await asyncio.wait_for(_read(reader), _SECONDS)
        except TimeoutError:
            raise Refused(408, "not sent in time") from None


async def _read(reader: asyncio.StreamReader) -> tuple[dict[str, str], bytes]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except (asyncio.LimitOverrunError, asyncio.IncompleteReadError):
        raise Refused(400, "not a request") from None
    request, *lines = head.split("\r\n")
    if not request.startswith("POST "):
        raise Refused(405, "not a POST")
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    length = headers.get("content-length", "")
    if not length.isdecimal() or "transfer-encoding" in headers:
        raise Refused(400, "no content-length")
    # The number of digits is checked first: `int` raises for thousands of digits.
    if len(length) > _MAX_DIGITS or int(length) > _MAX_BODY:
        raise Refused(413, f"a body of more than {_MAX_BODY} bytes")
    body = b""
    with suppress(asyncio.IncompleteReadError):
        body = await reader.readexactly(int(length))
    return headers, body
