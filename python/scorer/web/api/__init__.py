"""The REST API under /api/v1, which exposes the operations of the service layer one to one.

It is an application separate from the pages. Requests and responses are JSON, errors are problem documents
(RFC 9457), undocumented fields are rejected, and /api/v1/openapi.json describes the API.
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
    """Create the application, to be mounted at `PATH`.

    Args:
        platform: The platform.
        sessions: Reads the session of a browser; None: only bearer tokens are accepted.
        counters: Counters of the web server, which are part of the platform's metrics.
        sign_ins: Limits and records failed sign-ins.
    """
    from scorer.web.api.application import create

    return create(platform, sessions=sessions, counters=counters, sign_ins=sign_ins)
