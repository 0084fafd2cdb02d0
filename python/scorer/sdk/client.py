"""`PlatformClient`: every operation, by the name that it has everywhere."""

from __future__ import annotations

from types import TracebackType

import httpx

from scorer.sdk import credentials
from scorer.sdk.access import AccessCalls
from scorer.sdk.changes import ChangeCalls
from scorer.sdk.permissions import PermissionCalls
from scorer.sdk.places import PlaceCalls
from scorer.sdk.telling import NotificationCalls
from scorer.sdk.transport import Transport


class PlatformClient(AccessCalls, ChangeCalls, PermissionCalls, PlaceCalls, NotificationCalls):
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

    def __enter__(self) -> PlatformClient:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
