"""The kinds of values that requests hold, each with its pattern and limits, and what answers share."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Header, Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema

from scorer.config.model import NAME

T = TypeVar("T")

_MOMENT = re.compile(
    r"(19[7-9]\d|20\d\d|21\d\d)-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII
)
# Text that people write: no control characters but tab and line ends, no halves of surrogate pairs.
_PLAIN = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]*$"
_LINE = r"^[^\x00-\x1f\x7f]*$"


def _moment(value: Any) -> Any:
    if not (isinstance(value, datetime) or (isinstance(value, str) and _MOMENT.fullmatch(value))):
        raise ValueError(
            "write a moment between 1970 and 2199 with its zone, for example 2026-11-21T09:30:00Z"
        )
    return value


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("add the time zone, for example 2026-11-21T09:30:00Z")
    return value.astimezone(UTC)


def _plain(value: str) -> str:
    if any((ord(c) < 32 and c not in "\t\n\r") or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in value):
        raise ValueError("holds control characters; send plain text")
    return value


Moment = Annotated[
    datetime,
    BeforeValidator(_moment),
    AfterValidator(_utc),
    WithJsonSchema(
        {
            "type": "string",
            "format": "date-time",
            "pattern": r"^(19[7-9]|20\d|21\d)\d-",
            "examples": ["2026-11-21T09:30:00Z"],
        }
    ),
]
PROJECT = r"^[a-z0-9][a-z0-9-]{0,39}$"
Line = Annotated[str, AfterValidator(_plain), Field(max_length=200, pattern=_LINE)]
"""One line of text."""
Words = Annotated[str, AfterValidator(_plain), Field(max_length=10_000)]
"""Text of some length."""
Reason = Annotated[
    str,
    AfterValidator(_plain),
    Field(min_length=1, max_length=2000, description="Why; kept in the audit log."),
]
Name = Annotated[str, Field(pattern=rf"^{NAME}$")]
User = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$")]
Reference = Annotated[
    str,
    Field(
        pattern=rf"^((sha256:)?[0-9a-f]{{4,64}}|{NAME}@{NAME})$",
        description="A digest, at least four digits of one, or name@alias.",
        examples=["sha256:5a1f", "fraud-checkout@live"],
    ),
]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Flag = Annotated[bool, Strict()]

ProjectPath = Annotated[str, Path(alias="project", pattern=rf"^{NAME}$", examples=["fraud"])]
CheckpointPath = Annotated[str, Path(alias="checkpoint", pattern=rf"^{NAME}$", examples=["fraud.checkout"])]
ChangePath = Annotated[str, Path(alias="change", pattern=r"^cr-[0-9]{6,18}$", examples=["cr-000017"])]
BundlePath = Annotated[
    str,
    Path(
        alias="bundle",
        pattern=rf"^((sha256:)?[0-9a-f]{{4,64}}|{NAME}@{NAME})$",
        description="A digest, at least four digits of one, or name@alias.",
    ),
]
Identity = Annotated[int, Path(alias="id", ge=1, le=2**53)]
Limit = Annotated[int, Query(ge=1, le=1000, description="Most items of one answer.")]
Cursor = Annotated[
    str | None,
    Query(max_length=100, pattern=r"^[A-Za-z0-9:._-]+$", description="`next` of the page before."),
]
IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        pattern=r'^"?[0-9]{1,18}"?$',
        description="The version that this is based on (the ETag of what was read); another one is refused.",
    ),
]


class Body(BaseModel):
    """What a request brings: exactly what is documented."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Page(BaseModel, Generic[T]):
    """One page of a list, newest first."""

    items: list[T]
    next: str | None = Field(default=None, description="`cursor` of the next page; null: this is the last.")


def etag(version: int) -> str:
    """How a version is written as an ETag."""
    return f'"{version}"'


def version_of(if_match: str | None) -> int | None:
    """The version that a header names."""
    return None if if_match is None else int(if_match.strip('"'))
