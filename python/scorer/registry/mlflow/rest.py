"""A client of MLflow's REST API that bounds the time and the size of every request.

A call ends within its time limit and keeps at most a fixed number of bytes, whatever the server does.
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
"""Statuses that do not depend on the requested object but on credentials, load or time; the same request may
succeed later."""


class MlflowRefusedError(RegistryError):
    """MLflow processed the request and rejected it.

    Attributes:
        code: MLflow's error code, such as ``RESOURCE_DOES_NOT_EXIST``.
    """

    def __init__(self, message: str, code: str) -> None:
        self.code = code
        super().__init__(message)


class Rest:
    """Calls to one MLflow server. All methods may be called from any thread.

    Credentials are read from the variables that MLflow's own clients use: ``MLFLOW_TRACKING_TOKEN``, or
    ``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD``. Redirects are not followed and proxies are
    not used.

    Args:
        url: ``http://host:port`` or ``https://host``, with a path if the server has a prefix.
        seconds: Time limit for one request in total, in seconds. Transfers of artifacts get one more second
            for every MiB.
        environment: Used instead of ``os.environ``.

    Raises:
        InvalidReferenceError: The address is not valid.
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
        """Send a GET request and return the JSON object of the response.

        Args:
            path: Path below ``/api/2.0/mlflow``.
            **query: Parameters of the query string.

        Raises:
            RegistryUnavailableError: There is no response in time, or it is not one of MLflow's REST API.
            MlflowRefusedError: MLflow rejects the request.
        """
        return self._json("GET", API + path, query=query)

    def post(self, path: str, **body: Any) -> Mapping[str, Any]:
        """Send a POST request with a JSON body; otherwise as `get`."""
        return self._json("POST", API + path, body=body)

    def delete(self, path: str, **body: Any) -> None:
        """Send a DELETE request with a JSON body; otherwise as `get`."""
        self._json("DELETE", API + path, body=body)

    def delete_artifacts(self, path: str) -> None:
        """Delete an artifact directory below the proxy. A directory that does not exist is no error."""
        try:
            self._json("DELETE", f"{ARTIFACTS}/{quote(path)}")
        except MlflowRefusedError as error:
            if error.code not in {"RESOURCE_DOES_NOT_EXIST", "RESOURCE_NOT_FOUND"}:
                raise

    def list_artifacts(self, path: str) -> Mapping[str, int]:
        """Return the names in one artifact directory with their sizes in bytes; a directory has size -1."""
        found = self._json("GET", ARTIFACTS, query={"path": path}).get("files", [])
        try:
            return {
                str(entry["path"]): -1 if entry.get("is_dir") else int(entry.get("file_size") or 0)
                for entry in found
            }
        except (AttributeError, KeyError, TypeError, ValueError):
            raise self.foreign() from None

    def download(self, path: str, sink: BinaryIO, *, limit: int) -> int:
        """Write an artifact to `sink`.

        Args:
            path: Path of the artifact below the proxy.
            sink: File that is open for writing.
            limit: Expected maximum size in bytes. At most one byte more is read, so that the caller can
                detect an artifact that is too large.

        Returns:
            The number of bytes written.

        Raises:
            OSError: The sink cannot be written, for example because the disk is full.
            RegistryUnavailableError: There is no response in time, or the connection breaks.
            MlflowRefusedError: MLflow rejects the request.
        """
        with self._exchange("GET", f"{ARTIFACTS}/{quote(path)}", seconds=self._time_for(limit)) as answer:
            count, failure = 0, None
            while failure is None and (chunk := _read(answer, min(_CHUNK, limit + 1 - count))):
                count += len(chunk)
                try:
                    sink.write(chunk)
                except OSError as error:  # not inside `_exchange`, which would report it as a server failure
                    failure = error
        if failure is not None:
            raise failure
        return count

    def upload(self, path: str, file: Path) -> None:
        """Upload a file as the artifact `path`."""
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
        """Abort running requests and reject new ones, so that shutdown does not wait for a slow server."""
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
        # The socket's timeout restarts with every byte received, so a server that sends slowly could keep the
        # request open for days. The timer bounds the whole request.
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
            if late.is_set():  # a truncated response without Content-Length looks complete
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
        """Return the error for a response that does not follow MLflow's REST API."""
        return RegistryUnavailableError(
            f"{self.url} does not answer as MLflow's REST API does; check the url"
        )

    def _time_for(self, count: int) -> float:
        return self._seconds + count / _SLOWEST_BYTES_PER_SECOND


def check_url(url: str) -> str:
    """Check the address of an MLflow server and return it without trailing slashes.

    Raises:
        InvalidReferenceError: The address is not a plain ``http`` or ``https`` URL, or contains credentials.
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
    """Return the time in milliseconds since the Unix epoch, the unit of MLflow's times."""
    return time.time_ns() // 1_000_000


def _credentials(environment: Mapping[str, str]) -> dict[str, str]:
    if token := environment.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    name, password = (environment.get(f"MLFLOW_TRACKING_{part}") for part in ("USERNAME", "PASSWORD"))
    if name and password:
        return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}
    return {}


def _read(answer: http.client.HTTPResponse, count: int) -> bytes:
    """Read at most `count` bytes.

    Raises:
        http.client.IncompleteRead: The connection ended before ``Content-Length`` bytes had arrived.
            `HTTPResponse.read` with a count does not raise in this case.
    """
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
    """Return one line that is the same for the same cause, because the log drops repeated messages."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return type(error).__name__
