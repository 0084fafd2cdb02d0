"""Look-up of single decisions with their observations and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scorer.errors import LogError, ScorerError
from scorer.ids import digest_text
from scorer.log.bundles import BundleShelf
from scorer.log.index import DecisionIndex
from scorer.log.outcomes import OutcomeJoin
from scorer.log.scanning import Entry
from scorer.log.segments import entries_at
from scorer.log.tail import KEPT, Tail
from scorer.release.answers import DecisionPage
from scorer.release.decisions import shapes
from scorer.release.decisions.search import Stretch, search
from scorer.release.errors import InvalidError, NotFoundError, UnreachableError
from scorer.release.model import Actor
from scorer.release.requests import DecisionFilter
from scorer.release.store import micros

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.bundles import Bundles
    from scorer.release.fleet import Fleet
    from scorer.release.settings import PlatformFile
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

Outcomes = Callable[[str, Sequence[str]], Mapping[str, Mapping[str, float]]]
"""Outcomes of decisions of a checkpoint: by decision id, and by kind."""

_INDEX_SECONDS = 5.0
"""Longest time in seconds that a search spends on indexing new records."""


class Decisions:
    """Finds decisions in the logs of the servers.

    Args:
        fleet: The servers. Logs that this machine cannot read are skipped.
        access: Decides which checkpoints an actor may see.
        bundles: Provides the names of features and actions.
        settings: The checkpoints, and the directory of the index.
        outcomes: Returns the outcomes of decisions of a checkpoint, by id and kind; None: none are known.
    """

    def __init__(
        self,
        fleet: Fleet,
        access: Access,
        bundles: Bundles,
        settings: PlatformFile,
        *,
        outcomes: Outcomes | None = None,
    ) -> None:
        self._access = access
        self._outcomes = outcomes
        self._settings, self._fleet = settings, fleet
        self._index = DecisionIndex(settings.platform.data_dir / "decisions.sqlite")
        self._tails: dict[Path, Tail] = {}
        self._shelf = lru_cache(maxsize=64)(lambda digest: BundleShelf([bundles.local(digest)]))

    @property
    def _logs(self) -> dict[Path, str]:
        """The names of the present servers, by the directory of their log."""
        found: dict[Path, str] = {}
        # A log may contain records about another server's decisions, but each log has one writer.
        for member in self._fleet.members:
            if member.log is not None:
                found.setdefault(member.log.resolve(), member.name)
        return found

    @property
    def _checkpoints(self) -> tuple[str, ...]:
        return tuple(self._settings.checkpoints)

    def _tail(self, log: Path) -> Tail:
        return self._tails.setdefault(log, Tail(log))

    def find(self, actor: Actor, decision_id: str, *, checkpoint: str | None = None) -> Mapping[str, Any]:
        """Return a decision with its features, actions, observations and outcomes.

        Args:
            actor: The calling user.
            decision_id: Id of the decision, which is the request id.
            checkpoint: Name of the checkpoint; None: any.

        Returns:
            `{"decision": {...}, "features": [{"name", "value", "type", "absent", "withheld"}],
            "choices": [...], "observations": [{..., "features": [...]}], "outcomes": [...],
            "conflicts": [...], "also": [...]}`. `also` lists other checkpoints and servers with a
            decision of the same id.

        Raises:
            NotFoundError: No log contains the decision, or the actor may not see it.
            UnreachableError: The logs are still being indexed, or cannot be read.
        """
        visible = self._access.checkpoints(actor, self._checkpoints)
        wanted = visible if checkpoint is None else visible & {checkpoint}
        complete, problems = self._update()
        try:
            places = self._index.places(decision_id)
            if places is None:
                complete, problems = self._update()
                places = self._index.places(decision_id) or {}
        except LogError as error:
            raise UnreachableError(f'decision "{decision_id}" cannot be looked up: {error}') from error
        found = [
            (log, entry)
            for log, entry in self._entries(places)
            if entry.decision_id == decision_id and entry.checkpoint in wanted
        ]
        decided = [one for one in found if one[1].kind == "decision"]
        if not decided:
            raise self._not_found(decision_id, complete, problems)
        decided.sort(key=lambda one: (one[1].record.decided_at_us, one[1].sequence))
        # For one id and checkpoint, the first record counts. With several checkpoints, the newest is shown.
        firsts: dict[str, tuple[Path, Entry]] = {}
        for log, entry in decided:
            firsts.setdefault(entry.record.checkpoint, (log, entry))
        log, (sequence, _, decision) = list(firsts.values())[-1]
        same = [one for one in found if one[1].checkpoint == decision.checkpoint]
        join, servers = _joined(same, self._logs)
        return {
            "decision": {**shapes.decision_shape(decision, self._logs[log]), "sequence": sequence},
            "features": self._features(decision),
            "choices": self._choices(decision),
            "observations": [
                self._observation(entry.record, self._logs[where])
                for where, entry in same
                if entry.kind == "observation"
            ],
            "outcomes": shapes.outcomes_shape(join, servers),
            "conflicts": [
                f"{one.kind} revision {one.first.revision}: {one.first.value:g} counts, later "
                f"{one.other.value:g} ({servers[one.other.sequence]})"
                for one in join.conflicts
            ],
            "also": [
                shapes.decision_shape(entry.record, self._logs[where])
                for where, entry in decided
                if (where, entry.sequence) != (log, sequence)
            ],
        }

    def recent(self, actor: Actor, checkpoint: str, *, limit: int = 50) -> Sequence[Mapping[str, Any]]:
        """Return the newest decisions of a checkpoint, newest first.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            limit: Limit on the number of decisions, at most 500.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
        """
        if checkpoint not in self._access.checkpoints(actor, self._checkpoints):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )
        rows: list[tuple[DecisionRecord, str]] = []
        for log, server in self._logs.items():
            try:
                rows += [(one, server) for one in self._tail(log).newest(checkpoint, min(limit, KEPT))]
            except LogError:
                continue  # a server that has not started yet has no log
        rows.sort(key=lambda row: row[0].decided_at_us, reverse=True)
        return [shapes.decision_shape(one, server) for one, server in rows[:limit]]

    def search(
        self,
        actor: Actor,
        checkpoint: str,
        asked: DecisionFilter,
        *,
        cursor: str | None = None,
        limit: int = 50,
    ) -> DecisionPage:
        """Return the decisions of a checkpoint that match a filter, newest first.

        One call decodes a bounded number of records of each log. A page can therefore have a cursor although
        it has fewer decisions than the limit, or none. The next call continues from the cursor.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            asked: The filter.
            cursor: `next` of the previous page; None: start at the newest decision.
            limit: Limit on the number of decisions, at most 500.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
            InvalidError: The cursor is not one of this list.
        """
        if checkpoint not in self._access.checkpoints(actor, self._checkpoints):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )
        limit = max(1, min(limit, KEPT))
        positions = _positions(cursor, len(self._logs))
        stretches: list[Stretch | None] = []
        for log, position in zip(self._logs, positions, strict=True):
            stretches.append(self._stretch(log, checkpoint, asked, position, limit))
        rows = [
            (record.decided_at_us, at, sequence, record)
            for at, stretch in enumerate(stretches)
            for sequence, record in (stretch.found if stretch else ())
        ]
        rows.sort(key=lambda row: row[0], reverse=True)
        # Positions count all matches of the page, including those that the filter by outcome excludes.
        page, rest = rows[:limit], rows[limit:]
        following: list[int] = []
        for at, stretch in enumerate(stretches):
            left = [sequence for _, where, sequence, _ in rest if where == at]
            following.append(max(left) + 1 if left else stretch.upto if stretch else 0)
        done = not rest and all(stretch is None or stretch.is_complete for stretch in stretches)
        servers = list(self._logs.values())
        items = [shapes.decision_shape(record, servers[at]) for _, at, _, record in page]
        # With several logs, all decisions after the latest of the reached times have been searched.
        looked = [stretch.oldest_us for stretch in stretches if stretch and stretch.oldest_us is not None]
        oldest = max(looked, default=None)
        return DecisionPage(
            self._with_outcomes(checkpoint, items, asked.outcome),
            None if done else "-".join(map(str, following)),
            None if oldest is None else datetime.fromtimestamp(oldest / 1e6, UTC),
        )

    def _stretch(
        self, log: Path, checkpoint: str, asked: DecisionFilter, position: int | None, limit: int
    ) -> Stretch | None:
        if position == 0:
            return None
        try:
            return search(
                log,
                lambda record: record.checkpoint == checkpoint and shapes.matches(record, asked),
                before=position,
                begin_us=None if asked.begin is None else micros(asked.begin),
                end_us=None if asked.end is None else micros(asked.end),
                limit=limit,
            )
        except LogError:
            return None  # a server that has not started yet has no log

    def _with_outcomes(
        self, checkpoint: str, items: Sequence[dict[str, Any]], wanted: str | None
    ) -> list[Mapping[str, Any]]:
        """Add each decision's outcomes, by kind, and apply the filter by outcome."""
        known: Mapping[str, Mapping[str, float]] = {}
        if self._outcomes is not None and items:
            known = self._outcomes(checkpoint, [item["decision_id"] for item in items])
        kept: list[Mapping[str, Any]] = []
        for item in items:
            own = dict(known.get(item["decision_id"], {}))
            states = {"known"} if own else {"unknown"}
            states |= {"positive" if value > 0 else "negative" for value in own.values()}
            if wanted is None or wanted in states:
                kept.append({**item, "outcomes": own})
        return kept

    def close(self) -> None:
        """Close the index of all logs."""
        self._index.close()

    # --- helpers ---

    def _update(self) -> tuple[bool, list[str]]:
        complete, problems = True, []
        for log, server in self._logs.items():
            try:
                complete &= self._index.update(log, seconds=_INDEX_SECONDS)
            except LogError as error:
                problems.append(f'server "{server}": {error}')
        return complete, problems

    def _entries(self, places: Mapping[Path, Sequence[int]]) -> Iterator[tuple[Path, Entry]]:
        for log, sequences in places.items():
            if log in self._logs:
                for entry in entries_at(log, sequences):
                    yield log, entry

    def _not_found(self, decision_id: str, complete: bool, problems: Sequence[str]) -> ScorerError:
        what = f'decision "{decision_id}"'
        if not self._logs:
            return NotFoundError(
                f"{what}: the settings name no log of a server that this machine can read; set `log` of a "
                "server in platform.toml"
            )
        if not complete:
            return UnreachableError(
                f"{what} is not among the indexed decisions, and older ones are still being indexed; try "
                "again in a minute"
            )
        if problems:
            return UnreachableError(f"{what} is in none of the readable logs; {problems[0]}")
        return NotFoundError(
            f"{what} is in no log of {', '.join(self._logs.values())}, or is of a checkpoint that you may "
            "not see; check the id, which is the request_id of the call or of the reply"
        )

    def _bundle(self, digest: str) -> BundleShelf | None:
        try:
            shelf: BundleShelf = self._shelf(digest)
        except (ScorerError, OSError):
            return None
        return shelf

    def _features(self, decision: DecisionRecord, absent: Sequence[int] = ()) -> list[dict[str, Any]]:
        digest = digest_text(decision.bundle)
        shelf = self._bundle(digest)
        schema = None if shelf is None else shelf.schema(digest)
        return shapes.features_shape(decision, schema, absent)

    def _choices(self, decision: DecisionRecord) -> list[dict[str, Any]]:
        digest = digest_text(decision.bundle)
        shelf = self._bundle(digest)
        return shapes.choices_shape(decision, () if shelf is None else shelf.catalogue(digest))

    def _observation(self, observation: ObservationRecord, server: str) -> dict[str, Any]:
        return {
            **shapes.observation_shape(observation, server),
            "features": self._features(observation.decision, observation.absent_features),
            "choices": self._choices(observation.decision),
        }


def _positions(cursor: str | None, count: int) -> list[int | None]:
    """Return the position of a cursor in each log; None for the end of a log."""
    if cursor is None:
        return [None] * count
    parts = cursor.split("-")
    if len(parts) != count or not all(part.isdecimal() and len(part) < 20 for part in parts):
        raise InvalidError(f'"{cursor}" is not a position in this list; omit the cursor')
    return [int(part) for part in parts]


def _joined(
    found: Sequence[tuple[Path, Entry]], logs: Mapping[Path, str]
) -> tuple[OutcomeJoin, dict[int, str]]:
    """Join outcomes of all servers in the order in which they were received."""
    join = OutcomeJoin()
    servers: dict[int, str] = {}
    reports = [
        (entry.record.received_at_us, entry.sequence, log, entry.record)
        for log, entry in found
        if entry.kind == "outcome"
    ]
    for at, (_, _, log, outcome) in enumerate(sorted(reports, key=lambda report: report[:2])):
        # The position in this order replaces the sequence, which is unique only within one log.
        servers[at] = logs[log]
        join.add(at, outcome)
    return join, servers
