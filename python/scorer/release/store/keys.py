"""Secret keys that every platform process on one database uses, and replaces from time to time."""

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
    """Signs with the newest key of a name, and accepts the one before as well.

    The first process that needs a key makes it, and the first that finds it old replaces it. Another process
    learns of that within a minute, or when it is shown a signature that it does not know.

    Args:
        store: The database that the processes share.
        name: What the keys are for, for instance `forms`.
        days: Age at which a key is replaced. What it signed is accepted until its successor is replaced.
        now: The time.
        clock: Seconds that never go back.
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
        """Whether one of the processes made the signature, with the newest key or the one before."""
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
            found, is_due = self._found(connection)
        if is_due:
            with self._store.write() as connection:
                # Another process may have been first since the read.
                found, is_due = self._found(connection)
                if is_due:
                    found = self._replace(connection, found)
        return tuple(bytes.fromhex(secret) for secret in found)

    def _found(self, connection: Connection) -> tuple[list[str], bool]:
        """Return the newest key and the one before, as far as there are, and whether a new one is due."""
        table = shared_keys.c
        rows = connection.execute(
            select(shared_keys).where(table.name.in_((self._name, self._previous)))
        ).all()
        ordered = sorted(rows, key=lambda row: row.name != self._name)
        is_due = not ordered or self._now() - ordered[0].created_at >= self._age
        return [row.secret for row in ordered], is_due

    def _replace(self, connection: Connection, found: list[str]) -> list[str]:
        made = [secrets.token_hex(32), *found[:1]]
        connection.execute(delete(shared_keys).where(shared_keys.c.name.in_((self._name, self._previous))))
        for name, secret in zip((self._name, self._previous), made, strict=False):
            connection.execute(insert(shared_keys).values(name=name, secret=secret, created_at=self._now()))
        return made


def _signature(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), sha256).hexdigest()
