"""Bundles that the platform keeps in its own memory, to evaluate single rows."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.release.bundles import Bundles

_LOADED = 2
"""Bundles that are kept. The least recently used one is dropped."""


class BundlesInMemory:
    """Loads bundles, and keeps the most recently used ones.

    Args:
        bundles: Provides verified local copies.
    """

    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles
        self._kept: OrderedDict[str, Bundle] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, digest: str) -> Bundle:
        """Return the bundle with a digest, which the caller has resolved and may see."""
        from scorer.bundle import Bundle

        with self._lock:
            found = self._kept.pop(digest, None) or Bundle.load(self._bundles.local(digest), digest)
            self._kept[digest] = found
            while len(self._kept) > _LOADED:
                self._kept.popitem(last=False)
            return found
