"""One request and what came of it: typed answers, refusals as errors, another try only where that is safe."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
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
    """Speaks to one platform as one user.

    Args:
        url: Without a last slash.
        token: Sent with every request.
        timeout: Seconds for one answer; a long-poll has its own.
        client: In place of one's own connections, for tests.
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
        """Sends, and reads the answer as a type. Options as of `send`."""
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
        """Sends a request, again where that changes nothing more than once.

        Args:
            method: Of HTTP.
            path: Below /api/v1.
            json: The body.
            query: None values are left out.
            headers: Besides the token's.
            content: Makes the body's bytes, anew for every try.
            repeatable: Whether it may be sent twice; default: GET, PUT and DELETE.
            timeout: Seconds, in place of the usual ones.

        Raises:
            PlatformError: Or the class that the platform named.
        """
        again = method in ("GET", "PUT", "DELETE") if repeatable is None else repeatable
        parameters = {key: _text(value) for key, value in (query or {}).items() if value is not None}
        for attempt in range(1, _TRIES + 1):
            last = attempt == _TRIES
            try:
                response = self._client.request(
                    method,
                    f"{PREFIX}{path}",
                    json=json,
                    params=parameters,
                    headers={**self._headers, **(headers or {})},
                    content=None if content is None else content(),
                    timeout=self._timeout if timeout is None else timeout,
                )
            except httpx.TransportError as error:
                # What could not even connect was not sent.
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
        """An answer to be read as it comes."""
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
                f"{self.url} answers what this version does not know ({where}: {first['msg']}); "
                f"use the version "
                "of scorer that the platform has"
            ) from error
        return found


@lru_cache(maxsize=128)
def _adapter(kind: Hashable) -> TypeAdapter[Any]:
    return TypeAdapter(cast("Any", kind))


def _text(value: Any) -> Any:
    from datetime import datetime

    return value.isoformat() if isinstance(value, datetime) else value


def _refusal(response: httpx.Response) -> PlatformError:
    """The problem as the error that it was."""
    try:
        problem = response.json()
        type_, detail = str(problem["type"]), str(problem["detail"])
    except (ValueError, KeyError, TypeError):
        type_, detail = "", f"{response.url.host} answers {response.status_code} {response.reason_phrase}"
    return error_of(type_, response.status_code)(detail)
