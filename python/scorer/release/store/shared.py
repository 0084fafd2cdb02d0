"""Reads whose results are shared by all callers for as long as nothing is committed to the database."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from scorer.release.store import Store

V = TypeVar("V")

_LOCKS: Final = 16
_TURN_SECONDS: Final = 5.0
"""Longest wait for another thread that reads the same. After it, a thread reads by itself."""


class SharedReads(Generic[V]):
    """Keeps the results of reads until the next commit of any process, which `Store.version` reveals.

    A result is therefore as current as one that is read anew: a user who was removed, or a change that was
    made, is seen by the next call. Results are shared between threads and must not be modified.

    Args:
        store: The database.
        most: Limit on the results that are kept. The least recently used ones are dropped.
    """

    def __init__(self, store: Store, most: int) -> None:
        self._store, self._most = store, most
        self._kept: OrderedDict[Hashable, tuple[object, V]] = OrderedDict()
        self._keeping = threading.Lock()
        self._locks = tuple(threading.Lock() for _ in range(_LOCKS))
        self.count = 0
        """Number of reads that were run."""

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, read: Callable[[], V]) -> V:
        """Return the result for a key, from a read that saw all commits before this call.

        Args:
            key: What is read.
            read: Reads it. The result depends on nothing but the key and the database.
        """
        with self._turn(key):
            # The version is taken before the read: a commit in between makes the result outdated, not wrong.
            version = self._store.version()
            with self._keeping:
                kept = self._kept.get(key)
                if kept is not None and kept[0] == version:
                    self._kept.move_to_end(key)
                    return kept[1]
            value = read()
            with self._keeping:
                self.count += 1
                self._kept[key] = version, value
                self._kept.move_to_end(key)
                while len(self._kept) > self._most:
                    self._kept.popitem(last=False)
            return value

    @contextmanager
    def _turn(self, key: Hashable) -> Iterator[None]:
        """Let one thread at a time read the same key, so that the others find its result."""
        lock = self._locks[hash(key) % _LOCKS]
        is_held = lock.acquire(timeout=_TURN_SECONDS)
        try:
            yield
        finally:
            if is_held:
                lock.release()
