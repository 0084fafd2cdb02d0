"""Recorded decisions as the requests on which rules are measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from scorer.errors import LogError
from scorer.log.reading import Advance
from scorer.log.scanning import scan
from scorer.log.sealing import ReaderKey

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rule_costs import RuleRows

MOST: Final = 100_000
"""Greatest number of decisions that are kept."""
_ANSWERED: Final = frozenset({"", "previous", "model", "greedy"})
"""Sources of the answers that a backtest of rules decides again."""


def recorded_requests(
    logs: Sequence[str | PathLike[str]],
    bundle: Bundle,
    *,
    most: int,
    since: datetime | None = None,
    until: datetime | None = None,
    reader_key: ReaderKey | None = None,
    advance: Advance | None = None,
) -> RuleRows:
    """Return the first recorded decisions of a period as requests, with their recorded scores, times and ids.

    As in a backtest, decisions of other schemas and kinds, of fallbacks and of erased entities are left out.

    Args:
        logs: Directories of the decision logs.
        bundle: The bundle whose schema and kind the decisions must have.
        most: Number of decisions after which no more are read, at most 100,000.
        since: Leave out decisions before this time.
        until: Leave out decisions at or after this time.
        reader_key: Key that decrypts sensitive features. Without it, rules see them as missing.
        advance: Called with the bytes read so far and the total bytes of each log.

    Raises:
        LogError: A directory is not a log, `most` is out of range, or there is no such decision.
    """
    from scorer.bundle.rule_costs import RuleRows

    if not 1 <= most <= MOST:
        raise LogError(f"rows: {most} is out of range; choose between 1 and {MOST:,}")
    low, high = (None if time is None else int(time.timestamp() * 1e6) for time in (since, until))
    kept: list[Any] = []
    for directory in logs:
        for entry in scan(directory, kinds={"decision"}, advance=advance, reader_key=reader_key):
            record = entry.record
            if (
                record.schema_fingerprint == bundle.schema_fingerprint
                and bool(record.action) == (bundle.kind == "action")
                and record.fallback_source in _ANSWERED
                and (low is None or record.decided_at_us >= low)
                and (high is None or record.decided_at_us < high)
            ):
                kept.append(record)
                if len(kept) == most:
                    break
        if len(kept) == most:
            break
    if not kept:
        raise LogError(
            "the logs have no decision of the period with the schema and the kind of the bundle; choose "
            "another period or other logs, or leave out --log for the golden cases of the bundle"
        )
    rows = np.full((len(kept), bundle.num_features), np.nan, np.float32)
    for row, record in zip(rows, kept, strict=True):
        values = record.features[: bundle.num_features]
        row[: len(values)] = values
    is_score = bundle.kind == "score"
    return RuleRows(
        rows=rows,
        scores=np.array([one.score if is_score else math.nan for one in kept], np.float64),
        seconds=np.array([one.decided_at_us // 1_000_000 for one in kept], np.int64),
        ids=[one.decision_id for one in kept],
        source=f"{len(kept)} recorded decisions",
    )
