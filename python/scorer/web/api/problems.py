"""Errors as problem+json: type, title, status, detail, instance, and an id to ask an operator about."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from scorer.errors import ScorerError
from scorer.release.fields import violations
from scorer.release.problems import INTERNAL, KINDS, PREFIX, kind_of

MEDIA = "application/problem+json"
_LOG = logging.getLogger("scorer.web.api")
_RULES = {
    409: "The object's state does not allow this, or it has changed since.",
    423: "A freeze covers the start.",
    429: "The project's quota is used up.",
    503: "The platform or its database does not answer.",
}
_TITLES = {kind.status: kind for kind in reversed(KINDS)}


class ProblemDetails(BaseModel):
    """Why nothing was done (RFC 9457)."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="Stays the same whatever the words.", examples=[f"{PREFIX}frozen"])
    title: str = Field(examples=["A freeze is active"])
    status: int = Field(examples=[423])
    detail: str = Field(description="One line: the thing, the rule, the remedy.")
    instance: str = Field(description="What was asked for.", examples=["/api/v1/changes/cr-000017/approve"])
    id: str = Field(description="Of the request; what the platform's log has it under.")


def refusals(*statuses: int, **rules: str) -> dict[int | str, dict[str, Any]]:
    """Document how an operation may be rejected, besides what `application` documents for every one.

    Args:
        statuses: HTTP statuses of problem types, documented in general terms.
        rules: By the name of a problem type, `not_allowed` for `not-allowed`: the rule of this operation.
    """
    described = {status: _RULES[status] for status in statuses}
    for kind in KINDS:
        if rule := rules.get(kind.name.replace("-", "_")):
            described[kind.status] = rule
    return {status: {"description": rule} for status, rule in described.items()}


def install(app: FastAPI) -> None:
    """Has every error answered as a problem."""
    app.add_exception_handler(ScorerError, _refused)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _http)


def answer(
    request: Request,
    type_: str,
    title: str,
    status: int,
    detail: str,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return an error as a problem document (RFC 9457)."""
    identity = getattr(request.state, "request_id", None) or secrets.token_hex(6)
    problem = ProblemDetails(
        type=type_, title=title, status=status, detail=detail, instance=request.url.path[:500], id=identity
    )
    fields = dict(headers or {})
    if status == 401:
        fields["WWW-Authenticate"] = 'Bearer realm="scorer"'
    return Response(problem.model_dump_json(), status, fields, MEDIA)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ScorerError)  # noqa: S101 - as registered
    kind = kind_of(error)
    if kind is INTERNAL:
        return defect(request, error)
    wait = getattr(error, "retry_after", None)
    headers = None if wait is None else {"Retry-After": str(wait)}
    return answer(request, kind.type, kind.title, kind.status, " ".join(str(error).split()), headers)


def _unreadable(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - as registered
    invalid = _TITLES[422]
    return answer(request, invalid.type, invalid.title, 422, violations(error.errors()))


def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - as registered
    if error.status_code == 400:
        # What cannot even be read is not as documented either.
        invalid = _TITLES[422]
        return answer(request, invalid.type, invalid.title, 422, "the body is not JSON in UTF-8; send such")
    kind = _TITLES.get(error.status_code)
    title = kind.title if kind else str(error.detail)
    type_ = kind.type if kind else "about:blank"
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"{request.url.path[:200]} is no address of this API; /api/v1/docs lists them"
    return answer(request, type_, title, error.status_code, detail, error.headers)


def defect(request: Request, error: Exception) -> Response:
    """Return an internal error: the log has its traceback, the response its id."""
    identity = getattr(request.state, "request_id", None) or secrets.token_hex(6)
    request.state.request_id = identity
    _LOG.error("request %s: %s %s failed", identity, request.method, request.url.path, exc_info=error)
    return answer(
        request,
        INTERNAL.type,
        INTERNAL.title,
        500,
        f"internal error; try again, or give an operator the id {identity}",
    )
