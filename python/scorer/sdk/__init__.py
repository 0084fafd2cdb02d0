"""The platform from Python: bring a model to production with a few calls.

::

    from scorer.sdk import PlatformClient

    with PlatformClient() as platform:  # as `scorer login` kept it, or SCORER_PLATFORM_URL and _TOKEN
        change = platform.ship_test("bundle", "fraud.checkout", minutes=60)
        for event in platform.watch(change.id):
            print(event.message)
        print(platform.readout(change.id).verdict)

The same operations as REST and the pages; what is refused is raised as `scorer.release.errors` has it.
Needs scorer[platform], of which it imports httpx and pydantic alone.
"""

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
from scorer.sdk.client import PlatformClient

__all__ = [
    "ConflictError",
    "FrozenError",
    "InvalidError",
    "NotAllowedError",
    "NotAuthenticatedError",
    "NotFoundError",
    "PlatformClient",
    "PlatformError",
    "QuotaError",
    "RefusedError",
    "UnreachableError",
]
