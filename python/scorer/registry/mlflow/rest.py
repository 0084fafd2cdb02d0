"""MLflow's REST API: one bounded HTTP exchange at a time, and every failure by its name.

Whatever the other side does, a call ends: within its time, and with at most so many bytes kept.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

from scorer.errors import InvalidReferenceError, RegistryError, RegistryUnavailableError

API = "/api/2.0/mlflow"
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"
_MAX_JSON_BYTES = 8 << 20
_SLOWEST_BYTES_PER_SECOND = 1 << 20
_CHUNK = 1 << 18
_LATER = {401, 403, 407, 408, 425, 429}
"""Refusals that say nothing about what was asked for: credentials and load are mended elsewhere."""


class MlflowRefusedError(RegistryError):
    """MLflow understood and refused.

    Attributes:
        code: MLflow's own, such as ``RESOURCE_DOES_NOT_EXIST``.
    """

    def __init__(self, message: str, code: str) -> None:
        self.code = code
        super().__init__(message)


class Rest:
    """A server's address, and calls to it from any thread.

    Credentials are taken where MLflow's own clients take them: ``MLFLOW_TRACKING_TOKEN``, or
    ``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD``. Redirects and proxies are not followed.

    Args:
        url: ``http://host:port`` or ``https://host``, with a path where the server has a prefix.
        seconds: How long one exchange may take in all; artifacts have a second more for every MiB.
        environment: In place of ``os.environ``.
    """

    def __init__(
        self, url: str, *, seconds: float = 10.0, environment: Mapping[str, str] | None = None
    ) -> None:
        self.url = check_url(url)
        parts = urlsplit(self.url)
        self._secure = parts.scheme == "https"
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._seconds = seconds
        self._headers = _credentials(os.environ if environment is None else environment)
        self._open: set[http.client.HTTPConnection] = set()
        self._closed = False

    def get(self, path: str, **query: str | int) -> Mapping[str, Any]:
        """A JSON answer.

        Raises:
            RegistryUnavailableError: Nobody answers, in time, with what MLflow would say.
            MlflowRefusedError: MLflow rejects the request.
        """
        return self._json("GET", API + path, query=query)

    def post(self, path: str, **body: Any) -> Mapping[str, Any]:
        """As `get`, with a JSON body."""
        return self._json("POST", API + path, body=body)

    def list_artifacts(self, path: str) -> Mapping[str, int]:
        """The files of one artifact directory with their sizes; a directory has the size -1."""
        found = self._json("GET", ARTIFACTS, query={"path": path}).get("files", [])
        try:
            return {
                str(entry["path"]): -1 if entry.get("is_dir") else int(entry.get("file_size") or 0)
                for entry in found
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self.foreign() from None

    def download(self, path: str, sink: BinaryIO, *, limit: int) -> int:
        """Writes an artifact to `sink`, of which at most `limit` + 1 bytes are read; returns how many."""
        with self._exchange("GET", f"{ARTIFACTS}/{quote(path)}", seconds=self._time_for(limit)) as answer:
            count, failure = 0, None
            while failure is None and (chunk := _read(answer, min(_CHUNK, limit + 1 - count))):
                count += len(chunk)
                try:
                    sink.write(chunk)
                except OSError as error:  # a full disk here is not the server's failure
                    failure = error
        if failure is not None:
            raise failure
        return count

    def upload(self, path: str, file: Path) -> None:
        """Stores a file as an artifact."""
        size = file.stat().st_size
        with (
            file.open("rb") as body,
            self._exchange(
                "PUT",
                f"{ARTIFACTS}/{quote(path)}",
                seconds=self._time_for(size),
                body=body,
                headers={"Content-Length": str(size), "Content-Type": "application/octet-stream"},
            ) as answer,
        ):
            answer.read(_MAX_JSON_BYTES)

    def close(self) -> None:
        """Breaks off what is under way and refuses what comes: a stop must not wait for a slow server."""
        self._closed = True
        for connection in list(self._open):
            _break_off(connection)

    # --- inside ---

    def _json(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Mapping[str, Any]:
        target = f"{path}?{urlencode(query)}" if query else path
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data is not None else {}
        with self._exchange(method, target, seconds=self._seconds, body=data, headers=headers) as answer:
            text = _read(answer, _MAX_JSON_BYTES + 1)
        try:
            value = json.loads(text) if len(text) <= _MAX_JSON_BYTES else None
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise self.foreign()
        return value

    @contextmanager
    def _exchange(
        self,
        method: str,
        target: str,
        *,
        seconds: float,
        body: bytes | BinaryIO | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[http.client.HTTPResponse]:
        if self._closed:
            raise RegistryUnavailableError(f"MLflow at {self.url} is no longer asked: this process stops")
        connection = self._connection(seconds)
        # The socket's own timeout begins anew with every byte: a server that drips could hold us for days.
        late = threading.Event()

        def too_late() -> None:
            late.set()
            _break_off(connection)

        watchdog = threading.Timer(seconds, too_late)
        watchdog.daemon = True
        self._open.add(connection)
        watchdog.start()
        try:
            connection.request(
                method, self._prefix + target, body=body, headers={**self._headers, **(headers or {})}
            )
            answer = connection.getresponse()
            if not 200 <= answer.status < 300:
                raise self._refusal(answer)
            yield answer
            if late.is_set():  # an answer without a length looks whole when it is cut
                raise TimeoutError
        except (OSError, http.client.HTTPException) as error:
            reason = f"took longer than {seconds:g} s" if late.is_set() else _reason(error)
            raise RegistryUnavailableError(
                f"MLflow at {self.url} does not answer ({reason}); start it, or check the url"
            ) from error
        finally:
            watchdog.cancel()
            self._open.discard(connection)
            connection.close()

    def _connection(self, seconds: float) -> http.client.HTTPConnection:
        timeout = min(seconds, self._seconds)
        if self._secure:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)

    def _refusal(self, answer: http.client.HTTPResponse) -> RegistryError:
        try:
            value = json.loads(answer.read(_MAX_JSON_BYTES))
            code, message = str(value["error_code"]), " ".join(str(value["message"]).split())[:300]
        except (ValueError, TypeError, KeyError, RecursionError):
            code, message = "", answer.reason
        if answer.status >= 500 or answer.status in _LATER:
            hint = "; check MLFLOW_TRACKING_TOKEN or _USERNAME and _PASSWORD" if answer.status == 401 else ""
            return RegistryUnavailableError(f"MLflow at {self.url} answers {answer.status} {message}{hint}")
        if not code:
            return self.foreign()
        return MlflowRefusedError(f"MLflow at {self.url} refuses: {message}", code)

    def foreign(self) -> RegistryUnavailableError:
        """The error for an answer that MLflow would not give."""
        return RegistryUnavailableError(
            f"{self.url} does not answer as MLflow's REST API does; check the url"
        )

    def _time_for(self, count: int) -> float:
        return self._seconds + count / _SLOWEST_BYTES_PER_SECOND


def check_url(url: str) -> str:
    """The address in one form.

    Raises:
        InvalidReferenceError: It is none, or carries what belongs into the environment.
    """
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid or parts.query or parts.fragment or any(ord(c) <= 32 or ord(c) > 126 for c in url):
        raise InvalidReferenceError(
            f'"{url}" is no address of an MLflow server; write "http://127.0.0.1:5000" or "https://host"'
        )
    if "@" in parts.netloc:
        raise InvalidReferenceError(
            "the address of the MLflow server holds credentials; give them as MLFLOW_TRACKING_USERNAME and "
            "MLFLOW_TRACKING_PASSWORD in the environment"
        )
    return url.rstrip("/")


def now_ms() -> int:
    """Milliseconds since the Unix epoch, as MLflow has times."""
    return time.time_ns() // 1_000_000


def _credentials(environment: Mapping[str, str]) -> dict[str, str]:
    if token := environment.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    name, password = (environment.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD"))
    if name and password:
        return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
    return {}


def _read(answer: http.client.HTTPResponse, count: int) -> bytes:
    """At most so many bytes; an end before the announced one is an error, of which `read` says nothing."""
    found = answer.read(count)
    if answer.length and len(found) < min(count, 1):
        raise http.client.IncompleteRead(found)
    return found


def _break_off(connection: http.client.HTTPConnection) -> None:
    found = connection.sock
    if found is not None:
        with suppress(OSError):
            found.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    """One line that stays the same while the cause does: the log says it once."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
