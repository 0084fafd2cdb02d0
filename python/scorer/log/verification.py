"""Verification of a log: its bytes, and every decision against its bundle, bit for bit."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress
from os import PathLike
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from scorer.errors import BundleError
from scorer.log.bundles import BundleShelf, ListsRead, MissingListError, lists_read
from scorer.log.mismatch import Mismatch
from scorer.log.outcomes import OutcomeJoin
from scorer.log.reading import Advance, LogFinding, LogSegment, is_serious
from scorer.log.ruled import WITHOUT_RULES, check_decisions, check_eligible, check_faulted
from scorer.log.scanning import scan
from scorer.log.sealing import ReaderKey, SealedCounts
from scorer.log.tables import digest_of, is_action

if TYPE_CHECKING:
    from scorer.bundle import Bundle
    from scorer.bundle.rules import CompiledRules
    from scorer.v1.log_pb2 import DecisionRecord, ObservationRecord

_Check: TypeAlias = Callable[[str, "Sequence[tuple[int, DecisionRecord]]", BundleShelf, "Verification"], None]

_CHUNK = 4096
_OF_MODEL = {"", "greedy", WITHOUT_RULES}
"""Fallback sources of decisions that a model made."""
_KEPT = 100


@dataclass
class Verification:
    """The result of a verification.

    Decisions of a model are computed again with their bundle, and every number must agree bit for bit: margin
    and score; or pmf, chosen action, propensity and expected reward; and the names of the functions without a
    result. For a ``greedy`` fallback (exploration
    is stopped) the best action is computed again, and for a ``model`` fallback (the rules failed) the model's
    own decision. Other fallbacks do not come from the model, so only two things can be checked: the
    propensity is 1, and the pmf has all its weight on the chosen action. Decisions that were not logged
    cannot be verified; the server counts them in ``unlogged``.

    Observations are computed again with the observing bundle if it is found, and the answer that they contain
    must be that of their decision.
    """

    segments: list[LogSegment] = field(default_factory=list)
    findings: list[LogFinding] = field(default_factory=list)
    records: Counter[str] = field(default_factory=Counter)
    verified: int = 0
    """Decisions that agree bit for bit."""
    greedy: int = 0
    """Those of the verified decisions that were made while exploration was stopped."""
    fallbacks: int = 0
    """Decisions that did not come from a model."""
    missing: Counter[str] = field(default_factory=Counter)
    """Decisions that could not be verified, by digest of the missing or unusable bundle."""
    missing_lists: Counter[str] = field(default_factory=Counter)
    """Decisions that could not be verified, by version of an external list that was not found."""
    unrepeated_lists: Counter[str] = field(default_factory=Counter)
    """The same for observations. This is no error."""
    refused: dict[str, str] = field(default_factory=dict)
    """Bundles that were found and do not load, with the reason."""
    mismatches: list[Mismatch] = field(default_factory=list)
    """The first 100 mismatches."""
    mismatched: int = 0
    """Number of decisions and observations with a mismatch."""
    outcomes: OutcomeJoin = field(default_factory=OutcomeJoin)
    observed: int = 0
    """Observations that agree bit for bit."""
    unscored: int = 0
    """Observations without a score, which cannot be verified."""
    unrepeated: Counter[str] = field(default_factory=Counter)
    """Observations whose bundle was not found, by digest. This is no error: candidates need not be kept."""
    orphans: int = 0
    """Observed decisions that are not in this log: lost, dropped under load, or of another server."""
    withheld: int = 0
    """Decisions and observations that cannot be verified because sensitive features are missing."""
    sealed: SealedCounts = field(default_factory=SealedCounts)
    """Counts of records with sensitive features."""

    @property
    def ok(self) -> bool:
        """Whether no record is damaged, no bundle is missing and no value differs."""
        missing = self.missing or self.missing_lists
        wrong = self.mismatched or missing or self.outcomes.conflicts or self.records["unknown"]
        return not (wrong or self.sealed.altered) and not any(map(is_serious, self.findings))


def verify(
    directory: str | PathLike[str],
    bundles: BundleShelf,
    advance: Advance | None = None,
    reader_key: ReaderKey | None = None,
) -> Verification:
    """Read a complete log and verify its bytes, its decisions and its observations.

    Args:
        directory: The log's directory.
        bundles: The bundles of the decisions.
        advance: Called with the bytes read so far and the total bytes.
        reader_key: Key that decrypts sensitive features. Decisions with sensitive features are verified only
            if it decrypts all of them.

    Raises:
        LogError: The directory is not a log or cannot be read.
    """
    entries = scan(directory, advance=advance, reader_key=reader_key)
    report = Verification(sealed=entries.sealed)
    waiting: dict[tuple[str, _Check], list[tuple[int, DecisionRecord]]] = {}
    links = Links()

    def take(sequence: int, decision: DecisionRecord, check: _Check) -> None:
        if decision.withheld and decision.fallback_source in _OF_MODEL:
            report.withheld += 1
            return
        digest = digest_of(decision)
        rows = waiting.setdefault((digest, check), [])
        rows.append((sequence, decision))
        if len(rows) >= _CHUNK:
            check(digest, waiting.pop((digest, check)), bundles, report)

    for sequence, kind, record in entries:
        report.records[kind] += 1
        if kind == "outcome":
            report.outcomes.add(sequence, record)
        elif kind == "decision":
            take(sequence, record, _check)
        elif kind == "observation":
            links.add(sequence, record)
            if record.error:
                report.unscored += 1
            else:
                take(sequence, record.decision, _check_observed)
    for (digest, check), rows in waiting.items():
        check(digest, rows, bundles, report)
    _note(
        report,
        [
            Mismatch(sequence, decision_id, "live answer", "another", "other values", "its decision has")
            for sequence, decision_id in links.settle(directory)
        ],
    )
    report.orphans = links.orphans
    report.segments = entries.segments
    report.findings = entries.findings
    report.mismatches.sort(key=lambda one: one.sequence)
    return report


def _check(
    digest: str, rows: Sequence[tuple[int, DecisionRecord]], bundles: BundleShelf, report: Verification
) -> None:
    static = [row for row in rows if row[1].fallback_source not in _OF_MODEL]
    report.fallbacks += len(static)
    _note(report, (found for row in static for found in _check_static(*row)))
    rows = [row for row in rows if row[1].fallback_source in _OF_MODEL]
    if not rows:
        return
    bundle = _bundle(digest, bundles, report)
    if bundle is None:
        report.missing[digest] += len(rows)
        return
    for lists, group in _by_lists(rows).items():
        rules = _rules(digest, lists, len(group), bundles, report, report.missing_lists)
        if isinstance(rules, _Unusable):
            continue
        failed = _note(report, _repeat(group, bundle, rules))
        report.verified += len(group) - len(failed)
        report.greedy += sum(
            decision.fallback_source == "greedy" for sequence, decision in group if sequence not in failed
        )


def _check_observed(
    digest: str, rows: Sequence[tuple[int, DecisionRecord]], bundles: BundleShelf, report: Verification
) -> None:
    bundle = _bundle(digest, bundles, report)
    if bundle is None:
        report.unrepeated[digest] += len(rows)
        return
    for lists, group in _by_lists(rows).items():
        rules = _rules(digest, lists, len(group), bundles, report, report.unrepeated_lists)
        if not isinstance(rules, _Unusable):
            report.observed += len(group) - len(_note(report, _repeat(group, bundle, rules)))


class _Unusable:
    """A version of a list that is not here, or does not load."""


def _by_lists(
    rows: Sequence[tuple[int, DecisionRecord]],
) -> dict[ListsRead, list[tuple[int, DecisionRecord]]]:
    groups: dict[ListsRead, list[tuple[int, DecisionRecord]]] = {}
    for row in rows:
        groups.setdefault(lists_read(row[1]), []).append(row)
    return groups


def _rules(
    digest: str,
    lists: ListsRead,
    rows: int,
    bundles: BundleShelf,
    report: Verification,
    missing: Counter[str],
) -> CompiledRules | _Unusable | None:
    """Return the rules with the versions of lists that some decisions read, or count these decisions."""
    try:
        return bundles.rules(digest, lists)
    except MissingListError as error:
        missing[str(error)] += rows
    except BundleError as error:
        names = ", ".join(f"{name} version {version} ({of})" for name, version, of in lists)
        missing[names] += rows
        report.refused[names] = str(error)
    return _Unusable()


def _repeat(
    rows: Sequence[tuple[int, DecisionRecord]], bundle: Bundle, rules: CompiledRules | None
) -> list[Mismatch]:
    """Compute decisions again with a bundle and its rules, and return the mismatches."""
    wrong: list[Mismatch] = []
    fitting: list[tuple[int, DecisionRecord]] = []
    for sequence, decision in rows:
        misfit = _misfit(sequence, decision, bundle)
        if misfit is None:
            fitting.append((sequence, decision))
        else:
            wrong.append(misfit)
    if bundle.kind == "action":
        others, in_rules = check_eligible(fitting, bundle, rules)
        checked = zip(fitting, in_rules, strict=True)
        return [
            *wrong,
            *others,
            *(found for row, faulted in checked for found in _check_action(*row, bundle, faulted)),
        ]
    return [*wrong, *_check_scores(fitting, bundle, rules)]


def _bundle(digest: str, bundles: BundleShelf, report: Verification) -> Bundle | None:
    if digest in report.refused:
        return None
    try:
        return bundles.get(digest)
    except BundleError as error:
        report.refused[digest] = str(error)
        return None


def _misfit(sequence: int, decision: DecisionRecord, bundle: Bundle) -> Mismatch | None:
    """Return the mismatch of a decision that this bundle cannot compute, such as one of another kind."""
    pairs: list[tuple[str, object, object]] = [
        ("kind", "action" if is_action(decision) else "score", bundle.kind),
        ("schema_fingerprint", decision.schema_fingerprint, bundle.schema_fingerprint),
        ("number of features", len(decision.features), bundle.num_features),
    ]
    if bundle.kind == "action":
        pairs.append(("number of actions", len(decision.pmf), len(bundle.actions)))
    for name, logged, expected in pairs:
        if logged != expected:
            return Mismatch(sequence, decision.decision_id, name, str(logged), str(expected))
    return None


def _check_scores(
    rows: Sequence[tuple[int, DecisionRecord]], bundle: Bundle, rules: CompiledRules | None
) -> Iterator[Mismatch]:
    if not rows:
        return
    out = bundle.score(np.array([decision.features for _, decision in rows], np.float32))
    for (sequence, decision), margin, score in zip(rows, out.margins, out.scores, strict=True):
        yield from _differ(sequence, decision, "margin", decision.margin, float(margin))
        yield from _differ(sequence, decision, "score", decision.score, float(score))
    ruled = [rules is not None and decision.fallback_source != WITHOUT_RULES for _, decision in rows]
    if any(ruled):
        yield from check_decisions(
            list(compress(rows, ruled)), bundle, rules, out.scores[ruled], out.faulted[ruled]
        )
    for (sequence, decision), band, faulted, has_rules in zip(
        rows, out.bands, out.faulted, ruled, strict=True
    ):
        if has_rules:
            continue
        label = bundle.labels[band]
        if decision.decision != label:
            yield Mismatch(sequence, decision.decision_id, "decision", decision.decision, label)
        yield from check_faulted(sequence, decision, bundle, int(faulted))


def _check_action(
    sequence: int, decision: DecisionRecord, bundle: Bundle, in_rules: Sequence[int]
) -> Iterator[Mismatch]:
    row, mask = np.array(decision.features, np.float32), decision.eligible_mask or None
    greedy = decision.fallback_source == "greedy"
    try:
        if greedy:
            chosen = bundle.select_greedy(row, eligible=mask)
        else:
            chosen = bundle.select(
                row, checkpoint=decision.checkpoint, decision_id=decision.decision_id, eligible=mask
            )
    except BundleError as error:
        yield Mismatch(sequence, decision.decision_id, "action", decision.action, f"an error: {error}")
        return
    # Without an evaluation of the rules that gives the eligible actions, these are the mismatch.
    if in_rules:
        yield from check_faulted(sequence, decision, bundle, chosen.faulted, in_rules)
    pmf = np.zeros(len(bundle.actions)) if greedy else chosen.pmf
    if greedy:
        pmf[chosen.index] = 1.0
    if decision.action_index != chosen.index or decision.action != chosen.action:
        yield Mismatch(sequence, decision.decision_id, "action", decision.action, chosen.action)
    yield from _differ(sequence, decision, "propensity", decision.propensity, chosen.propensity)
    yield from _differ(
        sequence, decision, "expected_reward", decision.expected_reward, chosen.expected_reward
    )
    for at in np.flatnonzero(_bits(decision.pmf) != _bits(pmf)):
        yield from _differ(sequence, decision, f"pmf[{at}]", decision.pmf[at], float(pmf[at]))


def _check_static(sequence: int, decision: DecisionRecord) -> Iterator[Mismatch]:
    if not is_action(decision):
        return
    certain = decision.propensity == 1.0 and [
        at for at, probability in enumerate(decision.pmf) if probability != 0.0
    ] == [decision.action_index]
    if not certain:
        yield Mismatch(
            sequence, decision.decision_id, "propensity", repr(decision.propensity), "1 for a static fallback"
        )


def _differ(
    sequence: int, decision: DecisionRecord, name: str, logged: float, computed: float
) -> Iterator[Mismatch]:
    if _bits([logged])[0] != _bits([computed])[0]:
        yield Mismatch(sequence, decision.decision_id, name, repr(logged), repr(computed))


def _bits(values: Sequence[float] | np.ndarray) -> np.ndarray:
    return np.array(values, np.float64).view(np.uint64)


def _note(report: Verification, found: Iterator[Mismatch] | Sequence[Mismatch]) -> set[int]:
    """Add mismatches to the report, and return the sequences of their records."""
    failed: set[int] = set()
    for mismatch in found:
        failed.add(mismatch.sequence)
        if len(report.mismatches) < _KEPT:
            report.mismatches.append(mismatch)
    report.mismatched += len(failed)
    return failed


_NUMBERS = struct.Struct("<dddd II")


class Links:
    """The check that the answer in each observation is that of its decision.

    `add` collects the observations of a log, and `settle` compares them with the decisions in a second pass.
    Each observed answer takes about 500 bytes of memory, for any number of observing lanes.
    """

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], dict[bytes, int]] = {}
        self.orphans = 0
        """Observed decisions that are not in the log: lost, dropped under load, or of another server."""

    def add(self, sequence: int, record: ObservationRecord) -> None:
        """Add the next observation of the log."""
        decision = record.decision
        answers = self._answers.setdefault((decision.checkpoint, decision.decision_id), {})
        answers.setdefault(_observed(record), sequence)

    def settle(
        self, directory: str | PathLike[str], advance: Advance | None = None
    ) -> Iterator[tuple[int, str]]:
        """Yield sequence and decision id of observations whose answer differs from their decision's.

        Args:
            directory: The log's directory.
            advance: Called with the bytes read so far and the total bytes.
        """
        if not self._answers:
            return
        found: set[tuple[str, str]] = set()
        for _, _, decision in scan(directory, kinds={"decision"}, advance=advance):
            key = (decision.checkpoint, decision.decision_id)
            answers = self._answers.get(key)
            if answers is not None:
                found.add(key)
                # There can be two decisions with the same id; an observation is of one of them.
                answers.pop(_given(decision), None)
        for key, answers in self._answers.items():
            if key not in found:
                self.orphans += 1
                continue
            for sequence in answers.values():
                yield sequence, key[1]


def _observed(record: ObservationRecord) -> bytes:
    numbers = _NUMBERS.pack(
        record.live_margin,
        record.live_score,
        record.live_expected_reward,
        record.live_propensity,
        record.live_data_load_us,
        record.live_exec_us,
    )
    texts = (record.live_lane, record.live_decision, record.live_action, record.live_fallback_reason)
    return _fingerprint(numbers, record.live_bundle, texts)


def _given(record: DecisionRecord) -> bytes:
    numbers = _NUMBERS.pack(
        record.margin,
        record.score,
        record.expected_reward,
        record.propensity,
        record.data_load_us,
        record.exec_us,
    )
    return _fingerprint(
        numbers, record.bundle, (record.lane, record.decision, record.action, record.fallback_reason)
    )


def _fingerprint(numbers: bytes, bundle: bytes, texts: tuple[str, ...]) -> bytes:
    whole = b"\0".join([numbers, bundle, *(text.encode() for text in texts)])
    return hashlib.blake2b(whole, digest_size=12).digest()
