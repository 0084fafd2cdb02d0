"""Errors as problem+json, with an id under which the platform's log has the details."""

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
    504: "The operation took longer than its time limit; ask for less.",
    503: "The platform or its database does not respond.",
}
_TITLES = {kind.status: kind for kind in reversed(KINDS)}


class ProblemDetails(BaseModel):
    """A problem document (RFC 9457)."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="URI of the problem type, for clients.", examples=[f"{PREFIX}frozen"])
    title: str = Field(examples=["A freeze is active"])
    status: int = Field(examples=[423])
    detail: str = Field(description="One line with the object, the rule and the remedy.")
    instance: str = Field(description="Path of the request.", examples=["/api/v1/changes/cr-000017/approve"])
    id: str = Field(description="Id of the request in the platform's log.")


def refusals(*statuses: int, **rules: str) -> dict[int | str, dict[str, Any]]:
    """Document the errors of an operation, in addition to those that all operations have.

    Args:
        statuses: HTTP statuses, documented with their general description.
        rules: Description by the name of a problem type, with `_` for `-`, for example `not_allowed`.
    """
    described = {status: _RULES[status] for status in statuses}
    for kind in KINDS:
        if rule := rules.get(kind.name.replace("-", "_")):
            described[kind.status] = rule
    return {status: {"description": rule} for status, rule in described.items()}


def install(app: FastAPI) -> None:
    """Install handlers that respond to every error with a problem document."""
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
        # A body that cannot be parsed is a validation error, too.
        invalid = _TITLES[422]
        return answer(request, invalid.type, invalid.title, 422, "the body is not JSON in UTF-8; correct it")
    kind = _TITLES.get(error.status_code)
    title = kind.title if kind else str(error.detail)
    type_ = kind.type if kind else "about:blank"
    detail = str(error.detail)
    if error.status_code == 404:
        detail = f"{request.url.path[:200]} is not an address of this API; /api/v1/docs lists all addresses"
    return answer(request, type_, title, error.status_code, detail, error.headers)


def defect(request: Request, error: Exception) -> Response:
    """Return an internal error. The log has its traceback, and the response its id."""
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
