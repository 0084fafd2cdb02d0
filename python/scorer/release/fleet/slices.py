"""Servers of a Kubernetes service, from its EndpointSlices by list and watch.

The documents are those of `discovery.k8s.io/v1`. A list gives all slices and a version; a watch from that
version gives their changes. The API answers 410 Gone if the version is too old, in the status of the answer
or in an event of the stream, and the servers are listed again. A stream in which nothing arrives for long,
not even a bookmark, is considered stalled and is opened again.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import httpx

from scorer.release.discovery_settings import DiscoverySettings
from scorer.release.errors import UnreachableError
from scorer.release.fleet.discovery import FoundServer, Publish, found_server

WATCH_SECONDS = 240
"""Length of a watch in seconds, after which the API closes it."""
STALLED_SECONDS = 90.0
"""Time without an event or bookmark after which a watch is opened again. The API sends about one bookmark a
minute."""
_CONNECT_SECONDS = 5.0
_PAUSE_SECONDS = 1.0
_PAGE = 500
_MOST_BYTES = 8 << 20
"""Largest event or page. A slice has at most 1,000 endpoints."""
_MOST_PAGES = 100


class GoneError(Exception):
    """The version is too old to watch from, or to continue a list."""


class EndpointSlices:
    """Lists and watches the slices of a service.

    Args:
        settings: The group, with `service`.
        watch_seconds: Length of a watch in seconds.
        stalled_seconds: Time without an event after which a watch is opened again.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        *,
        watch_seconds: int = WATCH_SECONDS,
        stalled_seconds: float = STALLED_SECONDS,
    ) -> None:
        self._settings = settings
        self._watch_seconds, self._stalled_seconds = watch_seconds, stalled_seconds
        namespace, _, service = (settings.service or "").partition("/")
        self._url = f"{settings.api}/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
        self._selector = f"kubernetes.io/service-name={service}"

    def run(self, publish: Publish, stopping: threading.Event) -> None:
        """List the servers, publish them, and watch until the version is gone.

        Raises:
            UnreachableError: The API does not answer, or answers with an error.
        """
        with self._client() as client:
            try:
                slices, version = self._list(client)
                publish(self._servers(slices))
                while not stopping.is_set():
                    version = self._watch(client, slices, version, publish, stopping)
                    # An API that closes every watch at once is not called in a loop without a pause.
                    stopping.wait(_PAUSE_SECONDS)
            except GoneError:
                return
            except httpx.ReadTimeout:
                raise UnreachableError(f"{self._settings.api} does not answer; check it") from None

    # --- list and watch ---

    def _list(self, client: httpx.Client) -> tuple[dict[str, Mapping[str, Any]], str]:
        """Return all slices by name, and the version that they are of."""
        slices: dict[str, Mapping[str, Any]] = {}
        following = ""
        for _ in range(_MOST_PAGES):
            asked = {"labelSelector": self._selector, "limit": str(_PAGE)}
            if following:
                asked["continue"] = following
            with self._get(client, asked, seconds=30.0) as answer:
                document = _document(b"".join(_bounded(answer)))
            for item in document.get("items") or ():
                slices[item["metadata"]["name"]] = item
            about = document.get("metadata") or {}
            following = about.get("continue") or ""
            if not following:
                return slices, str(about.get("resourceVersion") or "")
        raise UnreachableError(f"the list has more than {_MOST_PAGES} pages; narrow the service")

    def _watch(
        self,
        client: httpx.Client,
        slices: dict[str, Mapping[str, Any]],
        version: str,
        publish: Publish,
        stopping: threading.Event,
    ) -> str:
        """Apply the changes of one watch, and return the version that the next one begins at."""
        asked = {
            "labelSelector": self._selector,
            "watch": "1",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(self._watch_seconds),
        }
        try:
            with self._get(client, asked, seconds=self._stalled_seconds) as answer:
                for line in _lines(answer):
                    event = _document(line)
                    kind, item = event.get("type"), event.get("object") or {}
                    if kind == "ERROR":
                        if item.get("code") == 410:
                            raise GoneError
                        raise UnreachableError(f"the watch failed: {_message(item)}; tried again")
                    version = str(item["metadata"]["resourceVersion"])
                    if kind in ("ADDED", "MODIFIED"):
                        slices[item["metadata"]["name"]] = item
                    elif kind == "DELETED":
                        slices.pop(item["metadata"]["name"], None)
                    if kind != "BOOKMARK":
                        publish(self._servers(slices))
                    if stopping.is_set():
                        break
        except httpx.ReadTimeout:
            # Nothing arrives any more, although the connection is open. The next watch begins at the same
            # version, so that no change is missed.
            pass
        return version

    # --- servers ---

    def _servers(self, slices: Mapping[str, Mapping[str, Any]]) -> list[FoundServer]:
        """Return the servers of all slices. Those that terminate have begun to drain and are left out."""
        found: dict[str, FoundServer] = {}
        for one in slices.values():
            port = self._port(one)
            if port is None:
                continue
            for each in one.get("endpoints") or ():
                addresses: Sequence[str] = each.get("addresses") or ()
                if not addresses or (each.get("conditions") or {}).get("terminating"):
                    continue
                pod = str((each.get("targetRef") or {}).get("name") or "")
                server = found_server(self._settings, addresses[0], port, pod=pod)
                # A pod with two families of addresses is in a slice of each.
                found.setdefault(server.name, server)
        return list(found.values())

    def _port(self, one: Mapping[str, Any]) -> int | None:
        ports = {each.get("name") or "": each.get("port") for each in one.get("ports") or ()}
        found = ports.get(self._settings.port)
        return int(found) if found else None

    # --- calls ---

    def _client(self) -> httpx.Client:
        verify: ssl.SSLContext | bool = True
        if self._settings.ca_file is not None and self._settings.api.startswith("https://"):
            try:
                verify = ssl.create_default_context(cafile=str(self._settings.ca_file))
            except OSError as error:
                reason = error.strerror or error
                raise UnreachableError(f"{self._settings.ca_file}: {reason}; set ca_file") from None
        # The proxy of the environment is for other addresses.
        return httpx.Client(verify=verify, trust_env=False, follow_redirects=False)

    @contextmanager
    def _get(
        self, client: httpx.Client, asked: Mapping[str, str], *, seconds: float
    ) -> Iterator[httpx.Response]:
        """Send a request; `seconds` is the longest pause between two parts of the answer."""
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in asked.items())
        timeout = httpx.Timeout(_CONNECT_SECONDS, read=seconds)
        try:
            with client.stream(
                "GET", f"{self._url}?{query}", headers=self._headers(), timeout=timeout
            ) as answer:
                if answer.status_code == httpx.codes.GONE:
                    raise GoneError
                if answer.status_code != httpx.codes.OK:
                    body = b"".join(_bounded(answer))
                    raise UnreachableError(
                        f"{self._settings.api} answers {_refusal(answer.status_code, body)}"
                    )
                yield answer
        except httpx.ReadTimeout:
            raise
        except httpx.HTTPError as error:
            raise UnreachableError(f"{self._settings.api}: {error or type(error).__name__}") from None

    def _headers(self) -> dict[str, str]:
        """Return the headers with the present token, which is replaced while the platform runs."""
        headers = {"accept": "application/json"}
        if (file := self._settings.token_file) is not None:
            try:
                headers["authorization"] = f"Bearer {file.read_text().strip()}"
            except OSError as error:
                raise UnreachableError(f"{file}: {error.strerror or error}; set token_file") from None
        return headers


def _bounded(answer: httpx.Response) -> Iterator[bytes]:
    size = 0
    for part in answer.iter_bytes():
        size += len(part)
        if size > _MOST_BYTES:
            raise UnreachableError(f"an answer is longer than {_MOST_BYTES >> 20} MiB; it is not read")
        yield part


def _lines(answer: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of a stream. An incomplete last line is left out: its change comes again."""
    rest = b""
    for part in answer.iter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _MOST_BYTES:
            raise UnreachableError(f"an event is longer than {_MOST_BYTES >> 20} MiB; it is not read")
        yield from (line for line in lines if line.strip())


def _document(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise UnreachableError("the answer is not a document of the Kubernetes API; check api")
    return found


def _refusal(code: int, body: bytes) -> str:
    try:
        message = _message(_document(body))
    except UnreachableError:
        message = ""
    remedy = {
        401: "check token_file",
        403: "allow the account to list and watch endpointslices",
        404: "check api and service",
    }.get(code, "tried again")
    return f"{code}{f' ({message})' if message else ''}; {remedy}"


def _message(status: Mapping[str, Any]) -> str:
    return " ".join(str(status.get("message") or status.get("reason") or "no reason").split())[:200]
