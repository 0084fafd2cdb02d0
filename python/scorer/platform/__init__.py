"""The platform from Python: bring a model to production with a few calls.

::

    from scorer.platform import Platform

    with Platform() as platform:  # as `scorer login` kept it, or SCORER_PLATFORM_URL and _TOKEN
        change = platform.ship_test("bundle", "fraud.checkout", minutes=60)
        for event in platform.watch(change.id):
            print(event.message)
        print(platform.readout(change.id).verdict)

The same operations as REST and the pages; what is refused is raised as `scorer.release.errors` has it.
Needs scorer[platform], of which it imports httpx and pydantic alone.
"""

from scorer.platform.client import Platform
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
    PlatformError,
    QuotaError,
    RefusedError,
    UnreachableError,
)

__all__ = [
    "ConflictError",
    "FrozenError",
    "InvalidError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "NotFoundError",
    "Platform",
    "PlatformError",
    "QuotaError",
    "RefusedError",
    "UnreachableError",
]
