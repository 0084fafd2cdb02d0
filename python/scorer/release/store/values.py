"""Column types for times, enums, JSON and text, which behave the same on both engines."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, StrEnum
from typing import Any

from sqlalchemy import BigInteger, Dialect, Text
from sqlalchemy.types import TypeDecorator

from scorer.release.errors import InvalidError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNKEEPABLE = re.compile("[\0\ud800-\udfff]")


def micros(at: datetime) -> int:
    """Convert an aware time to microseconds since 1970, exactly. Raises ValueError for a naive time."""
    if at.tzinfo is None:
        message = f"{at.isoformat()} has no time zone; times of the platform must be aware"
        raise ValueError(message)
    return (at - _EPOCH) // _MICROSECOND


def instant(at: int) -> datetime:
    """Convert microseconds since 1970 to an aware UTC time."""
    return _EPOCH + timedelta(microseconds=at)


def utcnow() -> datetime:
    """Return the current time, aware and in UTC."""
    return datetime.now(UTC)


def dumps(value: Any) -> str:
    """Serialise a value as canonical JSON: sorted keys, no spaces, ASCII. Equal values give equal texts.

    Raises:
        ValueError: The value contains NaN or an infinity.
        TypeError: The value is not JSON. Keys must be text, because `loads` would return them as text.
    """
    _check_keys(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> Any:
    """Parse JSON that `dumps` has written."""
    return json.loads(text)


def _check_keys(value: Any) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                message = f"key {key!r} is not a string"
                raise TypeError(message)
            _check_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_keys(item)


class Instant(TypeDecorator[datetime]):
    """An aware time, stored as microseconds since 1970 (UTC), which both engines store and order alike."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> int | None:
        """Convert an aware time to microseconds for the database."""
        return None if value is None else micros(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        """Convert microseconds from the database to an aware time."""
        return None if value is None else instant(value)


class Json(TypeDecorator[Any]):
    """A JSON value, stored as canonical text. None is NULL."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert a value to JSON text for the database."""
        return None if value is None else dumps(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Convert JSON text from the database to a value."""
        return None if value is None else loads(value)


class Words(TypeDecorator[str]):
    """Text without NUL, which PostgreSQL cannot store, and without unpaired surrogates."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        """Convert text or an enumeration member to text. Raises InvalidError if it cannot be stored."""
        if isinstance(value, Enum):
            value = str(value.value)
        if value is not None and _UNKEEPABLE.search(value):
            raise InvalidError(
                "text with NUL characters or unpaired surrogates cannot be stored; send plain Unicode text"
            )
        return value


class EnumMember(TypeDecorator[StrEnum]):
    """A member of an enumeration, stored as its value."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type[StrEnum]) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert a member, or its value, to text for the database."""
        return None if value is None else str(self.kind(value))

    def process_result_value(self, value: Any, dialect: Dialect) -> StrEnum | None:
        """Convert text from the database to a member."""
        return None if value is None else self.kind(value)


class Many(TypeDecorator[tuple[Any, ...]]):
    """A tuple of strings, or of values of one dataclass, stored as a JSON list."""

    impl = Text
    cache_ok = True

    def __init__(self, kind: type = str) -> None:
        super().__init__()
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Convert values, or their JSON objects, to JSON text for the database."""
        return None if value is None else dumps([asdict(one) if is_dataclass(one) else one for one in value])  # type: ignore[arg-type]

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[Any, ...] | None:
        """Convert JSON text from the database to values."""
        if value is None:
            return None
        return tuple(self.kind(**one) if isinstance(one, dict) else one for one in loads(value))
