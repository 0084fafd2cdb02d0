"""Observations of a lane as columns, from which gates and figures are computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Distribution
from scorer.release.segments.settings import NO_PLAN, SegmentPlan
from scorer.release.segments.split import Codes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNKNOWN, EQUAL, DIFFERENT = -1, 0, 1
"""Result of comparing features with those of the live bundle: not compared, equal, different."""


@dataclass(frozen=True)
class Observed:
    """Rows of one lane, one per decision, in order of time. Every array is `[n]`.

    Missing numbers are NaN. Names (labels, actions, errors, servers) are indices into `names[column]`; the
    index of "" is always 0. Columns with the prefix `live_` are of the answer that was given.
    """

    key: npt.NDArray[np.uint64]
    """Hash of the decision's id, by which rows of several lanes are paired."""
    at: Ints
    """Time of the decision in microseconds since the Unix epoch."""
    server: Ints
    score: Floats
    """The score; for an action bundle, the expected reward of its action."""
    live_score: Floats
    label: Ints
    """The decision's label, or the action."""
    live_label: Ints
    error: Ints
    """The reason why there is no score; 0 if there is one."""
    live_fallback: Ints
    """The reason of the live fallback; 0 if the model answered."""
    exec_us: Floats
    load_us: Floats
    live_exec_us: Floats
    live_load_us: Floats
    lag_us: Floats
    absent: Ints
    """Number of the bundle's features that the request did not contain."""
    differs: Ints
    """`UNKNOWN`, `EQUAL` or `DIFFERENT`."""
    propensity: Floats
    live_propensity: Floats
    ratio: Floats
    """Probability of the live action under this lane, divided by its propensity when it was drawn."""
    distance: Floats
    """Total variation distance of the two pmfs."""
    least: Floats
    """Smallest probability of an eligible action."""
    top: Ints
    """The most probable action, as an index like `label`."""
    live_top: Ints
    segments: Codes
    """`[n, s]` segments by the features `names["segments"]`; codes into `names["segment:FEATURE"]`."""
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Any) -> Observed:
        """Return the rows that a mask, indices or a slice select."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool and rows.all():
            # The usual case; copying every column takes time.
            return self
        own = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "names"}
        return replace(self, **own)

    @property
    def scored(self) -> Bools:
        """Whether each row has a finite score, `[n]`."""
        return np.asarray((self.error == 0) & np.isfinite(self.score))

    @property
    def comparable(self) -> Bools:
        """Whether both answers of each row are a model's, `[n]`."""
        return np.asarray(self.scored & (self.live_fallback == 0) & np.isfinite(self.live_score))

    @property
    def flipped(self) -> Bools:
        """Whether the labels of each row differ, or, for actions, the most probable ones, `[n]`."""
        is_action = self.top > 0
        other = np.where(is_action, self.top != self.live_top, self.label != self.live_label)
        return np.asarray(self.comparable & other)

    def labels(self) -> list[str]:
        """Return the labels, or the actions, by index."""
        return list(self.names.get("label", ("",)))

    @property
    def segment_features(self) -> tuple[str, ...]:
        """Features that rows are split by, in the order of the columns of `segments`."""
        return tuple(self.names.get("segments", ()))

    def segment_levels(self, feature: str) -> Sequence[str]:
        """Return the levels of such a feature by code; that of code 0 is empty, the feature is missing."""
        return self.names.get(f"segment:{feature}", ("",))

    def servers(self) -> list[str]:
        """Return the names of servers by index."""
        return list(self.names.get("server", ("",)))


@dataclass(frozen=True)
class Counter:
    """A reading of the counters of an observe lane at one server."""

    at: int
    """Microseconds."""
    server: str
    lane: str
    seen: int
    taken: int
    dropped: int
    shed: int
    failed: int
    unlogged: int
    evaluated: int
    stuck: bool = False
    left_out: int = 0
    """Requests that the lane's filter or sample did not select."""


@dataclass(frozen=True)
class Answers:
    """Decisions of answer lanes, for a canary: `[n]` each, in order of time."""

    key: npt.NDArray[np.uint64]
    at: Ints
    server: Ints
    lane: Ints
    score: Floats
    label: Ints
    fallback: Ints
    exec_us: Floats
    load_us: Floats
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Any) -> Answers:
        """Return the rows that a mask, indices or a slice select."""
        own = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "names"}
        return replace(self, **own)


@dataclass(frozen=True)
class Flip:
    """A decision with another label than the live bundle's."""

    decision: str
    at: int
    live_label: str
    label: str
    live_score: float
    score: float
    features: Sequence[tuple[str, Any, Any]] = ()
    """The features that differ: name, value in the live bundle, value in this bundle."""


@dataclass(frozen=True)
class ShadowEvidence:
    """The observations of a change, with the facts that gates and figures need."""

    kind: str
    """`score` or `action`."""
    sla_us: float
    shadow: Observed
    control: Observed
    """Rows of the A/A control."""
    training: Distribution | None = None
    reference: Distribution | None = None
    """Distribution of the bundle's scores on data that the model was not trained on."""
    counters: Sequence[Counter] = ()
    read: Mapping[str, int] | None = None
    """Number of observations by server if `shadow` is a sample of them; None if it has all."""
    flips: Sequence[Flip] = ()
    parity: tuple[int, float] | None = None
    """Number of rows that were computed again offline, and the largest difference of a score."""
    outcomes: Mapping[str, tuple[npt.NDArray[np.uint64], Floats]] = field(default_factory=dict)
    """Keys of decisions and values of their outcomes, by kind of outcome."""
    outcome: str = "fraud"
    """The kind of outcome for AUC and rewards."""
    matured_before: int = 0
    """Outcomes of decisions before this time are final; microseconds since the Unix epoch."""
    live_bundle: str = ""
    """Digest of the bundle that answered last; empty if it is not known."""
    approve: str = "approve"
    """The label that lets a payment pass."""
    segments: SegmentPlan = NO_PLAN
    """How rows are split."""
    segment_notes: Sequence[str] = ()
    """Features that rows could not be split by, in sentences."""
    bands: Sequence[str] = ()
    """Labels of the bundle's bands in the order of scores; empty if there are none or they are not known."""
    notes: Sequence[str] = ()
    """Sentences about missing or unusual data."""


def outcome_of(evidence: ShadowEvidence, rows: Observed) -> Floats:
    """Return the outcome of each row; 0 where nothing was reported until it had matured."""
    keys, values = evidence.outcomes.get(evidence.outcome, (np.empty(0, np.uint64), np.empty(0)))
    found = np.zeros(len(rows))
    if not len(keys):
        return found
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], rows.key), len(keys) - 1)
    hit = keys[order][at] == rows.key
    found[hit] = values[order][at][hit]
    return found


def blank(rows: int) -> dict[str, Any]:
    """Return the columns of that many rows of which nothing is known: 0 and NaN."""
    kinds = {
        one.name: str(one.type) for one in fields(Observed) if one.name not in ("key", "names", "segments")
    }
    columns = {
        name: np.zeros(rows, np.int64) if "Ints" in kind else np.full(rows, np.nan)
        for name, kind in kinds.items()
    }
    return {"key": np.zeros(rows, np.uint64), "segments": np.zeros((rows, 0), np.int32), **columns}


def empty() -> Observed:
    """Return a lane without rows."""
    return Observed(**blank(0), names={"label": [""], "server": [""], "error": [""], "live_fallback": [""]})
