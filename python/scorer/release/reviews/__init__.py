"""The review queue: decisions that a checkpoint answered with `review` become cases that people decide.

`intake` finds the decisions, `queue` has the operations of reviewers, `clock` reports and ends what is late,
and `outbox` reports the reviewers' decisions to the servers as outcomes.
"""

from __future__ import annotations

from scorer.release.reviews.service import Reviews

__all__ = ["Reviews"]
