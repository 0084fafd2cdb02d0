"""Single decisions, with what every shadow said and what became of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
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
from scorer.release.decisions import shapes
from scorer.release.errors import NotFoundError, UnreachableError
from scorer.release.model import Actor

if TYPE_CHECKING:
    from scorer.release.access import Access
    from scorer.release.bundles import Bundles
    from scorer.release.fleet import Fleet
    from scorer.release.settings import PlatformFile
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

_PATIENCE = 5.0
"""Seconds that a search may spend on what the index does not have yet."""


class Decisions:
    """Reads the logs of the fleet.

    Args:
        fleet: Whose members' logs; those that this machine can read.
        access: Who may see which checkpoint.
        bundles: Where the names of features come from.
        settings: The checkpoints, and where the index is kept.
    """

    def __init__(self, fleet: Fleet, access: Access, bundles: Bundles, settings: PlatformFile) -> None:
        self._access = access
        self._checkpoints = tuple(settings.checkpoints)
        # Two members may write about one another's decisions, never to one log.
        self._logs: dict[Path, str] = {}
        for member in fleet.members:
            if member.log is not None:
                self._logs.setdefault(member.log.resolve(), member.name)
        self._index = DecisionIndex(settings.platform.data_dir / "decisions.sqlite")
        self._tails = {log: Tail(log) for log in self._logs}
        self._shelf = lru_cache(maxsize=64)(lambda digest: BundleShelf([bundles.local(digest)]))

    def find(self, actor: Actor, decision_id: str, *, checkpoint: str | None = None) -> Mapping[str, Any]:
        """Everything about one decision.

        `{"decision": {...}, "features": [{"name", "value", "type", "absent"}], "choices": [...],
        "observations": [{..., "features": [...]}], "outcomes": [...], "conflicts": [...], "also": [...]}`;
        `also` names the other checkpoints at which the id was decided about, and other servers.

        Raises:
            NotFoundError: No log has it, or the caller cannot see it.
            UnreachableError: The logs are still being indexed, or cannot be read.
        """
        visible = self._visible(actor)
        wanted = visible if checkpoint is None else visible & {checkpoint}
        complete, problems = self._update()
        try:
            places = self._index.places(decision_id)
        except sqlite3.DatabaseError:
            self._index.reset()
            complete, problems = self._update()
            places = self._index.places(decision_id)
        found = [
            (log, entry)
            for log, entry in self._entries(places)
            if entry.decision_id == decision_id and entry.checkpoint in wanted
        ]
        decided = [one for one in found if one[1].kind == "decision"]
        if not decided:
            raise self._not_found(decision_id, complete, problems)
        decided.sort(key=lambda one: (one[1].record.decided_at_us, one[1].sequence))
        # Of one id and checkpoint the first record wins; of several checkpoints the newest decision is shown.
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
        """The newest decisions of a checkpoint, newest first: up to 500 of what its logs got last.

        Raises:
            NotFoundError: There is no such checkpoint, or the caller cannot see it.
        """
        if checkpoint not in self._visible(actor):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}", or none of your projects has it; the page of '
                "checkpoints lists those that you may see"
            )
        rows: list[tuple[DecisionRecord, str]] = []
        for log, server in self._logs.items():
            try:
                rows += [(one, server) for one in self._tails[log].newest(checkpoint, min(limit, KEPT))]
            except LogError:
                continue  # a server that has not started yet has no log
        rows.sort(key=lambda row: row[0].decided_at_us, reverse=True)
        return [shapes.decision_shape(one, server) for one, server in rows[:limit]]

    def close(self) -> None:
        """Lets go of the index."""
        self._index.close()

    # --- inside ---

    def _visible(self, actor: Actor) -> set[str]:
        """The checkpoints that the caller can see."""
        names: set[str] = set()
        for project in self._access.projects(actor):
            names.update(project.checkpoints or self._checkpoints)
        return names & set(self._checkpoints)

    def _update(self) -> tuple[bool, list[str]]:
        complete, problems = True, []
        for log, server in self._logs.items():
            try:
                complete &= self._index.update(log, seconds=_PATIENCE)
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
                f"{what}: no server of the fleet has a log that this machine can read; name one with `log` "
                "in platform.toml"
            )
        if not complete:
            return UnreachableError(
                f"{what} is not among the newest decisions, and the older ones are still being indexed; try "
                "again in a minute"
            )
        if problems:
            return UnreachableError(f"{what} is in no log that can be read now; {problems[0]}")
        return NotFoundError(
            f"{what} is in no log of {', '.join(self._logs.values())}, or at a checkpoint that none of your "
            "projects has; check the id: it is the request_id of the call, or that of the reply"
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


def _joined(
    found: Sequence[tuple[Path, Entry]], logs: Mapping[Path, str]
) -> tuple[OutcomeJoin, dict[int, str]]:
    """Outcomes in the order in which they were received, at whichever server."""
    join = OutcomeJoin()
    servers: dict[int, str] = {}
    reports = [
        (entry.record.received_at_us, entry.sequence, log, entry.record)
        for log, entry in found
        if entry.kind == "outcome"
    ]
    for at, (_, _, log, outcome) in enumerate(sorted(reports, key=lambda report: report[:2])):
        # The place in this order stands for the sequence: two logs may have the same.
        servers[at] = logs[log]
        join.add(at, outcome)
    return join, servers
