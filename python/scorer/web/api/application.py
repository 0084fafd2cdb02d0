"""Assembly of the REST API's routers, and its OpenAPI description."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scorer.release import (
    agent_answers,
    answers,
    card_answers,
    model,
    review_answers,
    rule_answers,
    version_answers,
)
from scorer.web.api import (
    additions,
    adoption,
    agents,
    audit,
    builds,
    bundles,
    calendar,
    changes,
    checkpoints,
    docs,
    drift,
    events,
    health,
    metrics,
    notifications,
    permissions,
    problems,
    projects,
    readouts,
    reviews,
    rules,
    versions,
    weekly,
    words,
)
from scorer.web.api.watch import Watch

if TYPE_CHECKING:
    from scorer.release.open import PlatformServices
    from scorer.web.api.security import Sessions
    from scorer.web.counters import WebCounters
    from scorer.web.sign_ins import SignIns

ROUTERS = tuple(
    module.router
    for module in (
        health,
        projects,
        additions,
        builds,
        bundles,
        checkpoints,
        calendar,
        changes,
        permissions,
        events,
        metrics,
        drift,
        readouts,
        reviews,
        rules,
        versions,
        weekly,
        adoption,
        notifications,
        agents,
        audit,
    )
)
_ALWAYS = {
    401: "Unauthenticated: the token is missing, wrong, expired or revoked.",
    403: "The caller lacks the role that the operation needs.",
    404: "The object does not exist, or the caller may not see it.",
    413: "The body is too large.",
    422: "Validation error; the detail names the field and the rule.",
    429: "Too many requests of this token, user or address; `Retry-After` gives the seconds to wait.",
    500: "Internal error; the platform's log has the id.",
    503: "A server, the registry or the database does not respond; try again.",
}


def create(
    platform: PlatformServices, *, sessions: Sessions | None, counters: WebCounters, sign_ins: SignIns
) -> FastAPI:
    """Return the REST API as an application."""
    from scorer import bridge

    app = FastAPI(
        title="scorer platform",
        version=bridge.__version__,
        summary="Bundles, change requests, calendar, reports and releases.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        redirect_slashes=False,
        separate_input_output_schemas=False,
        servers=[{"url": "/api/v1"}],
        root_path_in_servers=False,
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.platform = platform
    app.state.sessions = sessions
    app.state.counters = counters
    app.state.sign_ins = sign_ins
    app.state.watch = Watch(
        platform.service.changes.newest_events,
        lambda: platform.stopping,
        platform.settings.web,
        counters,
    )
    for router in ROUTERS:
        app.include_router(router)

    @app.get("/docs", include_in_schema=False)
    def page() -> HTMLResponse:
        return HTMLResponse(docs.page(app.openapi()))

    @app.get("/docs.css", include_in_schema=False)
    def style() -> Response:
        return Response(docs.STYLE, media_type="text/css")

    problems.install(app)
    app.add_middleware(_Edge)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]
    return app


def _described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI description, with every status of every operation and errors as problems."""
    if app.openapi_schema:
        return app.openapi_schema
    schema = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=app.routes,
        servers=app.servers,
        description="Errors are problem documents (RFC 9457), which clients distinguish by `type`.",
    )
    schemas = schema["components"]["schemas"]
    for leftover in ("HTTPValidationError", "ValidationError"):
        schemas.pop(leftover, None)
    words.describe(
        schemas, agent_answers, answers, card_answers, model, review_answers, rule_answers, version_answers
    )
    schemas["Problem"] = problems.ProblemDetails.model_json_schema()
    problem = {problems.MEDIA: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for path, operations in schema["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            for status, said in _ALWAYS.items():
                if path == "/health" and status in (401, 403, 404, 422, 413):
                    continue
                if status == 422 and responses.get("422", {}).get("description") == "Validation Error":
                    del responses["422"]  # FastAPI's default description
                responses.setdefault(str(status), {}).setdefault("description", said)
            for status, response in responses.items():
                if int(status) >= 400:
                    response["content"] = problem
            operation["responses"] = dict(sorted(responses.items()))
            if operation.get("security"):
                # Alternatives: a token, or a session with its CSRF header.
                operation["security"] = [{"token": []}, {"session": []}]
    app.openapi_schema = schema
    return schema


class _Edge:
    """Responds to unexpected exceptions without disclosing their details."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            if begun:
                raise
            response = problems.defect(Request(scope), error)
            await response(scope, receive, send)
