"""The sources of outcomes: names of `OutcomeSourceKind` of scoring.proto in tables and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from scorer.v1.log_pb2 import OutcomeRecord
    from scorer.v1.scoring_pb2 import OutcomeSource

UNSPECIFIED: Final = 0
"""The reporter has not stated it, or the outcome was recorded by a version without sources."""
REVIEWER: Final = 1

SOURCES: Final = ("unspecified", "reviewer", "merchant", "issuer", "scheme")
"""Texts for the values of `OutcomeSourceKind`."""

_NEWER: Final = "unknown"
"""Text for a value of a newer version."""


def source_in_words(kind: int) -> str:
    """Return the text for a value of `OutcomeSourceKind`; "unknown" for values of newer versions."""
    return SOURCES[kind] if 0 <= kind < len(SOURCES) else _NEWER


def source_code(text: str | None) -> int:
    """Return the value of `OutcomeSourceKind` for a text of a table; 0 for a missing or unknown one."""
    return SOURCES.index(text) if text in SOURCES else UNSPECIFIED


def source_columns(source: OutcomeSource) -> tuple[str, str | None]:
    """Return the text of a source's kind and its id, None if it has none, as tables contain them."""
    return source_in_words(source.kind), source.id or None


def known_kind(record: OutcomeRecord) -> int:
    """Return the `OutcomeSourceKind` of a record; 0 for values of newer versions."""
    kind = int(record.source.kind)
    return kind if 0 <= kind < len(SOURCES) else UNSPECIFIED
