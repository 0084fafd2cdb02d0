"""The rules of bundles in the windows of learning."""

from __future__ import annotations

from scorer.bundle import Bundle
from scorer.learn.experience import Experience
from scorer.stats.arrays import Bools


def eligible_by_rules(bundle: Bundle, rows: Experience) -> Bools:
    """Return the logged eligible actions that a bundle's rules allow, `[n, K]`.

    The log has no draws of other actions. Where the rules leave none of them, the fallback answers, and all
    eligible actions are returned.

    Args:
        bundle: The bundle; without rules the eligible actions are those of the log.
        rows: The decisions. Rules see their times and ids.
    """
    if bundle.rules is None:
        return rows.eligible
    ids = [str(one) for one in rows.decision_id.tolist()]
    return bundle.restrict(rows.context, rows.eligible, seconds=rows.time_ms // 1000, ids=ids)
