"""The result of a comparison as plain values, with their JSON and their tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from scorer.learn.comparison.versions import VersionFacts
from scorer.learn.comparison.weeks import Week
from scorer.learn.documents import read_document, write_document
from scorer.learn.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Basis = Literal["served", "backtest"]
FORMAT: Final = 1
_MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class MetricValue:
    """A value with its 95 % interval; the bounds are None where they are not known."""

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class VersionWeek:
    """The metrics of one version in one week, or in all settled weeks.

    Attributes:
        version: Position of the version.
        week: Position of the week; None: all settled weeks that the version was compared in.
        basis: `served`: on the decisions that it served; `backtest`: on all decisions.
        rows: Number of decisions.
        positive: Of these, positive.
        metrics: Values by name.
        reason: Why values are missing; empty if none are.
    """

    version: int
    week: int | None
    basis: Basis
    rows: int
    positive: int
    metrics: Mapping[str, MetricValue]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference of two versions on the same decisions of the backtest, left minus right.

    Attributes:
        left: Position of a version.
        right: Position of another one.
        metric: Name of the metric.
        weeks: Number of weeks.
        rows: Number of decisions.
        difference: With its paired interval.
    """

    left: int
    right: int
    metric: str
    weeks: int
    rows: int
    difference: MetricValue


@dataclass(frozen=True, slots=True)
class BestOfWeek:
    """The best version of a week by a metric of the backtest.

    Attributes:
        week: Position of the week.
        metric: Name of the metric.
        version: Position of the best version.
        runner_up: Position of the second best; None: there is none.
        lead: Best minus runner-up with its paired interval; None without a runner-up.
        clear: Whether the interval excludes 0.
    """

    week: int
    metric: str
    version: int
    runner_up: int | None
    lead: MetricValue | None
    clear: bool


@dataclass(frozen=True, slots=True)
class VersionComparison:
    """Versions of a checkpoint compared over time.

    Attributes:
        checkpoint: Name of the checkpoint.
        kind: Kind of its bundles.
        as_of_ms: The moment, Unix time.
        job: Digest of everything that was asked for.
        metrics: Names of the metrics, the main one first.
        versions: The versions.
        weeks: The weeks.
        values: Metrics by version and week, and over all settled weeks.
        pairs: Paired differences over the weeks that both versions were compared in.
        best: The best version of each settled week, by metric.
        left_out: Number of decisions and reports that are not used, by reason.
        notes: Further remarks, in sentences.
        settings: Settings and the label policy.
    """

    checkpoint: str
    kind: str
    as_of_ms: int
    job: str
    metrics: tuple[str, ...]
    versions: tuple[VersionFacts, ...]
    weeks: tuple[Week, ...]
    values: tuple[VersionWeek, ...]
    pairs: tuple[PairedDifference, ...]
    best: tuple[BestOfWeek, ...]
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def of(self, version: int, week: int | None, basis: Basis) -> VersionWeek | None:
        """Return the metrics of a version in a week, or in all (None)."""
        for one in self.values:
            if (one.version, one.week, one.basis) == (version, week, basis):
                return one
        return None

    def document(self) -> dict[str, Any]:
        """Return the values of its JSON document."""
        return {"format": FORMAT, **asdict(self)}

    def write(self, path: Path) -> None:
        """Write the JSON file, in one step.

        Raises:
            DataError: The file cannot be written.
        """
        write_document(path, self.document())

    def table(self) -> pa.Table:
        """Return one row for each version, week, basis and metric."""
        import pyarrow as pa

        rows = []
        for one in self.values:
            week = None if one.week is None else self.weeks[one.week].begin
            facts = self.versions[one.version]
            for metric in one.metrics or {"": MetricValue(float("nan"), None, None)}:
                value = one.metrics.get(metric)
                rows.append(
                    {
                        "digest": facts.digest,
                        "name": facts.name,
                        "algorithm": facts.algorithm,
                        "data": facts.data,
                        "week": week,
                        "basis": one.basis,
                        "rows": one.rows,
                        "positive": one.positive,
                        "metric": metric,
                        "value": None if value is None else value.value,
                        "low": None if value is None else value.low,
                        "high": None if value is None else value.high,
                        "reason": one.reason,
                    }
                )
        return pa.Table.from_pylist(rows, schema=_schema())


def from_document(found: Mapping[str, Any]) -> VersionComparison:
    """Return the comparison of JSON values that `Comparison.document` returned.

    Raises:
        DataError: They are of another version of the format.
    """
    if found.get("format") != FORMAT:
        raise DataError("the file is no comparison of this version of scorer; compare again")
    values = {name: value for name, value in found.items() if name != "format"}
    try:
        return VersionComparison(
            **{
                **values,
                "metrics": tuple(values["metrics"]),
                "versions": tuple(VersionFacts(**one) for one in values["versions"]),
                "weeks": tuple(Week(**one) for one in values["weeks"]),
                "values": tuple(
                    VersionWeek(
                        **{**one, "metrics": {k: MetricValue(**v) for k, v in one["metrics"].items()}}
                    )
                    for one in values["values"]
                ),
                "pairs": tuple(
                    PairedDifference(**{**one, "difference": MetricValue(**one["difference"])})
                    for one in values["pairs"]
                ),
                "best": tuple(
                    BestOfWeek(**{**one, "lead": None if one["lead"] is None else MetricValue(**one["lead"])})
                    for one in values["best"]
                ),
                "notes": tuple(values["notes"]),
            }
        )
    except (KeyError, TypeError) as error:
        raise DataError(f"the file is no comparison: {error}; compare again") from None


def read_comparison(path: Path) -> VersionComparison:
    """Read a file of `Comparison.write`.

    Raises:
        DataError: It cannot be read, is too large, or is no comparison.
    """
    command = "scorer learn compare -o"
    return from_document(read_document(path, most_bytes=_MOST_BYTES, what="comparison", command=command))


def job_digest(
    checkpoint: str, digests: Sequence[str], as_of_ms: int, settings: Mapping[str, Any], logs: Sequence[str]
) -> str:
    """Return the digest of everything that a comparison is asked for."""
    content = json.dumps([FORMAT, checkpoint, list(digests), as_of_ms, settings, list(logs)], sort_keys=True)
    return f"sha256:{hashlib.sha256(content.encode()).hexdigest()}"


def _schema() -> pa.Schema:
    import pyarrow as pa

    texts = {"digest", "name", "algorithm", "data", "week", "basis", "metric", "reason"}
    names = (
        "digest",
        "name",
        "algorithm",
        "data",
        "week",
        "basis",
        "rows",
        "positive",
        "metric",
        "value",
        "low",
        "high",
        "reason",
    )
    kinds = {"rows": pa.int64(), "positive": pa.int64()}
    return pa.schema(
        [(name, pa.string() if name in texts else kinds.get(name, pa.float64())) for name in names]
    )
