"""Maturity curves: how many outcomes of a kind come, and how long they take, estimated from a log.

The delay of a decision is the time from the decision to the first report of a kind. A decision without a
report is censored at its age, and everything is censored at the horizon, because no log shows what comes
after its own end. With F(t) = P(a report comes by t), estimated by `scorer.stats.incidence`:

    F(horizon)          the share of decisions that ever get a report, as far as the horizon shows
    F(t) / F(horizon)   the maturity at t: the share of the reports of the horizon that is there

F is estimated without dividing by the reports that are known, so decisions that never get one do not change
the delays, and young decisions do not make them look shorter. Reports with a positive and with another value
are two causes (Aalen-Johansen), because they may take differently long.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from scorer.durable import write_atomically
from scorer.learn.errors import DataError
from scorer.learn.labels.histories import Clock, Histories
from scorer.stats.arrays import Bools, Floats, Ints
from scorer.stats.incidence import CENSORED, Incidence, cumulative_incidence

POSITIVE: Final = 1
OTHER: Final = 2
"""Causes of events: a report whose value reaches the threshold, and any other report."""

QUANTILES: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
DAY_MS: Final = 86_400_000
_POINTS: Final = 100
"""Steps of a stored curve for each cause. Between two of them, F rises by 1 / 100 of its end, or once."""
_LATE: Final = 0.8
"""Share of the horizon after which reports count as late."""
_MOST_BYTES: Final = 64 << 20

ESTIMATOR: Final = (
    "Aalen-Johansen cumulative incidence of the first report, right-censored at the age of the decision and "
    "at the horizon; pointwise log-log bounds with Greenwood's variance (delta method for two causes)"
)


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArrivalShare(_Stored):
    """A share of decisions with its bounds."""

    value: float
    low: float
    high: float


class CurveSegment(_Stored):
    """The segment of a curve: a feature or field, and its value."""

    name: str
    value: str


class CurveSteps(_Stored):
    """Steps of a curve, all lists of one length.

    `all` is F of reports of any value and `positive` that of positive ones, each with its bounds; `at_risk`
    is the number of decisions that were observed without a report until just before `at_ms`.
    """

    at_ms: tuple[int, ...]
    all: tuple[float, ...]
    all_low: tuple[float, ...]
    all_high: tuple[float, ...]
    positive: tuple[float, ...]
    positive_low: tuple[float, ...]
    positive_high: tuple[float, ...]
    at_risk: tuple[int, ...]


class MaturityCurve(_Stored):
    """The curve of one kind, of all decisions or of a segment.

    Attributes:
        kind: Kind of the outcome.
        segment: The segment; None: all decisions.
        decisions: Number of decisions.
        reports: Number of decisions with a report within the horizon.
        positive: Of these, with a positive value.
        changed: Of these, whose value a later revision changed.
        pooled: Whether the segment is too small, so that the steps are those of all decisions.
        horizon_ms: Longest delay that the curve shows.
        arrives: Share of decisions that get a report within the horizon.
        arrives_positive: Share of decisions that get a positive report within the horizon.
        late_share: Share of the reports that come in the last fifth of the horizon. Above 0.02, later ones
            are likely: the horizon is too short.
        quantiles_ms: Delay by which each share of the reports that come is there, by the share.
        steps: The curve.
    """

    kind: str
    segment: CurveSegment | None
    decisions: int
    reports: int
    positive: int
    changed: int
    pooled: bool
    horizon_ms: int
    arrives: ArrivalShare
    arrives_positive: ArrivalShare
    late_share: float
    quantiles_ms: dict[str, int]
    steps: CurveSteps

    def reported(self, age_ms: Ints) -> Floats:
        """Return F, the share of decisions with a report by each age, `[n]`."""
        return self._at(self.steps.all, age_ms)

    def reported_positive(self, age_ms: Ints) -> Floats:
        """Return the share of decisions with a positive report by each age, `[n]`."""
        return self._at(self.steps.positive, age_ms)

    def maturity(self, age_ms: Ints) -> Floats:
        """Return the share of the positive reports of the horizon that is there by each age, `[n]`.

        Where there are no positive reports, reports of any value count.
        """
        steps = self.steps.positive if self.arrives_positive.value else self.steps.all
        whole = steps[-1] if steps else 0.0
        return self._at(steps, age_ms) / whole if whole else np.ones(len(age_ms))

    def positive_later(self, age_ms: Ints) -> Floats:
        """Return P(a positive report comes within the horizon | none of any value by the age), `[n]`."""
        left = self.arrives_positive.value - self.reported_positive(age_ms)
        return np.clip(left / np.maximum(1 - self.reported(age_ms), 1e-12), 0.0, 1.0)

    def age_of(self, maturity: float) -> int:
        """Return the youngest age in milliseconds with at least this maturity."""
        at = np.array(self.steps.at_ms, dtype=np.int64)
        reached = np.flatnonzero(self.maturity(at) >= maturity - 1e-12)
        return int(at[reached[0]]) if len(reached) else self.horizon_ms

    def _at(self, steps: Sequence[float], age_ms: Ints) -> Floats:
        place = np.searchsorted(np.array(self.steps.at_ms, dtype=np.int64), age_ms, side="right")
        return np.concatenate([[0.0], np.array(steps, dtype=np.float64)])[place]


class MaturityWindow(_Stored):
    """Which decisions and reports a file of curves was estimated from.

    Attributes:
        checkpoint: Name of the checkpoint.
        as_of_ms: The moment, Unix time.
        first_ms: Time of the first decision.
        last_ms: Time of the last decision.
        logs: Names of the logs.
        decisions: Number of decisions.
        clock: Whether delays end with the receipt or with the occurrence.
        unproven: Whether unproven reports counted.
        data_digest: SHA-256 of the ids' hashes, times, delays and causes.
        findings: Number of records that each finding is about.
    """

    checkpoint: str
    as_of_ms: int
    first_ms: int
    last_ms: int
    logs: tuple[str, ...]
    decisions: int
    clock: Clock
    unproven: Literal["exclude", "include"]
    data_digest: str
    findings: dict[str, int]


class MaturityCurves(_Stored):
    """A file of maturity curves.

    Attributes:
        format: Version of the format.
        estimator: How the curves are estimated.
        confidence: Two-sided confidence of the bounds at one delay.
        threshold: Value from which on a report is positive.
        least: Fewest reports with which a segment has a curve of its own.
        window: What the curves were estimated from.
        curves: For each kind, that of all decisions and then those of the segments.
        digest: SHA-256 of everything else.
    """

    format: Literal[1] = 1
    estimator: str = ESTIMATOR
    confidence: float
    threshold: float
    least: int
    window: MaturityWindow
    curves: tuple[MaturityCurve, ...]
    digest: str = ""

    def kinds(self) -> list[str]:
        """Return the kinds that have curves, in their order in the file."""
        return list(dict.fromkeys(one.kind for one in self.curves))

    def of(self, kind: str, segment: CurveSegment | None = None) -> MaturityCurve:
        """Return the curve of a kind for a segment, or of all decisions where the segment has none.

        Raises:
            DataError: The file has no curve of the kind.
        """
        own = [one for one in self.curves if one.kind == kind]
        for one in own:
            if one.segment == segment:
                return one
        if own:
            return own[0]
        raise DataError(
            f'maturity curves of "{self.window.checkpoint}": there is none of the kind "{kind}"; there are '
            f"{', '.join(self.kinds()) or 'none'}"
        )

    def sealed(self) -> MaturityCurves:
        """Return the curves with their digest."""
        return self.model_copy(update={"digest": self.content_digest()})

    def content_digest(self) -> str:
        """Return `sha256:<hex>` of everything but the digest itself."""
        content = self.model_dump(mode="json", exclude={"digest"})
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def write(self, path: Path) -> None:
        """Write the file, replacing an earlier one in one step.

        Raises:
            DataError: It cannot be written.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.model_dump_json(indent=1).encode() + b"\n")
        except OSError as error:
            raise DataError(f'"{path}" cannot be written: {error.strerror or error}') from error


def read_curves(path: Path) -> MaturityCurves:
    """Read a file of maturity curves and check its digest.

    Raises:
        DataError: The file cannot be read, is not one of curves, or was changed.
    """
    remedy = "write it again with `scorer outcomes maturity`"
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise DataError(f'"{path}" has more than {_MOST_BYTES >> 20} MiB, so it is no file of curves')
        found = MaturityCurves.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f'"{path}" cannot be read: {error.strerror or error}; {remedy}') from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise DataError(f'"{path}": {where}: {first["msg"]}; {remedy}') from None
    if found.digest != found.content_digest():
        raise DataError(f'"{path}" was changed after it was written: its digest differs; {remedy}')
    return found


def first_reports(histories: Histories, kind: str, threshold: float) -> tuple[Ints, Ints, Bools]:
    """Return for each decision when the first report of a kind became known, its cause, and if it changed.

    Args:
        histories: The decisions and reports.
        kind: Kind of the outcome.
        threshold: Value from which on a report is positive.

    Returns:
        `[n]` Unix time in milliseconds, 0 without a report; `[n]` cause by the value that counts; `[n]`
        whether a revision changed the value.
    """
    n, reports = len(histories), histories.reports
    first, cause, changed = np.zeros(n, np.int64), np.full(n, CENSORED, np.int64), np.zeros(n, bool)
    if kind in histories.kinds:
        own = np.flatnonzero(reports.kind == histories.kinds.index(kind))
        rows = reports.decision[own]
        first[rows], changed[rows] = reports.first_ms[own], reports.changed[own]
        cause[rows] = np.where(reports.value[own] >= threshold, POSITIVE, OTHER)
    return first, cause, changed


def estimate_curves(
    histories: Histories,
    events: Mapping[str, tuple[Ints, Ints, Bools]],
    *,
    threshold: float = 0.5,
    horizon_ms: int | None = None,
    least: int = 50,
    confidence: float = 0.95,
) -> MaturityCurves:
    """Estimate the curves of some kinds, of all decisions and of each segment.

    Args:
        histories: The decisions and reports.
        events: First report of each decision by kind; see `first_reports`.
        threshold: Value from which on a report is positive.
        horizon_ms: Longest delay to show; None: the age that a tenth of the decisions have reached.
        least: Fewest reports, and fewest decisions as old as the horizon, with which a segment has a curve
            of its own.
        confidence: Two-sided confidence of the bounds.

    Raises:
        DataError: There are too few decisions, or none is as old as the horizon.
    """
    age = histories.age_ms
    horizon = _horizon(age, least) if horizon_ms is None else horizon_ms
    old = int((age >= horizon).sum())
    if horizon < 1 or not old:
        raise DataError(
            f"no decision is as old as the horizon of {horizon / DAY_MS:g} days; the oldest is "
            f"{age.max() / DAY_MS:.3g} days old: set a shorter --horizon-days, or read a longer log"
        )
    curves, digest = [], hashlib.sha256(histories.hashes.tobytes() + histories.time_ms.tobytes())
    for kind, (first, cause, changed) in events.items():
        known = cause != CENSORED
        delay = np.where(known, first - histories.time_ms, age)
        seen = np.where(known & (delay <= horizon), cause, CENSORED)
        delay = np.minimum(np.maximum(delay, 0), horizon)
        digest.update(kind.encode() + delay.tobytes() + seen.tobytes())

        whole = _curve(kind, None, delay, seen, changed, horizon, confidence, None)
        curves.append(whole)
        for column in histories.segments:
            for code, value in enumerate(column.values):
                rows = np.flatnonzero(column.codes == code)
                small = (
                    int((seen[rows] != CENSORED).sum()) < least or int((age[rows] >= horizon).sum()) < least
                )
                segment = CurveSegment(name=column.name, value=value)
                own = delay[rows], seen[rows], changed[rows]
                curves.append(_curve(kind, segment, *own, horizon, confidence, whole if small else None))
    window = MaturityWindow(
        checkpoint=histories.query.checkpoint,
        as_of_ms=histories.query.as_of_ms,
        first_ms=int(histories.time_ms[0]),
        last_ms=int(histories.time_ms[-1]),
        logs=histories.logs,
        decisions=len(histories),
        clock=histories.query.clock,
        unproven=histories.query.unproven,
        data_digest=f"sha256:{digest.hexdigest()}",
        findings={one.name: one.count for one in histories.findings},
    )
    return MaturityCurves(
        confidence=confidence, threshold=threshold, least=least, window=window, curves=tuple(curves)
    ).sealed()


def _horizon(age: Ints, least: int) -> int:
    """Return the greatest age that a tenth of the decisions have reached, and at least `least`."""
    if len(age) < least:
        raise DataError(
            f"there are {len(age)} decisions and a curve needs {least}; read a longer log, or lower --least"
        )
    place = len(age) - max(least, len(age) // 10)
    return int(np.partition(age, place)[place])


def _curve(
    kind: str,
    segment: CurveSegment | None,
    delay: Ints,
    cause: Ints,
    changed: Bools,
    horizon: int,
    confidence: float,
    pooled: MaturityCurve | None,
) -> MaturityCurve:
    counts: dict[str, Any] = {
        "segment": segment,
        "decisions": len(delay),
        "reports": int((cause != CENSORED).sum()),
        "positive": int((cause == POSITIVE).sum()),
        "changed": int((changed & (cause != CENSORED)).sum()),
    }
    if pooled is not None:
        return pooled.model_copy(update={**counts, "pooled": True})
    every = cumulative_incidence(delay.astype(np.float64), cause, confidence=confidence)
    own = cumulative_incidence(delay.astype(np.float64), cause, of=(POSITIVE,), confidence=confidence)
    at = _places(every.share, own.share)
    late = every.place(np.array([_LATE * horizon]))[0]
    whole = float(every.share[-1]) if len(every.share) else 0.0
    before = float(every.share[late]) if late >= 0 else 0.0
    reached = {
        f"{q:g}": int(every.delay[np.searchsorted(every.share, q * whole - 1e-15)])
        for q in QUANTILES
        if whole
    }
    return MaturityCurve(
        kind=kind,
        pooled=False,
        horizon_ms=horizon,
        arrives=_end(every, len(delay), confidence),
        arrives_positive=_end(own, len(delay), confidence),
        late_share=(whole - before) / whole if whole else 0.0,
        quantiles_ms=reached,
        steps=CurveSteps(
            at_ms=tuple(every.delay[at].astype(np.int64).tolist()),
            all=tuple(every.share[at].tolist()),
            all_low=tuple(every.low[at].tolist()),
            all_high=tuple(every.high[at].tolist()),
            positive=tuple(own.share[at].tolist()),
            positive_low=tuple(own.low[at].tolist()),
            positive_high=tuple(own.high[at].tolist()),
            at_risk=tuple(every.at_risk[at].tolist()),
        ),
        **counts,
    )


def _end(found: Incidence, rows: int, confidence: float) -> ArrivalShare:
    if len(found.share):
        return ArrivalShare(
            value=float(found.share[-1]), low=float(found.low[-1]), high=float(found.high[-1])
        )
    # No report at all: the bound of a binomial share without hits.
    return ArrivalShare(value=0.0, low=0.0, high=float(1 - ((1 - confidence) / 2) ** (1 / max(rows, 1))))


def _places(*shares: Floats) -> Ints:
    """Return the steps to store: those at which a share passes another fraction of its end, and the ends."""
    kept = {0, len(shares[0]) - 1} if len(shares[0]) else set[int]()
    for share in shares:
        if len(share) and share[-1] > 0:
            levels = np.arange(1, _POINTS + 1) / _POINTS * share[-1]
            places = np.searchsorted(share, levels - 1e-15)
            kept |= set(np.minimum(places, len(share) - 1).tolist())
    return np.array(sorted(kept), dtype=np.int64)
