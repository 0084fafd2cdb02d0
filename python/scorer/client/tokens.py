"""The tokens of a client's latest decisions, sent with the outcomes that the same client reports."""

from __future__ import annotations

import threading
from collections import OrderedDict

_MOST = 65_536


class DecisionTokens:
    """Tokens by checkpoint and decision id. The oldest are discarded.

    If an outcome is reported by another process, or after more than 65,536 later decisions, the caller must
    pass the token of the reply. Store `decision_token` with the payment for this purpose.

    Args:
        most: Largest number of tokens that are kept.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._tokens: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, checkpoint: str, decision_id: str, token: bytes) -> None:
        """Store the token of a decision, or of a batch under its request id."""
        if not token:
            return
        with self._lock:
            self._tokens[checkpoint, decision_id] = token
            while len(self._tokens) > self._most:
                self._tokens.popitem(last=False)

    def of(self, checkpoint: str, decision_id: str) -> bytes:
        """Return the token of a decision or of its batch, or b"" if neither is stored."""
        with self._lock:
            batch = decision_id.rpartition("/")[0]
            own = self._tokens.get((checkpoint, decision_id))
            return own or self._tokens.get((checkpoint, batch), b"")
