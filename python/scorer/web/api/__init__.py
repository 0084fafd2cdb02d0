"""REST under /api/v1: the service layer's operations, one to one.

An application of its own, put beside the pages: its errors are problems (RFC 9457), its description is
/api/v1/openapi.json. JSON in and out; what is not documented is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastapi import FastAPI

    from scorer.release.open import PlatformServices
    from scorer.web.api.security import Sessions
    from scorer.web.counters import WebCounters

PATH = "/api/v1"


def create_api(
    platform: PlatformServices, *, sessions: Sessions | None = None, counters: WebCounters | None = None
) -> FastAPI:
    """The application, to be mounted at `PATH`.

    Args:
        platform: Whose operations these are.
        sessions: Reads a browser's session; None: bearer tokens alone.
        counters: Counts of the web side, shown with the platform's metrics.
    """
    from scorer.web.api.application import create
    from scorer.web.counters import WebCounters

    return create(platform, sessions=sessions, counters=counters or WebCounters())
