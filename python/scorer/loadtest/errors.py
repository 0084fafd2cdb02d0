"""The error of load tests."""

from __future__ import annotations

from typing import ClassVar

from scorer.errors import ScorerError


class LoadTestError(ScorerError):
    """A load test that cannot be run, so there is no verdict."""

    exit_code: ClassVar[int] = 2
