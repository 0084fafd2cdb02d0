"""A model card as Markdown, for repositories and reviews."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from scorer.explain.document import GlobalExplanation
from scorer.release.answers import SegmentReport, SegmentValue
from scorer.release.card_answers import BundleExplanation, ModelCard
from scorer.release.cards.card import SECTIONS
from scorer.release.cards.page import surrogate_rows, surrogate_words

_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>|#~$&!])")
_FEATURES: Final = 20
_PAIRS: Final = 5


def card_markdown(card: ModelCard) -> str:
    """Return a model card as a Markdown document. Text from records is escaped."""
    return "\n".join(_lines(card)) + "\n"


def _lines(card: ModelCard) -> Iterator[str]:
    info = card.bundle
    yield f"# Model card: {_text(info.name)}"
    yield ""
    yield from _table(
        ("", ""),
        [
            ("bundle", f"`{info.digest}`"),
            ("kind", info.kind),
            ("project", _text(info.project or "none")),
            ("built", _text(card.built_at)),
            ("uploaded", f"{_when(info.uploaded_at)} by {_text(info.uploaded_by)}"),
            ("lanes now", _text(", ".join(card.lanes) or "none")),
        ],
        raw=True,
    )
    for note in card.notes:
        yield f"> {_text(note)}"
        yield ">"
    yield ""
    for name, title in SECTIONS.items():
        yield f"## {title}"
        yield ""
        yield _block(card.text.get(name, "")) or "Not written."
        yield ""
    if card.text_by:
        yield f"These texts were written by {_text(card.text_by)} ({_when(card.text_at)})."
        yield ""
    yield "## Lineage"
    yield ""
    yield from _table(("property", "value"), list(card.lineage.items()))
    yield "## Training metrics"
    yield ""
    yield from _table(("metric", "value"), [(name, number(value)) for name, value in card.metrics.items()])
    yield from _decisions(card)
    yield from _reports(card)
    yield from _approvals(card)
    if card.explanation is not None:
        yield from _explanation(card.explanation)


def _decisions(card: ModelCard) -> Iterator[str]:
    if card.thresholds:
        yield "## Thresholds"
        yield ""
        yield from _table(
            ("decision", "from score"), [(str(b["label"]), number(float(b["from"]))) for b in card.thresholds]
        )
    if card.policy:
        yield "## Policy"
        yield ""
        yield from _table(("setting", "value"), list(card.policy.items()))


def _reports(card: ModelCard) -> Iterator[str]:
    yield "## Reports"
    yield ""
    if not card.reports:
        yield "There is no final report."
        yield ""
    for report in card.reports:
        yield f"### {report.change} ({report.kind}) at {_text(report.checkpoint)}"
        yield ""
        yield (
            f"{report.rows:,} observations, {_when(report.start)} to {_when(report.end)}. "
            f"Verdict: {report.verdict or 'none'}."
        )
        yield ""
        yield from _table(
            ("gate", "outcome", "value", "interval", "limit", "waived"),
            [
                (
                    gate.metric,
                    f"{gate.outcome}{' (for information)' if gate.dry_run else ''}",
                    number(gate.value),
                    interval(gate.low, gate.high),
                    gate.success,
                    f"{gate.waived_by}: {gate.waived_why}" if gate.waived_by else "",
                )
                for gate in report.gates
            ],
        )
        if report.segments is not None:
            yield from _segments(report.segments)


def _segments(report: SegmentReport) -> Iterator[str]:
    yield f"Metrics by segment ({_text(report.stage)}). {_text(report.words)}"
    yield ""
    columns, rows = segment_table(report)
    yield from _table(columns, rows)


def segment_table(report: SegmentReport) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the columns and rows of the metrics by segment, each with its interval."""
    names = list(dict.fromkeys(name for one in report.segments for name in one.measures))
    rows = [
        (
            f"{one.feature} {one.level}",
            f"{one.rows:,}",
            *(measure(one.measures.get(name)) for name in names),
            "; ".join(one.worse) or ("" if one.judged else "too few rows"),
        )
        for one in report.segments
    ]
    return ("segment", "rows", *names, "finding"), rows


def _approvals(card: ModelCard) -> Iterator[str]:
    yield "## Approvals"
    yield ""
    yield from _table(
        ("change", "kind", "checkpoint", "state", "submitted by", "approved by", "approved at", "waivers"),
        [
            (
                one.change,
                str(one.kind),
                one.checkpoint,
                str(one.state),
                one.submitted_by or "",
                one.approved_by or (f"standing permission {one.permission}" if one.permission else ""),
                _when(one.approved_at),
                "; ".join(one.waivers),
            )
            for one in card.approvals
        ],
    )


def _explanation(stored: BundleExplanation) -> Iterator[str]:
    found = GlobalExplanation.model_validate(stored.document)
    yield "## Explanation"
    yield ""
    yield (
        f"Computed from {found.data.used:,} of {found.data.seen:,} rows of {_text(found.data.source)} "
        f"({_text(found.created_at)}), stored by {_text(stored.by)}."
    )
    yield ""
    yield from _table(
        ("feature", "mean absolute contribution", "interval (95 %)", "splits"),
        [
            (one.feature, number(one.mean), interval(one.low, one.high), f"{one.splits:,}")
            for one in found.importance[:_FEATURES]
            if one.splits
        ],
    )
    yield from _table(
        ("interaction", "strength", "H"),
        [
            (f"{one.first} × {one.second}", number(one.strength), number(one.share))
            for one in found.interactions[:_PAIRS]
            if one.strength
        ],
    )
    yield surrogate_words(found.surrogate)
    yield ""
    yield from _table(("rule", "rows", found.quantity, "decision"), surrogate_rows(found.surrogate))


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, raw: bool = False) -> Iterator[str]:
    if not rows:
        yield "None on record."
        yield ""
        return
    yield f"| {' | '.join(columns)} |"
    yield f"|{'---|' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(str(cell) if raw else _text(str(cell)) for cell in row)} |"
    yield ""


def number(value: float | None) -> str:
    """Format a number with four significant digits; empty if it is unknown."""
    return "" if value is None or math.isnan(value) else f"{value:.4g}"


def interval(low: float | None, high: float | None) -> str:
    """Format an interval; an end that is not known is left open, and empty if neither is."""
    if low is None and high is None:
        return ""
    return f"{number(low) or '-∞'} to {number(high) or '∞'}"


def measure(value: SegmentValue | None) -> str:
    """Format a measure of a segment with its bounds."""
    if value is None or value.value is None:
        return ""
    ends = interval(value.low, value.high)
    return f"{number(value.value)} [{ends}]" if ends else number(value.value)


def _when(value: datetime | None) -> str:
    return "" if value is None else value.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _text(value: str) -> str:
    """Escape text on one line, so that it can neither mark up nor leave its cell."""
    return _SPECIAL.sub(r"\\\1", " ".join(value.split()))


def _block(value: str) -> str:
    """Escape a text of several paragraphs; line breaks are kept."""
    lines = (_SPECIAL.sub(r"\\\1", line.strip()) for line in value.strip().splitlines())
    # A hyphen, plus sign or number at the start of a line would make a list, and "=" a heading.
    return "\n".join(re.sub(r"^(\d*)([-+=.)])", r"\1\\\2", line) for line in lines)
