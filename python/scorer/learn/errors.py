"""What can be wrong with data or with a training run."""

from __future__ import annotations

from scorer.errors import ScorerError


class DataError(ScorerError):
    """The data given cannot be used; the message names the column or row, the rule and the remedy."""
