"""REST operations on bundles: upload, lists, details and downloads."""

from __future__ import annotations

import tempfile
from typing import Annotated, Any, BinaryIO, Literal, cast

from fastapi import APIRouter, Query, Request
from fastapi.concurrency import run_in_threadpool

from scorer.release.answers import BundleDetail, BundleInfo
from scorer.release.card_answers import BundleExplanation, ModelCard
from scorer.release.errors import InvalidError
from scorer.release.model import Role
from scorer.release.requests import Adopt, CardText, NewExplanation
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import BundlePath, Containing, Cursor, InProject, Limit, PageOut, ProjectPath

router = APIRouter(tags=["bundles"])

_ARCHIVE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "A tar, gzipped or not, of the directory that `scorer bundle build` wrote.",
        "content": {
            media: {"schema": {"type": "string", "format": "binary"}}
            for media in ("application/gzip", "application/x-tar", "application/octet-stream")
        },
    }
}


@router.post(
    "/projects/{project}/bundles",
    status_code=201,
    openapi_extra=_ARCHIVE,
    responses=refusals(409, 429),
)
async def upload_bundle(by: By, project: ProjectPath, request: Request) -> BundleInfo:
    """Verify a bundle and store it. Uploading it again changes nothing. For modelers."""
    bundles = by.service.bundles
    # Permission is checked before the body is read.
    await run_in_threadpool(by.service.access.require, by.actor, Role.MODELER, project)
    limit = bundles.upload_bytes
    with tempfile.TemporaryFile(prefix="upload-", dir=bundles.uploads()) as file:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > limit:
                raise InvalidError(
                    f"the archive has more than {limit} bytes, which is the limit (upload_mb); "
                    "send a smaller bundle, or ask an operator to raise the limit"
                )
            await run_in_threadpool(file.write, chunk)
        file.seek(0)
        return await run_in_threadpool(bundles.upload, by.actor, project, cast(BinaryIO, file))


@router.post("/projects/{project}/bundles/adopt", status_code=201, responses=refusals(429))
def adopt_bundle(by: By, project: ProjectPath, body: Adopt) -> BundleInfo:
    """Add a bundle of the registry to a project. For modelers."""
    return by.service.bundles.adopt(by.actor, project, body.bundle)


@router.get("/bundles")
def list_bundles(
    by: By,
    project: InProject = None,
    kind: Annotated[Literal["score", "action"] | None, Query(description="Kind; null: all.")] = None,
    text: Containing = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> PageOut[BundleInfo]:
    """Iterate over bundles, newest first."""
    found = by.service.bundles.list(
        by.actor, project=project, kind=kind, text=text, limit=limit + 1, before=cursor
    )
    more = len(found) > limit
    items = list(found[:limit])
    last = f"{items[-1].digest}:{items[-1].project}" if more else None
    return PageOut(items=items, next=last)


@router.get("/bundles/{bundle}")
def get_bundle(by: By, bundle: BundlePath) -> BundleDetail:
    """Return a bundle's manifest, lineage, reference statistics, features and lanes."""
    return by.service.bundles.detail(by.actor, bundle)


@router.put("/projects/{project}/bundles/{bundle}/explanation")
def explain_bundle(
    by: By, project: ProjectPath, bundle: BundlePath, body: NewExplanation
) -> BundleExplanation:
    """Store a global explanation with a bundle; it replaces the previous one. For modelers."""
    return by.service.documents.explain(by.actor, project, bundle, body.document)


@router.get("/bundles/{bundle}/explanation")
def get_explanation(by: By, bundle: BundlePath) -> BundleExplanation:
    """Return the global explanation that is stored with a bundle, with its figures."""
    return by.service.documents.explanation(by.actor, bundle)


@router.put("/projects/{project}/bundles/{bundle}/card")
def describe_bundle(by: By, project: ProjectPath, bundle: BundlePath, body: CardText) -> ModelCard:
    """Store the author's text of a bundle's model card; it replaces the previous one. For modelers."""
    return by.service.cards.describe(by.actor, project, bundle, body)


@router.get("/bundles/{bundle}/card")
def get_card(by: By, bundle: BundlePath) -> ModelCard:
    """Return a bundle's model card, made from what is on record now."""
    return by.service.cards.card(by.actor, bundle)
