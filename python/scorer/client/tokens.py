"""The tokens of a client's latest decisions, sent with the outcomes that the same client reports."""

from __future__ import annotations

import threading
from collections import OrderedDict

_MOST = 65_536


class DecisionTokens:
    """Tokens by checkpoint and decision; the oldest are dropped.

    An outcome that is reported by another process, or later than 65,536 decisions, needs the token of the
    reply: keep `decision_token` with the payment.

    Args:
        most: Largest number of tokens.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._tokens: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, checkpoint: str, decision_id: str, token: bytes) -> None:
        """Remember the token of a decision, or of a batch by its request id."""
        if not token:
            return
        with self._lock:
            self._tokens[checkpoint, decision_id] = token
            while len(self._tokens) > self._most:
                self._tokens.popitem(last=False)

    def of(self, checkpoint: str, decision_id: str) -> bytes:
        """Return the token of a decision, that of its batch, or b"" if neither is remembered."""
        with self._lock:
            batch = decision_id.rpartition("/")[0]
            own = self._tokens.get((checkpoint, decision_id))
            return own or self._tokens.get((checkpoint, batch), b"")
