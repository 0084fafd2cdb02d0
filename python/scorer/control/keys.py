"""Fetches the keys of the token issuer from a URL into the file that the data plane reads.

A failed fetch does not change the file. The data plane uses its keys until they are too old.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from scorer.config.identity import JwtSettings
from scorer.durable import write_atomically
from scorer.events import EventLog

_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 1 << 20
_RETRY_SECONDS = 5.0


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_keywords: Any) -> None:
        """Reject redirects, so that keys come only from the configured URL."""
        return


class KeyFetcher:
    """Fetches the key set periodically.

    Args:
        settings: Settings `identity.jwt`, with `keys_url` and `keys`.
        events: Event log for failures and recoveries.
    """

    def __init__(self, settings: JwtSettings, events: EventLog) -> None:
        self._settings = settings
        self._events = events
        self._error = ""

    async def run(self) -> None:
        """Fetch the issuer's keys periodically until the task is cancelled."""
        while True:
            fetched = await asyncio.to_thread(self.fetch)
            wait = self._settings.fetch_s if fetched else min(_RETRY_SECONDS, self._settings.fetch_s)
            await asyncio.sleep(wait)

    def fetch(self) -> bool:
        """Fetch the keys once, and return whether the file was written."""
        url, path = self._settings.keys_url, self._settings.keys
        if url is None or path is None:
            return False
        try:
            _replace(path, _download(url))
        except (OSError, ValueError) as error:
            text = str(getattr(error, "reason", error))
            if text != self._error:
                self._events.error("jwt_keys_not_fetched", url=url, error=text)
                self._error = text
            return False
        if self._error:
            self._events.info("jwt_keys_fetched", url=url)
            self._error = ""
        return True


def _download(url: str) -> bytes:
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        _NoRedirects(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
    )
    with opener.open(url, timeout=_TIMEOUT_SECONDS) as response:
        body: bytes = response.read(_MOST_BYTES + 1)
    if len(body) > _MOST_BYTES:
        raise ValueError(f"the key set is larger than {_MOST_BYTES} bytes")
    found = json.loads(body)
    if not isinstance(found, dict) or not isinstance(found.get("keys"), list):
        raise ValueError("the reply is no JSON Web Key Set")  # noqa: TRY004 - the type is of foreign data
    return body


def _replace(path: Path, body: bytes) -> None:
    """Replace the file atomically. Its modification time is that of the latest successful fetch."""
    write_atomically(path, body)
    os.utime(path)
