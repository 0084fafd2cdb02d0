"""Look-up of single decisions with their observations and outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from scorer.errors import LogError, ScorerError
from scorer.ids import digest_text
from scorer.log.bundles import BundleShelf
from scorer.log.outcomes import OutcomeJoin
from scorer.log.scanning import Entry
from scorer.log.tail import KEPT
from scorer.release.answers import DecisionPage
from scorer.release.decisions import merging, shapes
from scorer.release.decisions.sampling import SAMPLE, SampledDecision
from scorer.release.errors import NotFoundError, UnreachableError
from scorer.release.model import Actor
from scorer.release.requests import DecisionFilter
from scorer.release.store import micros

if TYPE_CHECKING:
    from scorer.log.search import Stretch
    from scorer.log.source.records import DecisionEntries, RecordLog, RecordSource
    from scorer.release.access import Access
    from scorer.release.bundles import Bundles
    from scorer.release.settings import PlatformFile
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

Outcomes = Callable[[str, Sequence[str]], Mapping[str, Mapping[str, float]]]
"""Outcomes of decisions of a checkpoint: by decision id, and by kind."""


class Decisions:
    """Finds decisions in the logs of all servers.

    Args:
        source: The logs of the servers.
        access: Decides which checkpoints an actor may see.
        bundles: Provides the names of features and actions.
        settings: The checkpoints.
        outcomes: Returns the outcomes of decisions of a checkpoint, by id and kind; None: none are known.
    """

    def __init__(
        self,
        source: RecordSource,
        access: Access,
        bundles: Bundles,
        settings: PlatformFile,
        *,
        outcomes: Outcomes | None = None,
    ) -> None:
        self._access = access
        self._outcomes = outcomes
        self._settings, self._source = settings, source
        self._shelf = lru_cache(maxsize=64)(lambda digest: BundleShelf([bundles.local(digest)]))

    @property
    def _checkpoints(self) -> tuple[str, ...]:
        return tuple(self._settings.checkpoints)

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
        try:
            known = self._source.of_decision(decision_id)
        except LogError as error:
            raise UnreachableError(f'decision "{decision_id}" cannot be looked up: {error}') from error
        found = [(server, entry) for server, entry in known.entries if entry.checkpoint in wanted]
        decided = [one for one in found if one[1].kind == "decision"]
        if not decided:
            raise self._not_found(decision_id, known)
        decided.sort(key=lambda one: (one[1].record.decided_at_us, one[1].sequence))
        # For one id and checkpoint, the first record counts. With several checkpoints, the newest is shown.
        firsts: dict[str, tuple[str, Entry]] = {}
        for server, entry in decided:
            firsts.setdefault(entry.record.checkpoint, (server, entry))
        first, (sequence, _, decision) = list(firsts.values())[-1]
        same = [one for one in found if one[1].checkpoint == decision.checkpoint]
        join, servers = _joined(same)
        return {
            "decision": {**shapes.decision_shape(decision, first), "sequence": sequence},
            "features": self._features(decision),
            "choices": self._choices(decision),
            "observations": [
                self._observation(entry.record, server)
                for server, entry in same
                if entry.kind == "observation"
            ],
            "outcomes": shapes.outcomes_shape(join, servers),
            "conflicts": [
                f"{one.kind} revision {one.first.revision}: {one.first.value:g} counts, later "
                f"{one.other.value:g} ({servers[one.other.sequence]})"
                for one in join.conflicts
            ],
            "also": [
                shapes.decision_shape(entry.record, server)
                for server, entry in decided
                if (server, entry.sequence) != (first, sequence)
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
        self._check_visible(actor, checkpoint)
        rows: list[merging.ListedDecision] = []
        for log in self._source.logs:
            try:
                newest = log.newest(checkpoint, min(limit, KEPT))
            except LogError:
                continue  # a server that has not started yet has no log
            rows += [merging.ListedDecision(log.name, 0, one) for one in newest]
        return [shapes.decision_shape(row.record, row.server) for row in merging.merged(rows)[:limit]]

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
        self._check_visible(actor, checkpoint)
        limit = max(1, min(limit, KEPT))
        logs = self._source.logs
        positions = merging.positions(cursor, [log.name for log in logs])
        stretches = {
            log.name: self._stretch(log, checkpoint, asked, positions[log.name], limit) for log in logs
        }
        found = [
            merging.ListedDecision(server, sequence, record)
            for server, stretch in stretches.items()
            for sequence, record in (stretch.found if stretch else ())
        ]
        # Positions count all matches of the page, including those that the filter by outcome excludes.
        page, rest = merging.page(found, limit)
        following: dict[str, int] = {}
        for server, stretch in stretches.items():
            left = [row.sequence for row in rest if row.server == server]
            following[server] = max(left) + 1 if left else stretch.upto if stretch else 0
        done = not rest and all(stretch is None or stretch.is_complete for stretch in stretches.values())
        items = [shapes.decision_shape(row.record, row.server) for row in page]
        # With several logs, all decisions after the latest of the reached times have been searched.
        looked = [
            stretch.oldest_us for stretch in stretches.values() if stretch and stretch.oldest_us is not None
        ]
        oldest = max(looked, default=None)
        return DecisionPage(
            self._with_outcomes(checkpoint, items, asked.outcome),
            None if done else merging.cursor(following),
            None if oldest is None else datetime.fromtimestamp(oldest / 1e6, UTC),
        )

    def sample(
        self, actor: Actor, checkpoint: str, asked: DecisionFilter, *, limit: int = SAMPLE
    ) -> Sequence[SampledDecision]:
        """Return the newest decisions of a checkpoint that match a filter, with the schema of their bundle.

        Args:
            actor: The calling user.
            checkpoint: Name of the checkpoint.
            asked: The filter. A filter by outcome is not supported here.
            limit: Limit on the number of decisions, at most 5,000. Of each log a bounded number of records is
                decoded, so that there may be fewer.

        Raises:
            NotFoundError: There is no such checkpoint, or the actor may not see it.
        """
        self._check_visible(actor, checkpoint)
        limit = max(1, min(limit, SAMPLE))
        rows = [
            merging.ListedDecision(log.name, sequence, record)
            for log in self._source.logs
            if (stretch := self._stretch(log, checkpoint, asked, None, limit)) is not None
            for sequence, record in stretch.found
        ]
        newest = merging.merged(rows)[:limit]
        digests = {digest_text(row.record.bundle) for row in newest}
        schemas = {
            digest: None if (shelf := self._bundle(digest)) is None else shelf.schema(digest)
            for digest in digests
        }
        known: Mapping[str, Mapping[str, float]] = {}
        if self._outcomes is not None and newest:
            known = self._outcomes(checkpoint, [row.record.decision_id for row in newest])
        return [
            SampledDecision(
                row.record, schemas[digest_text(row.record.bundle)], known.get(row.record.decision_id, {})
            )
            for row in newest
        ]

    def _check_visible(self, actor: Actor, checkpoint: str) -> None:
        if checkpoint not in self._access.checkpoints(actor, self._checkpoints):
            raise NotFoundError(
                f'there is no checkpoint "{checkpoint}" that you may see; the page of checkpoints lists '
                "those that you may see"
            )

    def _stretch(
        self, log: RecordLog, checkpoint: str, asked: DecisionFilter, position: int | None, limit: int
    ) -> Stretch | None:
        if position == 0:
            return None
        try:
            return log.search(
                checkpoint,
                lambda record: shapes.matches(record, asked),
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
        """Close the source of the logs."""
        self._source.close()

    # --- helpers ---

    def _not_found(self, decision_id: str, known: DecisionEntries) -> ScorerError:
        what = f'decision "{decision_id}"'
        names = [log.name for log in self._source.logs]
        if not names and known.problems:
            return UnreachableError(f"{what} cannot be looked up: {known.problems[0]}")
        if not names:
            return NotFoundError(
                f"{what}: the settings name no log of a server that this machine can read; set `log` of a "
                "server, or `urls` of [tables], in platform.toml"
            )
        if not known.is_complete:
            return UnreachableError(
                f"{what} is not among the indexed decisions, and older ones are still being indexed; try "
                "again in a minute"
            )
        if known.problems:
            return UnreachableError(f"{what} is in none of the readable logs; {known.problems[0]}")
        return NotFoundError(
            f"{what} is in no log of {', '.join(names)}, or is of a checkpoint that you may "
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


def _joined(found: Sequence[tuple[str, Entry]]) -> tuple[OutcomeJoin, dict[int, str]]:
    """Join outcomes of all servers in the order in which they were received."""
    join = OutcomeJoin()
    servers: dict[int, str] = {}
    reports = [
        (entry.record.received_at_us, entry.sequence, server, entry.record)
        for server, entry in found
        if entry.kind == "outcome"
    ]
    for at, (_, _, server, outcome) in enumerate(sorted(reports, key=lambda report: report[:2])):
        # The position in this order replaces the sequence, which is unique only within one log.
        servers[at] = server
        join.add(at, outcome)
    return join, servers
