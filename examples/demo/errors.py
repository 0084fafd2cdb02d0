"""Why a demo stopped."""

from __future__ import annotations

from scorer.errors import ScorerError


class DemoError(ScorerError):
    """A step of the demo failed; the message says which and what to do."""
