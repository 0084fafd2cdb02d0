"""Sends a request: typed results, rejections as errors, retries only where they are safe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, TypeVar, cast

import httpx
from pydantic import TypeAdapter, ValidationError

from scorer.release.errors import PlatformError, UnreachableError
from scorer.release.problems import error_of

T = TypeVar("T")

PREFIX = "/api/v1"
_TRIES = 4
_AGAIN = (502, 503, 504)


class Transport:
    """Connections to one platform, as one user.

    Args:
        url: Address without a trailing slash.
        token: Sent with every request.
        timeout: Seconds for one response; a long poll has its own.
        client: Replaces the connections, for tests.
    """

    def __init__(
        self, url: str, token: str, *, timeout: float = 30.0, client: httpx.Client | None = None
    ) -> None:
        self.url = url
        self._client = client or httpx.Client(base_url=url, timeout=timeout)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._timeout = timeout

    def close(self) -> None:
        """Close the connections to the platform."""
        self._client.close()

    def call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        """Send a request and return its response as a type. Options are those of `send`."""
        return self._read(kind, self.send(method, path, **options))

    def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        content: Callable[[], Iterator[bytes]] | None = None,
        repeatable: bool | None = None,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Send a request, again where a repetition changes nothing.

        Args:
            method: Method of HTTP.
            path: Path below /api/v1.
            json: Fields of the body.
            query: Fields of the query; None values are left out.
            headers: Added to the token's.
            content: Returns the bytes of the body, anew for every try.
            repeatable: Whether the request may be sent twice; default: GET, PUT and DELETE.
            timeout: Seconds for the response, in place of the client's.

        Raises:
            PlatformError: The request was rejected; the class is the one that the platform named.
        """
        again = method in ("GET", "PUT", "DELETE") if repeatable is None else repeatable
        parameters = {key: value for key, value in _plain(query or {}).items() if value is not None}
        for attempt in range(1, _TRIES + 1):
            last = attempt == _TRIES
            try:
                response = self._client.request(
                    method,
                    f"{PREFIX}{path}",
                    json=_plain(json),
                    params=parameters,
                    headers={**self._headers, **(headers or {})},
                    content=None if content is None else content(),
                    timeout=self._timeout if timeout is None else timeout,
                )
            except httpx.TransportError as error:
                # A request without a connection was not sent.
                if last or not (again or isinstance(error, httpx.ConnectError)):
                    raise self._away(error, again=again) from error
            else:
                if response.is_success:
                    return response
                if last or not again or response.status_code not in _AGAIN:
                    raise _refusal(response)
            time.sleep(random.uniform(0.5, 1.0) * 0.2 * 2**attempt)  # noqa: S311 - spreads tries
        raise AssertionError

    @contextmanager
    def opened(self, path: str) -> Iterator[httpx.Response]:
        """Open a response that is read as it arrives."""
        with self._client.stream("GET", f"{PREFIX}{path}", headers=self._headers) as response:
            if not response.is_success:
                response.read()
                raise _refusal(response)
            yield response

    def _away(self, error: httpx.TransportError, *, again: bool) -> UnreachableError:
        why = str(error) or type(error).__name__
        remedy = (
            "is it running, and is this its address?" if again else "look whether it was done, then repeat"
        )
        return UnreachableError(f"{self.url} does not answer ({why}); {remedy}")

    def _read(self, kind: type[T], response: httpx.Response) -> T:
        try:
            found: T = _adapter(cast("Hashable", kind)).validate_json(response.content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise PlatformError(
                f"{self.url} sent a response that this version cannot read ({where}: {first['msg']}); "
                "use the version of scorer that the platform has"
            ) from error
        return found


@lru_cache(maxsize=128)
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", kind))


def _plain(fields: Any) -> Any:
    """Write the moments among the fields as text."""
    if not isinstance(fields, Mapping):
        return fields
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in fields.items()}


def _refusal(response: httpx.Response) -> PlatformError:
    """Return the error that a problem document stands for."""
    try:
        problem = response.json()
        type_, detail = str(problem["type"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        type_, detail = "", f"{response.url.host} answers {response.status_code} {response.reason_phrase}"
    return error_of(type_, response.status_code)(detail)
