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
    from scorer.web.sign_ins import SignIns

PATH = "/api/v1"


def create_api(
    platform: PlatformServices, *, sessions: Sessions | None, counters: WebCounters, sign_ins: SignIns
) -> FastAPI:
    """The application, to be mounted at `PATH`.

    Args:
        platform: Whose operations these are.
        sessions: Reads a browser's session; None: bearer tokens alone.
        counters: Counts of the web side, shown with the platform's metrics.
        sign_ins: Limits and records failures.
    """
    from scorer.web.api.application import create

    return create(platform, sessions=sessions, counters=counters, sign_ins=sign_ins)
