"""Path, query and header parameters that several operations share, and pages of lists."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from fastapi import Header, Path, Query
from pydantic import BaseModel, Field

from scorer.config.fields import NAME
from scorer.release.fields import REFERENCE, Line, Name

T = TypeVar("T")

ProjectPath = Annotated[
    str, Path(alias="project", pattern=rf"^{NAME}$", examples=["fraud"], description="Name of the project.")
]
CheckpointPath = Annotated[
    str,
    Path(
        alias="checkpoint",
        pattern=rf"^{NAME}$",
        examples=["fraud.checkout"],
        description="Name of the checkpoint.",
    ),
]
ChangePath = Annotated[
    str,
    Path(
        alias="change",
        pattern=r"^cr-[0-9]{6,18}$",
        examples=["cr-000017"],
        description="Id of the change request, for example cr-000017.",
    ),
]
BundlePath = Annotated[
    str,
    Path(
        alias="bundle",
        pattern=REFERENCE,
        description="A digest, at least four digits of one, or name@alias.",
    ),
]
Identity = Annotated[int, Path(alias="id", ge=1, le=2**53, description="Id of the object.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Largest number of items, up to 1000.")]
Cursor = Annotated[
    str | None,
    Query(max_length=100, pattern=r"^[A-Za-z0-9:._-]+$", description="Value of `next` of the previous page."),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern=r'^"?[0-9]{1,18}"?$',
        description="Version that the request is based on (the ETag that was read). Others are rejected.",
    ),
]


InProject = Annotated[Name | None, Query(description="Name of the project; null: all of the user's.")]
AtCheckpoint = Annotated[Name | None, Query(description="Name of the checkpoint; null: all.")]
Containing = Annotated[
    str | None,
    Query(max_length=200, description="Part of a text field, regardless of case; null: all."),
]
ByUser = Annotated[Line | None, Query(description="Name of the user; null: all.")]


class PageOut(BaseModel, Generic[T]):
    """One page of a list, newest first."""

    items: list[T]
    next: str | None = Field(default=None, description="Value of `cursor` for the next page; null: none.")


def etag(version: int) -> str:
    """Format a version as an ETag."""
    return f'"{version}"'


def version_of(if_match: str | None) -> int | None:
    """Parse the version of an If-Match header; None without a header."""
    return None if if_match is None else int(if_match.strip('"'))
