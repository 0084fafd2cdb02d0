"""One outcome of a file, with the rules that it must follow by itself."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

MOST_ID: Final = 80
MOST_KIND: Final = 64
"""Limits of the server, in bytes of printable ASCII."""
MOST_REVISION: Final = 2**32 - 1
AHEAD_MS: Final = 60_000
"""How far an outcome may lie in the future, because clocks differ."""


@dataclass(frozen=True, slots=True)
class ImportDefaults:
    """What a row has where its file has no column, or an empty cell.

    Attributes:
        kind: Kind of the outcome; None: each row needs one.
        value: Value of the outcome; None: each row needs one.
        kinds: Kinds that are allowed; empty: all.
        now_ms: The current time, Unix time.
    """

    kind: str | None = None
    value: float | None = None
    kinds: tuple[str, ...] = ()
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class OutcomeRow:
    """An outcome to report.

    Attributes:
        decision_id: Id of the decision.
        kind: Kind of the outcome.
        value: A finite number.
        revision: Revision; 0 where the file has none.
        has_revision: Whether the file gives the revision.
        occurred_at_ms: Time of the outcome, Unix time; 0: not known.
        token: Token of the decision; empty without one.
    """

    decision_id: str
    kind: str
    value: float
    revision: int = 0
    has_revision: bool = False
    occurred_at_ms: int = 0
    token: bytes = b""


class BadRowError(ValueError):
    """A row breaks a rule.

    Args:
        rule: Name of the rule, a key of `scorer.learn.imports.findings.RULES`.
        detail: What is wrong with the row.
    """

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(detail)
        self.rule = rule


def parse_row(fields: Mapping[str, Any], defaults: ImportDefaults) -> OutcomeRow:
    """Return the outcome of a row.

    Args:
        fields: Values by field; texts, or the values of a typed file.
        defaults: What absent values are, and which kinds are allowed.

    Raises:
        BadRowError: The row breaks a rule.
    """
    name = _text(fields.get("decision_id"))
    if not name:
        raise BadRowError("no decision id", "decision_id is empty")
    if not _printable(name, MOST_ID):
        raise BadRowError("bad decision id", f"decision_id is not 1 to {MOST_ID} printable ASCII characters")
    kind = _text(fields.get("kind")) or defaults.kind or ""
    if not _printable(kind, MOST_KIND):
        raise BadRowError(
            "wrong kind", f'kind "{kind[:MOST_KIND]}" is not 1 to {MOST_KIND} printable characters'
        )
    if defaults.kinds and kind not in defaults.kinds:
        raise BadRowError("wrong kind", f'kind "{kind}" is none of {", ".join(defaults.kinds)}')
    revision = _revision(fields.get("revision"))
    return OutcomeRow(
        decision_id=name,
        kind=kind,
        value=_value(fields.get("value"), defaults),
        revision=revision or 0,
        has_revision=revision is not None,
        occurred_at_ms=_time(fields.get("occurred_at"), defaults.now_ms),
        token=_token(fields.get("decision_token")),
    )


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _printable(text: str, most: int) -> bool:
    return 0 < len(text) <= most and text.isascii() and text.isprintable()


def _value(given: Any, defaults: ImportDefaults) -> float:
    if _text(given) == "":
        if defaults.value is None:
            raise BadRowError("not a number", "value is empty; set --value for rows without one")
        return defaults.value
    try:
        value = float(given)
    except (TypeError, ValueError):
        raise BadRowError("not a number", f'value "{_text(given)[:40]}" is not a number') from None
    if not math.isfinite(value):
        raise BadRowError("not a number", f"value {value} is not finite")
    return value


def _revision(given: Any) -> int | None:
    if _text(given) == "":
        return None
    try:
        number = float(given)
        revision = int(number)
    except (TypeError, ValueError, OverflowError):
        revision, number = -1, math.nan
    if revision != number or not 0 <= revision <= MOST_REVISION:
        raise BadRowError(
            "bad revision", f'revision "{_text(given)[:40]}" is not an integer from 0 to {MOST_REVISION}'
        )
    return revision


def _time(given: Any, now_ms: int) -> int:
    if _text(given) == "":
        return 0
    try:
        milliseconds = _milliseconds(given)
    except (TypeError, ValueError, OverflowError):
        raise BadRowError(
            "unreadable time",
            f'occurred_at "{_text(given)[:40]}" is no ISO 8601 time and no Unix time in milliseconds',
        ) from None
    if milliseconds <= 0:
        raise BadRowError("unreadable time", f"occurred_at {milliseconds} is before 1970; leave it empty")
    if milliseconds > now_ms + AHEAD_MS:
        raise BadRowError(
            "future time", f"occurred_at is {(milliseconds - now_ms) / 1000:,.0f} s in the future"
        )
    return milliseconds


def _milliseconds(given: Any) -> int:
    if isinstance(given, str):
        try:
            return int(given)
        except ValueError:
            given = datetime.fromisoformat(given.strip())
    if isinstance(given, datetime):
        return round((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(given)


def _token(given: Any) -> bytes:
    if isinstance(given, bytes):
        return given
    try:
        return base64.b64decode(_text(given), validate=True)
    except (binascii.Error, ValueError):
        raise BadRowError("bad token", "decision_token is not Base64") from None
