"""Hits over time and precision of the rules of a checkpoint."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from scorer.release.answers import BundleInfo, RuleText
from scorer.release.errors import NotFoundError, PlatformError, UnreachableError
from scorer.release.lanes import recorded
from scorer.release.rule_answers import RuleRecord, RulesOverTime
from scorer.release.shown_rules import shown_rules
from scorer.release.store import instant, micros
from scorer.release.timeseries.expiry import DAY
from scorer.release.timeseries.firings import RuleFirings, counted_since, read_firings
from scorer.stats.proportions import wilson

if TYPE_CHECKING:
    from scorer.release.changes.parts import Parts
    from scorer.release.model import Actor
    from scorer.release.timeseries import MetricsOverTime

DAYS: Final = 30
_CONFIDENCE: Final = 0.95
_NOTHING: Final = RuleFirings((), 0, 0, 0)
_SECONDS: Final = 15.0
"""Time limit of the queries."""
_STEPS: Final = 100_000
"""Instructions of SQLite between two looks at the clock."""


class RuleHistories:
    """Reads what the rollups have counted of rules.

    Args:
        parts: Dependencies that operations share.
        metrics: The rollups of the decision logs.
    """

    def __init__(self, parts: Parts, metrics: MetricsOverTime) -> None:
        self._parts, self._metrics = parts, metrics

    def over_time(self, actor: Actor, checkpoint: str, *, days: int = DAYS) -> RulesOverTime:
        """Return hits by day, precision and inactive rules of a checkpoint.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            days: Number of days up to now, 1 to 90.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
            UnreachableError: The rollups cannot be read, or take too long.
        """
        settings = self._parts.settings
        if checkpoint not in self._parts.access.checkpoints(actor, tuple(settings.checkpoints)):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )
        days = max(1, min(days, 90))
        now = self._parts.now()
        # The last day is the present one.
        start = (micros(now) // DAY - days + 1) * DAY
        info, written = self._live(actor, checkpoint)
        kind = "" if info is None else info.kind
        matured = now - settings.checkpoints[checkpoint].matures(kind or "score")
        since, found = self._read(checkpoint, start, days, micros(matured))
        names = list(dict.fromkeys([*written, *sorted(found)]))
        records = [_record(one, written.get(one), found.get(one, _NOTHING), days) for one in names]
        return RulesOverTime(
            checkpoint=checkpoint,
            kind=kind,
            bundle=info,
            start=instant(start),
            days=days,
            since=None if since is None else instant(since),
            matured_before=matured,
            rules=tuple(one for one in records if one.effect or one.hits),
        )

    def _live(self, actor: Actor, checkpoint: str) -> tuple[BundleInfo | None, Mapping[str, RuleText]]:
        """Return the live bundle and its rules by id; None if it is not known or not visible."""
        bundles = self._parts.bundles
        with self._parts.store.read() as connection:
            reference = recorded.live_reference(connection, self._parts.settings, checkpoint)
        try:
            info = bundles.info(actor, reference)
            written = shown_rules(bundles.local(info.digest))
        except PlatformError:
            return None, {}
        return info, {one.id: one for one in written if one.kind != "value"}

    def _read(
        self, checkpoint: str, start: int, days: int, matured: int
    ) -> tuple[int | None, Mapping[str, RuleFirings]]:
        file = self._metrics.ledger.file
        end = time.monotonic() + _SECONDS
        try:
            with file.reading() as connection:
                if connection is None:
                    return None, {}
                connection.set_progress_handler(lambda: time.monotonic() > end, _STEPS)
                return counted_since(connection, checkpoint), read_firings(
                    connection, checkpoint, start, days, matured
                )
        except sqlite3.Error as error:
            raise UnreachableError(
                f"the rollups in {file.path} cannot be read ({error}); try again in a minute, or choose "
                "fewer days"
            ) from error


def _record(name: str, written: RuleText | None, found: RuleFirings, days: int) -> RuleRecord:
    hits = sum(found.daily)
    interval = wilson(found.positive, found.known, _CONFIDENCE) if found.known else None
    return RuleRecord(
        id=name,
        effect="" if written is None else written.effect or "none",
        active="" if written is None else written.active,
        switchable=written is not None and written.kind == "rule",
        daily=tuple(found.daily) or (0,) * days,
        hits=hits,
        last_at=instant(found.last) if found.last else None,
        known=found.known,
        positive=found.positive,
        precision=found.positive / found.known if found.known else None,
        low=None if interval is None else interval.low,
        high=None if interval is None else interval.high,
        never=hits == 0,
    )
