"""Types of the fields of requests, with the same patterns and limits in REST, forms and the SDK.

JSON contains numbers and booleans as such, and times with their time zone. Forms contain text: with the
context `FORM`, validation parses numbers, lists and times (UTC unless they name a time zone).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from scorer.config.fields import NAME
from scorer.release.errors import InvalidError

FORM = {"form": True}
"""Validation context for the text fields of a form."""

PROJECT = r"^[a-z0-9][a-z0-9-]{0,39}$"
USER = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$"
REFERENCE = rf"^((sha256:)?[0-9a-f]{{4,64}}|{NAME}@{NAME})$"
_MOMENT = re.compile(
    r"(19[7-9]\d|20\d\d|21\d\d)-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:?\d\d)", re.ASCII
)


def _json(kind: str, *types: type) -> BeforeValidator:
    """Accept only JSON values of these types; in a form, accept text."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and info.context == FORM:
            return value
        if type(value) not in types:
            raise ValueError(f"write {kind}")
        return value

    return BeforeValidator(check)


def _moment(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, datetime):
        return value
    if isinstance(value, str) and info.context == FORM and re.fullmatch(r"[\d-]{10}T[\d:.]{5,}", value):
        value += "Z" if value.count(":") > 1 else ":00Z"
    if not (isinstance(value, str) and _MOMENT.fullmatch(value)):
        raise ValueError(
            "write a time between 1970 and 2199 with its time zone, for example 2026-11-21T09:30:00Z"
        )
    return value


def _utc(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError("add the time zone, for example 2026-11-21T09:30:00Z")
    return value.astimezone(UTC)


def _plain(value: str) -> str:
    if any((ord(c) < 32 and c not in "\t\n\r") or c == "\x7f" or "\ud800" <= c <= "\udfff" for c in value):
        raise ValueError("contains control characters; send plain text")
    return value


def split_names(value: Any, info: ValidationInfo) -> Any:
    """Split the text of a form at commas and spaces; leave JSON as it is."""
    if isinstance(value, str) and info.context == FORM:
        return value.replace(",", " ").split()
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
"""An aware time, converted to UTC."""
Line = Annotated[str, AfterValidator(_plain), Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""One line of text."""
LongText = Annotated[str, AfterValidator(_plain)]
"""Text of several lines. The field that has this type limits its length."""
Text = Annotated[str, AfterValidator(_plain), Field(max_length=10_000)]
"""Text of several lines."""
Reason = Annotated[
    str,
    AfterValidator(_plain),
    Field(min_length=1, max_length=2000, description="Reason, recorded in the audit log."),
]
Name = Annotated[str, Field(pattern=rf"^{NAME}$")]
"""Name of a checkpoint, a project or an alias."""
UserName = Annotated[str, Field(pattern=USER)]
Reference = Annotated[
    str,
    Field(
        pattern=REFERENCE,
        description="A digest, at least four digits of one, or name@alias.",
        examples=["sha256:5a1f", "fraud-checkout@live"],
    ),
]
Whole = Annotated[int, _json("a whole number", int)]
Number = Annotated[float, _json("a number", int, float), Field(allow_inf_nan=False)]
Flag = Annotated[bool, _json("true or false", bool)]
Minutes = Annotated[Number, Field(gt=0, le=100_000)]
Share = Annotated[Number, Field(gt=0, le=1)]
"""A share above 0 and at most 1."""
SlotNumber = Annotated[Whole, Field(ge=1, le=64)]
Count = Annotated[Whole, Field(ge=0, le=1_000_000_000)]
Version = Annotated[Whole, Field(ge=0, le=2**53)]
Names = Annotated[list[Name], BeforeValidator(split_names), Field(max_length=100)]
Patterns = Annotated[
    list[Annotated[str, Field(pattern=r"^[a-z0-9.*?_\[\]!-]{1,64}$")]],
    BeforeValidator(split_names),
    Field(min_length=1, max_length=100),
]
"""Shell-style patterns of checkpoint names."""


_REASON = 2000


def reason_of(text: str) -> str:
    """Return a reason without surrounding spaces. Raises InvalidError if it is empty or too long."""
    reason = text.strip()
    if not reason or len(reason) > _REASON:
        raise InvalidError(f"reason: write 1 to {_REASON} characters")
    return reason


def violations(errors: Sequence[Mapping[str, Any]]) -> str:
    """Describe the errors of a validation: the first five fields, each with its rule."""
    return "; ".join(map(_violation, errors[:5]))


def _violation(error: Mapping[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"] if part != "body") or "the body"
    empty = error["type"] == "string_too_short" and not error["input"]
    pattern = error.get("ctx", {}).get("pattern", "")
    rule = _RULES.get("missing" if empty else error["type"]) or _FORMS.get(pattern)
    return f"{where}: {rule or error['msg'].removeprefix('Value error, ')}"


_RULES = {
    "unexpected_keyword_argument": "Extra inputs are not permitted",
    "int_parsing": "write a whole number such as 2",
    "float_parsing": "write a number such as 60 or 0.5",
    "missing": "required; fill it in",
}
"""Rules that replace pydantic's messages, by type of error."""
_FORMS = {
    REFERENCE: "write a digest, at least four digits of one, or name@alias",
    PROJECT: "write up to 40 lower-case letters, digits and hyphens",
    USER: "write up to 100 letters, digits and . _ @ + -, beginning with a letter or digit",
}
"""Rules that describe patterns."""
