"""`Platform`: every operation, by the name that it has everywhere."""

from __future__ import annotations

from types import TracebackType

import httpx

from scorer.platform import credentials
from scorer.platform.access import Access
from scorer.platform.changes import Changes
from scorer.platform.places import Places
from scorer.platform.telling import Telling
from scorer.platform.transport import Transport


class Platform(Access, Changes, Places, Telling):
    """One platform, as one user. May be used by several threads at once.

    Args:
        url: Its address. Default: $SCORER_PLATFORM_URL, or as `scorer login` kept it.
        token: Default: $SCORER_PLATFORM_TOKEN, or as `scorer login` kept it for that address.
        timeout: Seconds for one answer.
        client: In place of one's own connections, for tests and unusual networks.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        client: httpx.Client | None = None,
    ) -> None:
        found = credentials.find(url, token)
        self.url = found.url
        self._transport = Transport(found.url, found.token, timeout=timeout, client=client)

    def close(self) -> None:
        """Closes the connections."""
        self._transport.close()

    def __enter__(self) -> Platform:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
