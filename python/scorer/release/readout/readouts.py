"""Collection of observations, and reports of change requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import select

from scorer.bundle.models import ReferenceFile
from scorer.figure import Figure
from scorer.ids import decision_key
from scorer.release.answers import Readout, SegmentReport
from scorer.release.changes import rows
from scorer.release.errors import InvalidError, NotFoundError
from scorer.release.gates import counting, groups
from scorer.release.gates.counting import Account
from scorer.release.gates.defaults import default_gates
from scorer.release.gates.evaluate import evaluate
from scorer.release.gates.evidence import ShadowEvidence, empty
from scorer.release.gates.grammar import read_all
from scorer.release.lanes import recorded
from scorer.release.model import (
    Actor,
    ChangeRequest,
    GateResult,
    GateSpec,
    Outcome,
    Role,
)
from scorer.release.readout import canary, keep, load, parts, recompute, segments
from scorer.release.readout.build import ReportSubject, build, figure, figure_names
from scorer.release.readout.ingest import Cases, Collector, Rollups
from scorer.release.readout.schemas import Schemas
from scorer.release.readout.segments import segment_report
from scorer.release.segments.settings import SegmentPlan
from scorer.release.store import Store, instant, micros
from scorer.release.store.rows import row_of, upsert
from scorer.release.store.tables import changes, cursors, waivers
from scorer.release.store.tables import readouts as table

if TYPE_CHECKING:
    from scorer.log.source.records import RecordSource
    from scorer.release.access import Access
    from scorer.release.bundles import Bundles
    from scorer.release.fleet import Fleet, Statuses
    from scorer.release.settings import PlatformFile

CONTROL = "aa"
_KEPT_AT_HAND = 2


class Readouts:
    """Collects observations from the logs of the fleet and builds reports from them.

    Args:
        settings: SLAs and gates of checkpoints, and the data directory.
        store: Changes, waivers, cursors and final reports.
        access: Permissions of users.
        fleet: The servers, with the counters of their lanes.
        source: The logs of the servers.
        bundles: Schemas and reference statistics of bundles, and the bundles for offline recomputation.
        now: Returns the current time, aware and in UTC.
        rollups: Counts the collected records over time.
        cases: Takes the collected records into the review queue; None: there is none.
        statuses: The servers' latest statuses; None: they are requested when needed.
    """

    def __init__(
        self,
        settings: PlatformFile,
        store: Store,
        access: Access,
        fleet: Fleet,
        source: RecordSource,
        bundles: Bundles,
        *,
        now: Callable[[], datetime],
        rollups: Rollups,
        cases: Cases | None = None,
        statuses: Statuses | None = None,
    ) -> None:
        self._settings, self._store, self._access = settings, store, access
        self._bundles, self._now, self._fleet, self._source = bundles, now, fleet, source
        self._parts = settings.platform.data_dir / "observations"
        self._final = settings.platform.data_dir / "readouts"
        schemas = Schemas(bundles.local)
        self._schemas = schemas
        self._collector = Collector(
            self._parts,
            store,
            fleet,
            source,
            schemas,
            plan=self._plan,
            now=now,
            rollups=rollups,
            cases=cases,
            statuses=statuses,
        )
        self._collecting = threading.Lock()
        self._at_hand: OrderedDict[str, tuple[Any, ShadowEvidence]] = OrderedDict()
        self._lock = threading.Lock()
        self._bundle = lru_cache(4)(self._load_bundle)

    # --- taking in ---

    def collect(self) -> None:
        """Read the records that the logs got since the last call. It can be interrupted and repeated."""
        with self._collecting:
            self._collector.collect()

    def measure(self, change: ChangeRequest) -> int:
        """Return the number of observations of a change so far."""
        if keep.is_saved(self._folder(change.id)):
            return len(self._evidence(change).shadow)
        return self._where(change).count()

    def logs(self) -> Mapping[str, str]:
        """Return the locations of the decision logs of servers that answer, by server."""
        pool = {member.name for member in self._fleet.members if member.role != "live"}
        return {
            log.name: log.location for log in self._source.logs if log.name not in pool and log.identities
        }

    def has_outcomes(self, checkpoint: str) -> bool:
        """Return whether an outcome of a checkpoint was reported."""
        return any(True for _ in load.Where(self._parts, checkpoint, parts.OUTCOMES).parts())

    def outcomes(self, checkpoint: str, decision_ids: Sequence[str]) -> Mapping[str, Mapping[str, float]]:
        """Return the outcomes of decisions of a checkpoint, by id and kind, as the gates count them."""
        keys = np.array([decision_key(one) for one in decision_ids], dtype=np.uint64)
        rule = self._settings.checkpoints[checkpoint].unproven
        found: dict[str, dict[str, float]] = {}
        for kind, (of, values) in load.outcomes(self._parts, checkpoint, keys=keys, unproven=rule).items():
            by_key = dict(zip(of.tolist(), values.tolist(), strict=True))
            for one, key in zip(decision_ids, keys.tolist(), strict=True):
                if key in by_key:
                    found.setdefault(one, {})[kind] = by_key[key]
        return found

    def matures(self, checkpoint: str, kind: str) -> timedelta:
        """Return the age of a decision at which its outcome is final."""
        return self._settings.checkpoints[checkpoint].matures(kind)

    def counts(self, change: ChangeRequest) -> Account:
        """Return the counts of the requests that the lane of a change took."""
        read = {log.name for log in self._source.logs}
        if keep.is_saved(self._folder(change.id)):
            evidence = self._evidence(change)
            counters, observed = evidence.counters, counting.observations(evidence)
        else:
            counters = load.counters(self._parts, change.checkpoint, change.id)
            observed = self._where(change).by_server()
        # Observations in a log that is not within reach count as failed; a note states the reason.
        return counting.account([one for one in counters if one.server in read], observed)

    # --- judging ---

    def judge(self, change: ChangeRequest) -> tuple[GateResult, ...]:
        """Evaluate the gates of a change on all present observations.

        The result depends only on the observations. Only the last evaluation may be acted on, because the
        false-alarm rate holds for a single analysis.
        """
        evidence = self._evidence(change)
        return self._evaluate(change, evidence, segment_report(evidence))

    def judge_canary(
        self, change: ChangeRequest, since: datetime, *, settled: Collection[str] = ()
    ) -> tuple[GateResult, ...]:
        """Evaluate the gates of a stage, comparing the canary's decisions with those of the previous bundle.

        Every result may be acted on, because the interim analyses share the false-alarm rate. Gates that
        cannot be computed from a canary are left out.

        Args:
            change: The change request.
            since: Start of the stage.
            settled: The metrics that have passed on pairs in the shadow of the change.
        """
        blank = self.blank(change)
        names = self._names(change)
        where = canary.since(self._parts, change.checkpoint, micros(since))
        own, live, thin = canary.answers(where, change.bundle, names)
        notes = [f"one in {thin} decisions of the stage is judged"] if thin > 1 else []
        evidence = replace(
            blank,
            shadow=load.renamed(own, names),
            control=load.renamed(live, names),
            parity=None,
            notes=notes,
        )
        report = segment_report(evidence, stage=change.step)
        self._keep_canary(change.id, report)
        specs = self._gates(change, evidence.kind, report)
        told = [spec for gate, spec in zip(read_all(specs), specs, strict=True) if gate.names.canary]
        return evaluate(
            told,
            evidence,
            waivers=self._waived(change.id),
            repeated=True,
            measured_by=canary.measure_canary,
            settled=settled,
            segments=segments.measured(report),
        )

    def finish(self, change: ChangeRequest, gates: Sequence[GateResult], verdict: Outcome) -> None:
        """Store the final report, so that pages can show it when the logs have been removed.

        A second call replaces the report. The parts of the change are removed, because the report contains
        their columns.

        Args:
            change: The change request.
            gates: The final results of the gates.
            verdict: The final verdict.
        """
        evidence = self._evidence(change)
        about, report = self._about(change, evidence), segment_report(evidence)
        made = build(about, evidence, gates, verdict=verdict, is_final=True, segments=report)
        keep.save(self._folder(change.id), evidence)
        values = {"at": self._now(), "verdict": verdict.value, "document": keep.document(made)}

        self._store.transact(lambda connection: upsert(connection, table, {"change": change.id}, **values))
        parts.remove(self._parts, change.checkpoint, change.id)

    # --- showing ---

    def readout(
        self,
        actor: Actor,
        change: str,
        *,
        start: datetime | None = None,
        end: datetime | None = None,
        server: str | None = None,
    ) -> Readout:
        """What there is so far, or the final one; by window and server on demand.

        Gates are always those of the whole: a window decides nothing.

        Raises:
            NotFoundError: There is no such change, or not for whoever asks.
            InvalidError: The window is empty, or there is no such server.
        """
        found = self._change(actor, change)
        with self._store.read() as connection:
            final = connection.execute(select(table.c.document).where(table.c.change == change)).scalar()
        if start is None and end is None and server is None and final is not None:
            return replace(keep.restored(final), canary=self._canary(change))
        if start is not None and end is not None and start >= end:
            raise InvalidError(f"the window ends at {end} and begins at {start}; give a later end")
        evidence = self._evidence(found)
        known = sorted({*evidence.shadow.servers(), *(one.server for one in evidence.counters)} - {""})
        if server is not None and server not in known:
            raise InvalidError(
                f'no observation is of server "{server}"; there are {", ".join(known) or "none"}'
            )
        about = self._about(found, evidence)
        cut = keep.within(evidence, _us(start), _us(end), server)
        about = replace(about, start=start or about.start, end=end or about.end)
        if final is not None:
            whole, report = keep.restored(final), segment_report(cut)
            return build(about, cut, whole.gates, verdict=whole.verdict, is_final=True, segments=report)
        report = segment_report(evidence)
        gates = self._evaluate(found, evidence, report)
        if (start, end, server) != (None, None, None):
            report = segment_report(cut)
        return build(about, cut, gates, verdict=found.verdict, segments=report)

    def evidence(self, actor: Actor, change: str) -> ShadowEvidence:
        """Return the observations behind a report, for comparison with those of another one.

        Raises:
            NotFoundError: There is no such change, or not for whoever asks.
        """
        return self._evidence(self._change(actor, change))

    def figure(self, actor: Actor, change: str, name: str) -> Figure:
        """Return one figure of a report, without drawing others or evaluating gates.

        Raises:
            NotFoundError: There is no such change or figure, or the actor may not see the change.
        """
        found = self._change(actor, change)
        with self._store.read() as connection:
            final = connection.execute(select(table.c.document).where(table.c.change == change)).scalar()
        if final is not None:
            known = {one.name: one for one in keep.restored(final).figures}
            if name in known:
                return known[name]
            names = list(known)
        else:
            evidence = self._evidence(found)
            names = figure_names(evidence)
            if name in names:
                return figure(evidence, name)
        raise NotFoundError(f'there is no figure "{name}" of {change}; there are {", ".join(names)}')

    # --- inside ---

    def _evidence(self, change: ChangeRequest) -> ShadowEvidence:
        folder = self._folder(change.id)
        saved = keep.is_saved(folder)
        state = self._state(change, saved)
        with self._lock:
            at_hand = self._at_hand.get(change.id)
            if at_hand is not None and at_hand[0] == state:
                self._at_hand.move_to_end(change.id)
                return self._current(at_hand[1], change)
        evidence = keep.load(folder) if saved else self._collected(change)
        with self._lock:
            self._at_hand[change.id] = state, evidence
            while len(self._at_hand) > _KEPT_AT_HAND:
                self._at_hand.popitem(last=False)
        return self._current(evidence, change)

    def _state(self, change: ChangeRequest, saved: bool) -> Any:
        """Return a value that changes whenever the evidence changes."""
        counted = [
            (str(file), file.stat().st_size)
            for file in sorted(self._parts.glob(f"*/counters/{change.checkpoint}/{change.id}.jsonl"))
        ]
        own = [str(part.path) for _, part in self._where(change).parts()]
        control = [str(part.path) for _, part in self._where(change, CONTROL).parts()]
        outcomes = [str(part.path) for _, part in self._where(change, parts.OUTCOMES).parts()]
        return (saved, outcomes) if saved else (saved, own, control, counted, outcomes)

    def _collected(self, change: ChangeRequest) -> ShadowEvidence:
        blank = self.blank(change)
        for attempt in range(3):
            try:
                return self._loaded(change, blank)
            except FileNotFoundError:
                # Parts were merged while they were read.
                if attempt == 2:
                    raise
        raise AssertionError

    def _loaded(self, change: ChangeRequest, blank: ShadowEvidence) -> ShadowEvidence:
        where, names = self._where(change), self._names(change)
        thin = max(-(-where.count() // load.MOST), 1)
        shadow = load.observed(where, names, thin=thin)
        control = shadow.take(slice(0, 0))
        if len(shadow):
            beside = replace(
                self._where(change, CONTROL), begin=int(shadow.at.min()), end=int(shadow.at.max()) + 1
            )
            control = load.observed(beside, names, thin=thin, control=True)
        shadow, control = load.renamed(shadow, names), load.renamed(control, names)
        notes = [*self._collector.notes()]
        if thin > 1:
            notes.append(f"one in {thin} observations is shown and judged: there are {where.count():,}")
        return replace(
            blank,
            shadow=shadow,
            control=control,
            live_bundle=load.live_bundle(where),
            counters=load.counters(self._parts, change.checkpoint, change.id),
            read=where.by_server(),
            flips=load.flips(where, shadow),
            parity=recompute.parity(
                self._bundle(change.bundle), load.sample(where, shadow, recompute.SAMPLE)
            ),
            notes=notes,
        )

    def blank(self, change: ChangeRequest) -> ShadowEvidence:
        """Return evidence without rows, with the facts about the bundle and the settings."""
        from scorer.bundle import read_manifest

        path = self._bundles.local(change.bundle)
        manifest = read_manifest(path)
        reference = ReferenceFile.model_validate_json((path / "reference.json").read_bytes())
        checkpoint = self._settings.checkpoints[change.checkpoint]
        labels = [band.label for node in manifest.program if node.kind == "threshold" for band in node.bands]
        plan = checkpoint.segments.plan()
        split = self._schemas.split(change.bundle, plan)
        return ShadowEvidence(
            kind=manifest.kind,
            sla_us=checkpoint.p99_ms * 1_000,
            shadow=empty(),
            control=empty(),
            training=reference.training,
            reference=reference.validation,
            outcome=checkpoint.outcome_of(manifest.kind),
            approve="approve" if "approve" in labels or not labels else labels[0],
            bands=labels,
            segments=plan,
            segment_notes=split.notes if split else (),
        )

    def _plan(self, checkpoint: str) -> SegmentPlan | None:
        """How rows of a checkpoint are split; None: the platform does not manage it."""
        found = self._settings.checkpoints.get(checkpoint)
        return None if found is None else found.segments.plan()

    def _names(self, change: ChangeRequest) -> load.CodeNames:
        plan = self._plan(change.checkpoint)
        split = None if plan is None else self._schemas.split(change.bundle, plan)
        return load.CodeNames(segments=split.names if split else ())

    def _evaluate(
        self, change: ChangeRequest, evidence: ShadowEvidence, report: SegmentReport | None
    ) -> tuple[GateResult, ...]:
        return evaluate(
            self._gates(change, evidence.kind, report),
            evidence,
            waivers=self._waived(change.id),
            segments=segments.measured(report),
        )

    def _keep_canary(self, change: str, report: SegmentReport | None) -> None:
        """Keep the segments of the latest stage, as the process that shows pages may be another one."""
        if report is None:
            return
        values = {"position": asdict(report), "at": self._now()}
        name = {"name": _canary_segments(change)}
        self._store.transact(lambda connection: upsert(connection, cursors, name, **values))

    def _canary(self, change: str) -> SegmentReport | None:
        query = select(cursors.c.position).where(cursors.c.name == _canary_segments(change))
        with self._store.read() as connection:
            return keep.segment_report(connection.execute(query).scalar())

    def _current(self, evidence: ShadowEvidence, change: ChangeRequest) -> ShadowEvidence:
        """Return the evidence with the outcomes that are known now."""
        mature = self.matures(change.checkpoint, evidence.kind)
        kind, keys = evidence.outcome, evidence.shadow.key
        if not len(keys):
            return replace(evidence, outcomes={}, matured_before=micros(self._now() - mature))
        rule, notes = self._settings.checkpoints[change.checkpoint].unproven, evidence.notes
        excluded = load.unproven_outcomes(self._parts, change.checkpoint, kind, keys)
        if excluded and rule == "exclude":
            notes = [*notes, f"{excluded:,} outcomes ({kind}) are not proven and do not count"]
        return replace(
            evidence,
            outcomes=load.outcomes(self._parts, change.checkpoint, kind=kind, keys=keys, unproven=rule),
            notes=notes,
            matured_before=micros(self._now() - mature),
        )

    def _gates(self, change: ChangeRequest, kind: str, report: SegmentReport | None) -> Sequence[GateSpec]:
        checkpoint = self._settings.checkpoints[change.checkpoint]
        specs = change.gates or checkpoint.gates or default_gates(kind)
        plan = checkpoint.segments.plan()
        of_groups = groups.gates_of(plan, specs) if kind == "score" else []
        return [*specs, *segments.gate_of(report, specs, decides=plan.decides), *of_groups]

    def _waived(self, change: str) -> Mapping[str, tuple[str, str]]:
        query = select(waivers.c.metric, waivers.c.user, waivers.c.reason).where(waivers.c.change == change)
        with self._store.read() as connection:
            return {metric: (user, reason) for metric, user, reason in connection.execute(query)}

    def _about(self, change: ChangeRequest, evidence: ShadowEvidence) -> ReportSubject:
        at = evidence.shadow.at
        begin = change.since or change.created_at
        return ReportSubject(
            change=change.id,
            checkpoint=change.checkpoint,
            bundle=change.bundle,
            live_bundle=evidence.live_bundle or self._answering(change),
            start=instant(int(at.min())) if len(at) else begin,
            end=instant(int(at.max())) if len(at) else max(self._now(), begin),
        )

    def _answering(self, change: ChangeRequest) -> str:
        """Return the digest of the bundle with the largest share in the recorded lane table."""
        with self._store.read() as connection:
            newest = recorded.newest(connection, change.checkpoint)
        return recorded.main_lane(newest.answer).bundle if newest and newest.answer else ""

    def _change(self, actor: Actor, change: str) -> ChangeRequest:
        with self._store.read() as connection:
            row = row_of(connection, changes, id=change)
        if row is None:
            raise NotFoundError(f'there is no change request "{change}"; look at the list of changes')
        self._access.require(actor, Role.VIEWER, row.project)
        return rows.change(row)

    def _where(self, change: ChangeRequest, lane: str | None = None) -> load.Where:
        return load.Where(self._parts, change.checkpoint, lane or change.id)

    def _folder(self, change: str) -> Path:
        return self._final / change

    def _load_bundle(self, digest: str) -> Any:
        from scorer.bundle import Bundle

        return Bundle.load(self._bundles.local(digest), digest)


def _canary_segments(change: str) -> str:
    return f"segments:{change}"


def _us(at: datetime | None) -> int | None:
    return None if at is None else micros(at)
