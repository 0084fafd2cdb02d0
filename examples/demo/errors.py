"""The demo's error."""

from __future__ import annotations

from scorer.errors import ScorerError


class DemoError(ScorerError):
    """A step of the demo failed; the message names the step, the reason and the remedy."""
