"""What a load test can raise."""

from __future__ import annotations

from typing import ClassVar

from scorer.errors import ScorerError


class LoadTestError(ScorerError):
    """A load test that cannot be run, so that there is no verdict."""

    exit_code: ClassVar[int] = 2
