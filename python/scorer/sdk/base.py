"""What every group of operations stands on."""

from __future__ import annotations

from typing import Any, TypeVar

import httpx

from scorer.sdk.transport import Transport

T = TypeVar("T")


class Operations:
    """A group of operations over one transport."""

    _transport: Transport

    def _call(self, kind: type[T], method: str, path: str, **options: Any) -> T:
        return self._transport.call(kind, method, path, **options)

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        return self._transport.send(method, path, **options)
