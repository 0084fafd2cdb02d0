"""Look-up of single decisions with their observations and outcomes."""

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

_INDEX_SECONDS = 5.0
"""Longest time in seconds that a search spends on indexing new records."""


class Decisions:
    """Finds decisions in the logs of the servers.

    Args:
        fleet: The servers. Logs that this machine cannot read are skipped.
        access: Decides which checkpoints an actor may see.
        bundles: Provides the names of features and actions.
        settings: The checkpoints, and the directory of the index.
    """

    def __init__(self, fleet: Fleet, access: Access, bundles: Bundles, settings: PlatformFile) -> None:
        self._access = access
        self._checkpoints = tuple(settings.checkpoints)
        # A log may contain records about another server's decisions, but each log has one writer.
        self._logs: dict[Path, str] = {}
        for member in fleet.members:
            if member.log is not None:
                self._logs.setdefault(member.log.resolve(), member.name)
        self._index = DecisionIndex(settings.platform.data_dir / "decisions.sqlite")
        self._tails = {log: Tail(log) for log in self._logs}
        self._shelf = lru_cache(maxsize=64)(lambda digest: BundleShelf([bundles.local(digest)]))

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
        if checkpoint not in self._visible(actor):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
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
        """Close the index of all logs."""
        self._index.close()

    # --- helpers ---

    def _visible(self, actor: Actor) -> set[str]:
        """Return the names of the checkpoints that the actor may see."""
        names: set[str] = set()
        for project in self._access.projects(actor):
            names.update(project.checkpoints or self._checkpoints)
        return names & set(self._checkpoints)

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
