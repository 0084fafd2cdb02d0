"""REST operations on builds: bundles from model files."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool

from scorer.release.answers import BuildInfo
from scorer.release.builds.receiving import FIELDS, Sent
from scorer.release.model import Role
from scorer.release.requests import NewBuild, read_form
from scorer.web.api.problems import refusals
from scorer.web.api.security import By
from scorer.web.api.values import InProject, Limit, ProjectPath
from scorer.web.multipart import read_form_data, uploaded

router = APIRouter(tags=["builds"])

BuildPath = Annotated[
    str,
    Path(
        alias="build",
        pattern=r"^bd-[0-9a-f]{12}$",
        examples=["bd-0123456789ab"],
        description="Id of the build.",
    ),
]
_FILE = {"type": "string", "format": "binary"}
_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": "The fields of a build, and its files: `model` (.json, .ubj, .txt, .tl), `table` and "
        "optionally `validation` (.parquet, .csv), and `example` (.json).",
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {
                        **{name: {"type": "string"} for name in NewBuild.model_fields},
                        **dict.fromkeys(FIELDS, _FILE),
                    },
                    "required": ["name", "version", "model", "table"],
                }
            }
        },
    }
}


@router.post("/projects/{project}/builds", status_code=202, openapi_extra=_FORM, responses=refusals(429, 503))
async def start_build(by: By, project: ProjectPath, request: Request) -> BuildInfo:
    """Build a bundle from a model file, in the background. For modelers."""
    # Permission is checked before the body is read.
    await run_in_threadpool(by.service.access.require, by.actor, Role.MODELER, project)
    data = await read_form_data(request, max_files=len(FIELDS), max_fields=20, max_part_size=1 << 20)
    try:
        texts = {name: value for name, value in data.items() if isinstance(value, str) and value.strip()}
        files = {name: Sent(str(one.filename), one.file) for name, one in uploaded(data).items()}
        return await run_in_threadpool(
            by.service.builds.start, by.actor, project, read_form(NewBuild, texts), files
        )
    finally:
        await data.close()


@router.get("/builds")
def list_builds(by: By, project: InProject = None, limit: Limit = 50) -> list[BuildInfo]:
    """List the builds of a project, newest first."""
    return list(by.service.builds.list(by.actor, project=project, limit=limit))


@router.get("/builds/{build}")
def get_build(by: By, build: BuildPath) -> BuildInfo:
    """Return a build with its state and its bundle."""
    return by.service.builds.get(by.actor, build)


@router.post("/builds/{build}/cancel", responses=refusals(409))
def cancel_build(by: By, build: BuildPath) -> BuildInfo:
    """Cancel a build that waits or runs. For modelers."""
    return by.service.builds.cancel(by.actor, build)
