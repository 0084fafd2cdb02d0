"""Which frauds of the handbook's data can be known when they happen, because their scenario is recorded.

The authors of the data simulate three scenarios:

1. Amounts above 220 are frauds. Everybody can see it.
2. A terminal is compromised for 28 days, and all of its transactions are frauds. Amounts and customers are
   those of genuine transactions, so nothing tells such a fraud until the first one of the terminal is known,
   which takes the delay of labels.
3. A customer is compromised for 14 days, and a third of the transactions are frauds with five times the usual
   amount. Most of them can be told by their amount.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from examples.fraud.features import DELAY_DAYS, by_group, running_sums
from examples.fraud.transactions import DAY_MS, Transactions

TERMINAL: Final = 2
"""Number of the scenario with compromised terminals."""
COMPROMISED_DAYS: Final = 28


def knowable(transactions: Transactions, delay_days: int = DELAY_DAYS) -> npt.NDArray[np.bool_]:
    """Return which transactions are frauds that can be known at their time, `[n]`.

    These are all of scenarios 1 and 3, and those of scenario 2 whose terminal has a fraud of this scenario
    that is known by then and at most 28 days old. This is an upper bound: some frauds of scenario 3 have
    amounts that are usual.

    Args:
        transactions: Transactions in order of time.
        delay_days: Number of days until a fraud is known.
    """
    order, key = by_group(transactions.terminal, transactions.time_ms, COMPROMISED_DAYS + delay_days)
    frauds = running_sums((transactions.scenario[order] == TERMINAL) * 1.0)
    end = np.searchsorted(key, key - delay_days * DAY_MS, side="right") if delay_days else np.arange(len(key))
    start = np.searchsorted(key, key - COMPROMISED_DAYS * DAY_MS, side="left")
    known = np.empty(len(order), bool)
    known[order] = frauds[end] - frauds[np.minimum(start, end)] > 0
    is_fraud = transactions.fraud == 1
    return np.asarray(is_fraud & ((transactions.scenario != TERMINAL) | known))
