"""Operations on the rules of bundles."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from sqlalchemy import insert

from scorer.bundle.rule_costs import RuleCosts
from scorer.bundle.rules import BundleRules, RuleFault, stored_rules
from scorer.errors import BundleError
from scorer.release.access.attempts import Attempts
from scorer.release.answers import BundleInfo, Draft
from scorer.release.authoring.bench import BenchRequest, recorded_request, run_bench
from scorer.release.authoring.blast import blast_radius
from scorer.release.authoring.cost import run_cost
from scorer.release.authoring.names import rule_names
from scorer.release.authoring.switches import with_switch
from scorer.release.authoring.tables import table_grids
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    PlatformError,
    QuotaError,
    ThrottledError,
)
from scorer.release.fields import reason_of
from scorer.release.model import Actor, ChangeKind, Role
from scorer.release.requests import BenchRules, CostRules, DecisionFilter, SaveRules, SwitchRule
from scorer.release.rule_answers import (
    BlastRadius,
    CaseReport,
    CaseRun,
    CheckedRule,
    RuleBench,
    RuleCheck,
    RuleDocument,
    RuleProblem,
    RuleRevision,
    SavedRules,
)
from scorer.release.rule_revisions import newest_of, revision_of, saved_cases
from scorer.release.store import tables as t

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.models import Feature
    from scorer.bundle.rules import CompiledRules
    from scorer.release.changes.operations import Changes
    from scorer.release.changes.parts import Parts
    from scorer.release.decisions import Decisions
    from scorer.release.loaded import BundlesInMemory

_PER_MINUTE: Final = 120
"""Checks, runs of cases and benches of one user in a burst; one more every half second."""
_AT_ONCE: Final = 2
_WAIT_SECONDS: Final = 5.0
_PROBLEMS: Final = 200
_DIFFERENCE: Final = 400
"""Problems, and lines of a difference, that an answer has."""
_TITLE: Final = 200


class RuleAuthoring:
    """Checks, tries and saves edited rules.

    Args:
        parts: Dependencies that operations share.
        changes: Drafts and submits the change requests of saved rules.
        decisions: Finds recorded decisions.
        loaded: The bundles in memory.
    """

    def __init__(self, parts: Parts, changes: Changes, decisions: Decisions, loaded: BundlesInMemory) -> None:
        self._parts, self._changes, self._decisions, self._loaded = parts, changes, decisions, loaded
        # Each call counts against the rate, not only a failed one.
        self._calls = Attempts(limit=_PER_MINUTE, seconds=60.0)
        self._room = threading.BoundedSemaphore(_AT_ONCE)

    # --- without effects ---

    def document(self, actor: Actor, bundle: str) -> RuleDocument:
        """Return the rules of a bundle as text, with the names that they can use.

        Args:
            actor: The calling user.
            bundle: A digest, a prefix of one, or name@alias.

        Raises:
            NotFoundError: There is no such bundle that the actor may see.
        """
        info = self._parts.bundles.info(actor, bundle)
        path = self._parts.bundles.local(info.digest)
        rules = stored_rules(path, contents=False)
        with self._parts.store.read() as connection:
            cases = saved_cases(connection, info.project, info.digest)
            made = revision_of(connection, info.project, info.digest)
            newer = newest_of(connection, info.project, info.digest)
        return RuleDocument(
            info=info,
            text="" if rules is None else rules.text,
            cases=cases,
            names=rule_names(path, self._loaded.get(info.digest), rules),
            revision=made,
            newer=newer,
        )

    def check(self, actor: Actor, bundle: str, text: str) -> RuleCheck:
        """Run the static checks of `scorer rules check` on edited rules.

        The elements of lists are not read, because no check depends on them.

        Args:
            actor: The calling user.
            bundle: The bundle whose features, decisions, actions and lists the rules use.
            text: The TOML text of the rules.

        Raises:
            ThrottledError: The user has sent too many checks, or too many run now.
        """
        info = self._parts.bundles.info(actor, bundle)
        with self._place(actor):
            found = self._compiled(self._loaded.get(info.digest), self._edited(info, text, contents=False))
            tables = table_grids(text)
        if isinstance(found, tuple):
            return RuleCheck(False, tuple(_problem(one) for one in found[:_PROBLEMS]), (), tables)
        rules = [CheckedRule(one.id, one.effect, one.source or "", one.line) for one in found.rules]
        return RuleCheck(True, (), tuple(rules), tables)

    def test(self, actor: Actor, bundle: str, text: str, cases: str) -> CaseRun:
        """Evaluate edited rules on the author's cases, as `scorer rules test` does.

        Args:
            actor: The calling user.
            bundle: The bundle whose rules were edited.
            text: The TOML text of the rules.
            cases: The TOML text of the cases.

        Raises:
            InvalidError: The rules have faults, or a case is not valid.
            ThrottledError: As in `check`.
        """
        info = self._parts.bundles.info(actor, bundle)
        with self._place(actor):
            loaded = self._loaded.get(info.digest)
            return self._run(info, loaded, self._sound(loaded, self._edited(info, text)), cases)

    def bench(self, actor: Actor, bundle: str, asked: BenchRules) -> RuleBench:
        """Evaluate the present and the edited rules of a bundle on recorded decisions or typed features.

        Args:
            actor: The calling user.
            bundle: The bundle whose rules were edited.
            asked: The rules and the requests.

        Raises:
            InvalidError: The rules have faults, or a value does not fit the schema.
            NotFoundError: A decision is not in the logs, or the actor may not see it.
            ThrottledError: As in `check`.
        """
        info = self._parts.bundles.info(actor, bundle)
        requests = self._recorded(actor, asked.decisions, asked.checkpoint)
        if asked.features is not None:
            requests.append(BenchRequest("bench", self._parts.now(), asked.features, asked.score))
        if not requests:
            raise InvalidError("decisions: none is given and there are no features; give ids or features")
        with self._place(actor):
            loaded = self._loaded.get(info.digest)
            after = self._sound(loaded, self._edited(info, asked.text))
            before = loaded.rules or self._sound(loaded, BundleRules('name = "none"'))
            return run_bench(loaded, self._features(info), before, after, requests)

    def blast(self, actor: Actor, bundle: str, checkpoint: str, text: str, *, decisions: int) -> BlastRadius:
        """Return which of the newest decisions of a checkpoint edited rules of a bundle change.

        Args:
            actor: The calling user.
            bundle: The bundle whose rules were edited.
            checkpoint: Name of the checkpoint.
            text: The TOML text of the rules.
            decisions: Number of decisions, at most 5,000.

        Raises:
            InvalidError: The rules have faults.
            NotFoundError: There is no such bundle or checkpoint that the actor may see.
            ThrottledError: As in `check`.
        """
        info = self._parts.bundles.info(actor, bundle)
        sample = self._decisions.sample(actor, checkpoint, DecisionFilter(), limit=decisions)
        own = self._parts.settings.checkpoints[checkpoint]
        with self._place(actor):
            loaded = self._loaded.get(info.digest)
            after = self._sound(loaded, self._edited(info, text))
            before = loaded.rules or self._sound(loaded, BundleRules('name = "none"'))
            features = self._features(info)
            amount = own.backtest.amount if own.backtest.amount in {one.name for one in features} else ""
            return blast_radius(
                loaded, features, before, after, sample, amount=amount, outcome=own.outcome_of(loaded.kind)
            )

    def cost(self, actor: Actor, bundle: str, asked: CostRules) -> RuleCosts:
        """Measure the time that each rule needs, on recorded decisions or on the golden cases of the bundle.

        Args:
            actor: The calling user.
            bundle: The bundle that has the rules, or whose rules were edited.
            asked: The rules and the requests.

        Raises:
            InvalidError: There are no rules, or they have faults.
            NotFoundError: A decision is not in the logs, or the actor may not see it.
            ThrottledError: As in `check`.
        """
        info = self._parts.bundles.info(actor, bundle)
        recorded = self._recorded(actor, asked.decisions, asked.checkpoint)
        with self._place(actor):
            loaded = self._loaded.get(info.digest)
            rules = (
                loaded.rules if asked.text is None else self._sound(loaded, self._edited(info, asked.text))
            )
            if rules is None or not rules.rules:
                raise InvalidError(f"rules: bundle {info.digest[7:19]} has none; give the text of rules")
            path = self._parts.bundles.local(info.digest)
            return run_cost(path, loaded, self._features(info), rules, recorded)

    def difference(self, actor: Actor, bundle: str, text: str) -> Sequence[str]:
        """Return the lines of the difference between the rules of a bundle and a text.

        Args:
            actor: The calling user.
            bundle: The bundle.
            text: The TOML text of other rules.
        """
        info = self._parts.bundles.info(actor, bundle)
        stored = stored_rules(self._parts.bundles.local(info.digest), contents=False)
        before = "" if stored is None else stored.text
        lines = difflib.unified_diff(
            before.splitlines(), text.splitlines(), info.digest[7:19], "edited", lineterm=""
        )
        return [line for line, _ in zip(lines, range(_DIFFERENCE), strict=False)]

    # --- with a change request ---

    def save(self, actor: Actor, project: str, bundle: str, saved: SaveRules) -> SavedRules:
        """Save edited rules as the next revision of a bundle, and open a TEST for it; for modelers.

        Args:
            actor: The calling user.
            project: Name of the project.
            bundle: The bundle whose rules were edited.
            saved: The rules and the change request.

        Raises:
            InvalidError: The rules have faults or are unchanged, a case fails, or the draft is not valid.
            ConflictError: Rules of the same bundle were saved since.
            QuotaError: The project has reached a quota.
        """
        access, bundles = self._parts.access, self._parts.bundles
        access.require(actor, Role.MODELER, project)
        self._parts.calendar.checkpoint(saved.checkpoint)
        note = reason_of(saved.note)
        base = bundles.info(actor, bundle)
        stored = stored_rules(bundles.local(base.digest), contents=False)
        if stored is not None and stored.text == saved.text:
            raise InvalidError(f"rules: they are those of bundle {base.digest[7:19]}; change them first")
        over = "" if saved.over is None else bundles.info(actor, saved.over).digest
        self._check_newest(project, base.digest, saved.checkpoint, over)
        with self._place(actor):
            loaded = self._loaded.get(base.digest)
            rules = self._edited(base, saved.text)
            ran = self._run(base, loaded, self._sound(loaded, rules), saved.cases)
        if ran.failed:
            first = next(one for one in ran.cases if not one.passed)
            raise InvalidError(
                f"cases: {ran.failed} of {len(ran.cases)} failed ({first.name}: {first.differences[0]}); "
                "correct rules or cases"
            )
        notes = {"author": actor.user, "note": note, "edited": "rules"}
        made = bundles.revise(actor, project, base.digest, rules, notes=notes)
        title = (saved.title or note.splitlines()[0])[:_TITLE]
        draft = Draft(
            project=project,
            kind=ChangeKind.TEST,
            checkpoint=saved.checkpoint,
            bundle=made.digest,
            title=title,
            description=note,
            minutes=saved.minutes,
        )
        change = self._changes.draft(actor, draft)
        try:
            self._record(actor, project, base.digest, made.digest, change.id, saved, over)
        except ConflictError:
            self._changes.delete(actor, change.id)
            raise
        waits = ""
        if saved.submit:
            try:
                change = self._changes.submit(actor, change.id)
            except (ConflictError, FrozenError, InvalidError, QuotaError) as error:
                # The rules are saved, and the draft can be submitted later.
                waits = str(error)
        return SavedRules(replace(made, changes=(change.id,)), change, waits)

    def switch(self, actor: Actor, project: str, bundle: str, rule: str, asked: SwitchRule) -> SavedRules:
        """Snooze, retire or enable one rule, and open a TEST for it as `save` does; for modelers.

        Args:
            actor: The calling user.
            project: Name of the project.
            bundle: The bundle that has the rule.
            rule: Id of the rule.
            asked: What to do with it.

        Raises:
            InvalidError: The rule is in that state already, or a snooze has no end in the future.
            NotFoundError: The bundle has no such rule.
            ConflictError: Rules of the same bundle were saved since.
        """
        self._parts.access.require(actor, Role.MODELER, project)
        document = self.document(actor, bundle)
        text = document.text
        if asked.to == "snoozed":
            if asked.until is None or asked.until <= self._parts.now():
                raise InvalidError("until: a snooze ends at a time in the future; give one")
            text = with_switch(text, rule, "snoozed_until", asked.until.replace(microsecond=0))
        elif asked.to == "retired":
            text = with_switch(text, rule, "enabled", False)
        else:
            text = with_switch(with_switch(text, rule, "enabled", None), rule, "snoozed_until", None)
        if text == document.text:
            raise InvalidError(f'rule "{rule}" is {asked.to} already; nothing was changed')
        words = _until(asked.until) if asked.to == "snoozed" and asked.until else ""
        return self.save(
            actor,
            project,
            document.info.digest,
            SaveRules(
                text=text,
                checkpoint=asked.checkpoint,
                note=f"Rule {rule} {asked.to}{words}: {asked.reason}"[:2000],
                title=f"Rule {rule} {asked.to}{words}"[:_TITLE],
                cases=document.cases,
                minutes=asked.minutes,
                submit=asked.submit,
            ),
        )

    # --- helpers ---

    @contextmanager
    def _place(self, actor: Actor) -> Iterator[None]:
        """Count a call against the user's rate, and wait for one of the places."""
        if wait := self._calls.wait(actor.user):
            raise ThrottledError(
                f"{_PER_MINUTE} checks of rules a minute are the limit of a user; try again in {wait:.0f} s",
                retry_after=max(1, round(wait)),
            )
        self._calls.failed(actor.user)
        if not self._room.acquire(timeout=_WAIT_SECONDS):
            raise ThrottledError("other rules are being checked now; try again in a moment", retry_after=2)
        try:
            yield
        finally:
            self._room.release()

    def _recorded(self, actor: Actor, ids: Sequence[str], checkpoint: str | None) -> list[BenchRequest]:
        """Return the requests of recorded decisions."""
        return [
            recorded_request(self._decisions.find(actor, one, checkpoint=checkpoint))
            for one in dict.fromkeys(ids)
        ]

    def _edited(self, info: BundleInfo, text: str, *, contents: bool = True) -> BundleRules:
        """Return edited rules with the lists and the salt of the bundle's present rules."""
        stored = stored_rules(self._parts.bundles.local(info.digest), contents=contents)
        return BundleRules(text) if stored is None else replace(stored, text=text)

    def _compiled(self, loaded: Bundle, rules: BundleRules) -> CompiledRules | tuple[RuleFault, ...]:
        try:
            return loaded.check_rules(rules)
        except BundleError as error:
            raise InvalidError(str(error)) from None

    def _sound(self, loaded: Bundle, rules: BundleRules) -> CompiledRules:
        found = self._compiled(loaded, rules)
        if isinstance(found, tuple):
            more = f" (and {len(found) - 1} more faults)" if len(found) > 1 else ""
            raise InvalidError(f"{found[0]}{more}")
        return found

    def _run(self, info: BundleInfo, loaded: Bundle, rules: CompiledRules, cases: str) -> CaseRun:
        from scorer.bundle.rule_cases import parse_cases, run_cases

        try:
            results = (
                run_cases(parse_cases(cases), rules, loaded, self._features(info)) if cases.strip() else []
            )
        except BundleError as error:
            raise InvalidError(str(error)) from None
        fired = {rule for result in results for rule in result.fired}
        failed = sum(not result.passed for result in results)
        return CaseRun(
            passed=len(results) - failed,
            failed=failed,
            cases=tuple(CaseReport(one.name, one.passed, one.fired, one.differences) for one in results),
            never=tuple(rule.id for rule in rules.rules if rule.id not in fired),
        )

    def _features(self, info: BundleInfo) -> Sequence[Feature]:
        from scorer.bundle.check import read_schema

        return read_schema(self._parts.bundles.local(info.digest)).features

    def _check_newest(self, project: str, base: str, checkpoint: str, over: str) -> None:
        with self._parts.store.read() as connection:
            newest = newest_of(connection, project, base, checkpoint)
        if newest is not None and newest.digest != over:
            raise _newer(newest)

    def _record(
        self,
        actor: Actor,
        project: str,
        base: str,
        digest: str,
        change: str,
        saved: SaveRules,
        over: str,
    ) -> None:
        """Record a revision unless another one was recorded first."""
        with self._parts.store.write() as connection:
            newest = newest_of(connection, project, base, saved.checkpoint)
            if newest is not None and newest.digest != over:
                raise _newer(newest)
            connection.execute(
                insert(t.rule_revisions).values(
                    project=project,
                    digest=digest,
                    base=base,
                    checkpoint=saved.checkpoint,
                    change=change,
                    note=saved.note,
                    cases=saved.cases,
                    by=actor.user,
                    at=self._parts.now(),
                )
            )
            about = {"base": base, "change": change, "checkpoint": saved.checkpoint, "note": saved.note}
            self._parts.audit.append(connection, actor, "rules.save", digest, project=project, details=about)


def _newer(newest: RuleRevision) -> PlatformError:
    return ConflictError(
        f"{newest.by} saved other rules of this bundle as {newest.digest[7:19]} ({newest.change}) since; "
        f"edit those, or name {newest.digest[7:19]} as the revision that yours replaces (over)"
    )


def _problem(fault: RuleFault) -> RuleProblem:
    problem, _, remedy = fault.problem.rpartition("; ")
    return RuleProblem(
        fault.rule, fault.line, fault.column, problem or fault.problem, remedy if problem else ""
    )


def _until(moment: datetime) -> str:
    return f" until {moment:%Y-%m-%d %H:%M} UTC"
