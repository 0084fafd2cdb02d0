"""Python client of the platform.

::

    from scorer.sdk import PlatformClient

    with PlatformClient() as platform:  # the stored login, or SCORER_PLATFORM_URL and SCORER_PLATFORM_TOKEN
        change = platform.ship_test("bundle", "fraud.checkout", minutes=60)
        for event in platform.watch(change.id):
            print(event.message)
        print(platform.readout(change.id).verdict)

Its methods are the operations of REST and of the pages. A rejected operation raises one of the errors below.
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
