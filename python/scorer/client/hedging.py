"""When a score is sent a second time while its first copy may still be answered."""

from __future__ import annotations

import math
import threading
from typing import Final, Literal, TypeAlias

from scorer.client.errors import InvalidRequestError
from scorer.client.retry import RetryBudget, RetryPolicy

Hedge: TypeAlias = float | Literal["p95"] | None
"""Seconds after which a score without an answer is sent again; "p95": that of recent scores; None: never."""

_TOKENS: Final = 10.0
_LEAST_S: Final = 0.001
# A slower sample raises the estimate by 10 %, a faster one lowers it by 0.5 %. Both are in balance where 5 %
# of the samples are slower.
_UP, _DOWN = 1.1, 0.995


class Hedging:
    """The delay and the budget of a client's hedges.

    In the long run, at most about a tenth of the scores are sent twice. While no replica answers, none is.

    Args:
        hedge: The client's setting.
        timeout: Time limit of the client's calls in seconds, the upper limit of the estimated p95.

    Raises:
        InvalidRequestError: The setting is neither a positive finite number nor "p95".
    """

    def __init__(self, hedge: float | Literal["p95"], timeout: float) -> None:
        if hedge != "p95" and (
            isinstance(hedge, bool) or not isinstance(hedge, int | float) or not 0 < hedge < math.inf
        ):
            raise InvalidRequestError(
                f"hedge={hedge!r} is neither a number of seconds above 0 nor 'p95'",
                remedy="leave it out to send each score once",
            )
        self._fixed = None if hedge == "p95" else float(hedge)
        self._most = max(timeout, _LEAST_S)
        self._estimate = self._most / 2
        self._budget = RetryBudget(RetryPolicy(max_tokens=_TOKENS))
        self._lock = threading.Lock()

    @property
    def delay(self) -> float:
        """Seconds to wait for the first copy."""
        return self._estimate if self._fixed is None else self._fixed

    def may_send(self) -> bool:
        """Take a token for a second copy; return whether it may be sent."""
        return self._budget.failed()

    def answered(self, *, was_slower: bool) -> None:
        """Account for a score that was answered.

        Args:
            was_slower: Whether the answer took longer than the delay.
        """
        self._budget.succeeded()
        with self._lock:
            estimate = self._estimate * (_UP if was_slower else _DOWN)
            self._estimate = min(max(estimate, _LEAST_S), self._most)
