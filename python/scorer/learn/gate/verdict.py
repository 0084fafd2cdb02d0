"""The verdict: what was decided, why, and on what; one JSON document that others check."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from scorer.learn.errors import DataError

FORMAT = 1
KEY = "gate"
"""Where a bundle's lineage metrics keep the evidence that let it pass."""
BUNDLE = "bundle"
"""Name of the directory beside a verdict that holds the bundle to publish."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ValueInterval(_Model):
    """A value with its anytime-valid interval."""

    value: float
    low: float | None
    """None: nothing is known."""
    high: float | None
    rows: int


class Check(_Model):
    """One condition of the gate and its result."""

    name: str
    passed: bool
    says: str
    """In words, with the figure and its limit."""


class SegmentVerdict(_Model):
    """One value of one column."""

    column: str
    value: str
    difference: ValueInterval
    state: Literal["safe", "harmed", "inconclusive"]


class CapUse(_Model):
    """What the candidate would use of a cap."""

    attribute: str
    limit: float
    band: float
    candidate: ValueInterval
    live: ValueInterval


class JudgedBundle(_Model):
    """One of the two bundles."""

    name: str
    digest: str
    content: str
    """Digest of program and files alone: the same before and after the evidence was written into it."""
    learned_until_ms: int | None


class Window(_Model):
    """The period and the decisions that a verdict rests on."""

    experience: str
    """Digest of the whole experience."""
    start_ms: int
    end_ms: int
    decisions: int
    settled: int
    missing: int


class VerdictEvidence(_Model):
    """Everything that decided. It stands in the lineage of the bundle that is published, word for word."""

    decision: Literal["promote", "mix", "wait"]
    share: float
    """Of the traffic that the candidate gets: 1, 0, or between."""
    reasons: tuple[str, ...]
    candidate: JudgedBundle
    live: JudgedBundle
    window: Window
    difference: ValueInterval
    value: ValueInterval
    live_value: ValueInterval
    effective_rows: float
    mean_weight: float
    largest_weight: float
    support: float
    distance: float
    """Mean total variation between the policies: no difference of values exceeds it."""
    lanes: float | None
    """The candidate's share of the decisions where both served; None: the live policy's log alone."""
    checks: tuple[Check, ...]
    segments: tuple[SegmentVerdict, ...]
    caps: tuple[CapUse, ...]
    settings: dict[str, Any]
    scores: dict[str, Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """At a score checkpoint, where values are shares of the turnover: the measures of both bundles and their
    differences."""

    @property
    def alpha(self) -> float:
        """Error rate of the interval of the difference, of both sides together."""
        if self.scores is not None:
            return 2 * (1 - float(self.settings["fraud"]["confidence"]))
        return float(self.settings["gate"]["alpha"])

    @property
    def margin(self) -> float:
        """Loss of value that the gate accepts: the lower bound of the difference must be above minus this."""
        if self.scores is not None:
            return float(self.settings["fraud"]["gate"]["value_margin"])
        return float(self.settings["gate"]["margin"])


class Verdict(_Model):
    """Content of the file `verdict.json` of a gate run."""

    format: Literal[1] = 1
    bundle: str | None
    """Digest of what is to be published, the candidate with the evidence in its lineage; None: nothing is."""
    evidence: VerdictEvidence
    figures: dict[str, Any]
    """What the report plots."""

    def to_bytes(self) -> bytes:
        """The file: the same verdict gives the same bytes."""
        return self.model_dump_json(indent=1).encode() + b"\n"

    @property
    def headline(self) -> str:
        """The verdict in one sentence."""
        one = self.evidence
        low, high = one.difference.low, one.difference.high
        unit = "points" if one.scores is None else "points of the turnover"
        gain = f"{one.difference.value * 100:+.2f} {unit}"
        if low is not None and high is not None:
            level = 100 * (1 - one.alpha)
            gain += f" ({level:g} % interval {low * 100:+.2f} to {high * 100:+.2f})"
        what = "policy" if one.scores is None else "bundle"
        return {
            "promote": f"Promote: the candidate is worth {gain} against the live {what}",
            "mix": f"Give the candidate {one.share * 100:g} % of the traffic: it is worth {gain}",
            "wait": f"Wait: the candidate is estimated at {gain} against the live {what}",
        }[one.decision]


def read_verdict(directory: Path) -> Verdict:
    """From the directory that `scorer learn gate` wrote.

    Raises:
        DataError: there is none, or it is not one.
    """
    path = directory / "verdict.json"
    try:
        return Verdict.model_validate_json(path.read_bytes())
    except OSError:
        raise DataError(f'verdict "{path}" cannot be read; `scorer learn gate` writes it') from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise DataError(f'verdict "{path}": {where}: {first["msg"]}; judge the candidate again') from None


def content_digest(manifest: Mapping[str, Any]) -> str:
    """SHA-256 over a manifest's program and file digests: what computes, without where it comes from."""
    what = {"program": manifest["program"], "files": manifest["files"]}
    text = json.dumps(what, sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
