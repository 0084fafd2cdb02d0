"""Observations of one lane as columns: what gates and figures are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from scorer.bundle.models import Distribution

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

UNKNOWN, EQUAL, DIFFERENT = -1, 0, 1
"""Whether features were as the live bundle's: not compared, equal, different."""


@dataclass(frozen=True)
class Observed:
    """Rows of one lane, one per decision, in order of time; every array is `[n]`.

    Numbers that a row does not have are NaN. Names (labels, actions, errors, servers) are codes into
    `names[column]`; the code of "" is always 0.
    """

    key: npt.NDArray[np.uint64]
    """Hash of the decision's id: what lanes are paired by."""
    at: Ints
    """When the answer was decided, microseconds."""
    server: Ints
    score: Floats
    """Of an action bundle: the expected reward of its action."""
    live_score: Floats
    label: Ints
    """Decision, or action."""
    live_label: Ints
    error: Ints
    """Why there is no score; 0 where there is one."""
    live_fallback: Ints
    """Why the live answer was not the model's; 0 where it was."""
    exec_us: Floats
    load_us: Floats
    live_exec_us: Floats
    live_load_us: Floats
    lag_us: Floats
    absent: Ints
    """Features of the bundle that the request did not carry."""
    differs: Ints
    """`UNKNOWN`, `EQUAL` or `DIFFERENT`."""
    propensity: Floats
    live_propensity: Floats
    ratio: Floats
    """Probability of the live action under this lane, over its propensity when it was drawn."""
    distance: Floats
    """Total variation distance of the two pmfs."""
    least: Floats
    """Least probability of an eligible action."""
    top: Ints
    """Likeliest action; code of `label`."""
    live_top: Ints
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.key)

    def take(self, rows: Any) -> Observed:
        """Some of the rows: a mask, indices or a slice."""
        if isinstance(rows, np.ndarray) and rows.dtype == bool and rows.all():
            # The usual case, and a copy of every column is dear.
            return self
        own = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "names"}
        return replace(self, **own)

    @property
    def scored(self) -> Bools:
        """Whether there is a score, and a finite one."""
        return np.asarray((self.error == 0) & np.isfinite(self.score))

    @property
    def comparable(self) -> Bools:
        """Whether both sides are a model's answer."""
        return np.asarray(self.scored & (self.live_fallback == 0) & np.isfinite(self.live_score))

    @property
    def flipped(self) -> Bools:
        """Whether another label was given; of actions, whether another one is likeliest."""
        is_action = self.top > 0
        other = np.where(is_action, self.top != self.live_top, self.label != self.live_label)
        return np.asarray(self.comparable & other)

    def labels(self) -> list[str]:
        """Labels (or actions) by code."""
        return list(self.names.get("label", ("",)))

    def servers(self) -> list[str]:
        """Return the names of servers by code."""
        return list(self.names.get("server", ("",)))


@dataclass(frozen=True)
class Counter:
    """Counters of an observe lane at one server, at one moment."""

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
    """Requests that the lane's filter or sample left out."""


@dataclass(frozen=True)
class Answers:
    """Decisions that were given, for a canary: `[n]` each, in order of time."""

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
        """Return the rows at a mask, indices or a slice."""
        own = {one.name: getattr(self, one.name)[rows] for one in fields(self) if one.name != "names"}
        return replace(self, **own)


@dataclass(frozen=True)
class Flip:
    """A decision that came out otherwise."""

    decision: str
    at: int
    live_label: str
    label: str
    live_score: float
    score: float
    features: Sequence[tuple[str, Any, Any]] = ()
    """Name, live value, this bundle's value: of those that differ."""


@dataclass(frozen=True)
class ShadowEvidence:
    """Everything that is known about a change's time in the shadow."""

    kind: str
    """`score` or `action`."""
    sla_us: float
    shadow: Observed
    control: Observed
    """The A/A lane's rows."""
    training: Distribution | None = None
    reference: Distribution | None = None
    """Of rows that the model has not seen: what its scores are held against."""
    counters: Sequence[Counter] = ()
    read: Mapping[str, int] | None = None
    """Observations by server, where `shadow` holds only some of them; None: as many as it has."""
    flips: Sequence[Flip] = ()
    parity: tuple[int, float] | None = None
    """Rows that were computed again offline, and the largest difference of a score."""
    outcomes: Mapping[str, tuple[npt.NDArray[np.uint64], Floats]] = field(default_factory=dict)
    """By kind: decisions and values that became known."""
    outcome: str = "fraud"
    """The kind that AUC and rewards are by."""
    matured_before: int = 0
    """Decisions before this moment have the outcome that they will have, microseconds."""
    live_bundle: str = ""
    """What answered last; empty where nothing is known."""
    approve: str = "approve"
    """The label that lets a payment pass."""
    bands: Sequence[str] = ()
    """Labels of the bundle's bands, from the lowest score up; empty: it has none, or they are unknown."""
    notes: Sequence[str] = ()
    """What is missing or odd about it, in sentences."""


def blank(rows: int) -> dict[str, Any]:
    """Return the columns of that many rows of which nothing is known: 0 and NaN."""
    kinds = {one.name: str(one.type) for one in fields(Observed) if one.name not in ("key", "names")}
    columns = {
        name: np.zeros(rows, np.int64) if "Ints" in kind else np.full(rows, np.nan)
        for name, kind in kinds.items()
    }
    return {"key": np.zeros(rows, np.uint64), **columns}


def empty() -> Observed:
    """Return a lane without any rows."""
    return Observed(**blank(0), names={"label": [""], "server": [""], "error": [""], "live_fallback": [""]})
