"""Secret keys that all platform processes of one database share and rotate."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, insert, select

from scorer.release.store.tables import shared_keys
from scorer.release.store.values import utcnow

if TYPE_CHECKING:
    from scorer.release.store import Store

_READ_SECONDS = 60.0
_READ_AGAIN_SECONDS = 1.0


class SharedKeys:
    """Signs with the newest key of a name, and also accepts signatures of the previous key.

    The first process that needs a key creates it, and the first process that reads an old key replaces it.
    The other processes read the new key within a minute, or when they receive a signature that does not
    match.

    Args:
        store: The database that the processes share.
        name: Purpose of the keys, for example `forms`.
        days: Age in days at which a key is replaced. Its signatures are accepted until its successor is
            replaced.
        now: Returns the current time.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        days: float = 30.0,
        now: Callable[[], datetime] = utcnow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._name, self._now, self._clock = store, name, now, clock
        self._previous = f"{name}.previous"
        self._age = timedelta(days=days)
        self._lock = threading.Lock()
        self._keys: tuple[bytes, ...] = ()
        self._read_at = float("-inf")

    def sign(self, text: str) -> str:
        """Return the HMAC-SHA256 of a text in hexadecimal."""
        return _signature(self._current(_READ_SECONDS)[0], text)

    def has_signed(self, text: str, signature: str) -> bool:
        """Whether the signature was made with the newest or the previous key."""
        if self._matches(text, signature, self._current(_READ_SECONDS)):
            return True
        return self._matches(text, signature, self._current(_READ_AGAIN_SECONDS))

    @staticmethod
    def _matches(text: str, signature: str, keys: tuple[bytes, ...]) -> bool:
        sent = signature.encode("utf-8", "replace")
        return any(hmac.compare_digest(sent, _signature(key, text).encode()) for key in keys)

    def _current(self, seconds: float) -> tuple[bytes, ...]:
        with self._lock:
            if not self._keys or self._clock() - self._read_at > seconds:
                self._keys = self._read()
                self._read_at = self._clock()
            return self._keys

    def _read(self) -> tuple[bytes, ...]:
        with self._store.read() as connection:
            stored, is_due = self._stored(connection)
        if is_due:
            with self._store.write() as connection:
                # Another process may have replaced the key since the read.
                stored, is_due = self._stored(connection)
                if is_due:
                    stored = self._replace(connection, stored)
        return tuple(bytes.fromhex(secret) for secret in stored)

    def _stored(self, connection: Connection) -> tuple[list[str], bool]:
        """Return the stored keys, newest first, and whether a new one is due."""
        table = shared_keys.c
        rows = connection.execute(
            select(shared_keys).where(table.name.in_((self._name, self._previous)))
        ).all()
        ordered = sorted(rows, key=lambda row: row.name != self._name)
        is_due = not ordered or self._now() - ordered[0].created_at >= self._age
        return [row.secret for row in ordered], is_due

    def _replace(self, connection: Connection, stored: list[str]) -> list[str]:
        keys = [secrets.token_hex(32), *stored[:1]]
        connection.execute(delete(shared_keys).where(shared_keys.c.name.in_((self._name, self._previous))))
        for name, secret in zip((self._name, self._previous), keys, strict=False):
            connection.execute(insert(shared_keys).values(name=name, secret=secret, created_at=self._now()))
        return keys


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), sha256).hexdigest()
