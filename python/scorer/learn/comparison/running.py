"""One comparison, from the logs to its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scorer.learn.comparison.actions import prepare_actions
from scorer.learn.comparison.comparing import compare_rows
from scorer.learn.comparison.results import VersionComparison, job_digest, read_comparison
from scorer.learn.comparison.rows import Advance
from scorer.learn.comparison.scores import prepare_scores
from scorer.learn.comparison.settings import ComparisonSettings
from scorer.learn.comparison.versions import open_versions
from scorer.learn.errors import DataError
from scorer.learn.join.settings import JoinSettings
from scorer.learn.labels.settings import LabelSettings

if TYPE_CHECKING:
    from scorer.learn.labels.curves import MaturityCurves
    from scorer.log import BundleShelf, ReaderKey
    from scorer.log.source.interface import DecisionSource

_UNKNOWN: Final = "no version was found among the bundles; add the registry that has them"


@dataclass(frozen=True)
class ComparisonJob:
    """What is compared.

    Attributes:
        checkpoint: Name of the checkpoint.
        digests: Of the versions, from the oldest to the newest.
        as_of_ms: The moment, Unix time. Later records are not used.
        settings: Limits and the cost matrix.
        labels: The label policy of a score checkpoint.
        joining: Rewards of an action checkpoint.
    """

    checkpoint: str
    digests: tuple[str, ...]
    as_of_ms: int
    settings: ComparisonSettings = field(default_factory=ComparisonSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)
    joining: JoinSettings = field(default_factory=JoinSettings)

    def sections(self) -> dict[str, Any]:
        """Return the settings as JSON values."""
        return {
            "comparison": self.settings.model_dump(mode="json"),
            "labels": self.labels.model_dump(mode="json"),
            "join": self.joining.model_dump(mode="json"),
        }

    def digest(self, logs: Sequence[str]) -> str:
        """Return the digest of everything that is asked for, with the names of the logs."""
        return job_digest(self.checkpoint, self.digests, self.as_of_ms, self.sections(), logs)

    def document(self) -> dict[str, Any]:
        """Return JSON values that `restored` reads."""
        return {
            "checkpoint": self.checkpoint,
            "digests": list(self.digests),
            "as_of_ms": self.as_of_ms,
            **self.sections(),
        }

    @classmethod
    def restored(cls, found: Mapping[str, Any]) -> ComparisonJob:
        """Return the job of JSON values that `document` returned."""
        return cls(
            found["checkpoint"],
            tuple(found["digests"]),
            found["as_of_ms"],
            ComparisonSettings.model_validate(found["comparison"]),
            LabelSettings.model_validate(found["labels"]),
            JoinSettings.model_validate(found["join"]),
        )


def compare_versions(
    source: DecisionSource,
    shelf: BundleShelf,
    job: ComparisonJob,
    *,
    curves: MaturityCurves | None = None,
    cached: Path | None = None,
    advance: Advance = lambda _step, _share: None,
    reader_key: ReaderKey | None = None,
) -> VersionComparison:
    """Compare versions of a checkpoint over time.

    Args:
        source: The logs.
        shelf: The bundles of the decisions and of the versions.
        job: What is compared.
        curves: Maturity curves of labels; None: they are estimated from the logs.
        cached: A file of an earlier comparison. It is returned if it has the digest of this job, without
            reading the logs.
        advance: Called with the name of each step and the share of it that is done.
        reader_key: Key that decrypts sensitive features.

    Raises:
        DataError: There are no versions, too many, or none of them is known; or no decision can be used.
        LogError: No log can be read.
    """
    digest = job.digest([log.name for log in source.logs])
    if cached is not None and cached.is_file():
        earlier = read_comparison(cached)
        if earlier.job == digest:
            return earlier
    kinds = {bundle.kind for one in job.digests if one in shelf.digests and (bundle := shelf.get(one))}
    if not kinds:
        raise DataError(_UNKNOWN)
    if len(kinds) > 1:
        raise DataError("the versions are of both kinds, score and action; compare those of one checkpoint")
    kind = kinds.pop()
    versions = open_versions(shelf, job.digests, kind)
    common: dict[str, Any] = {
        "checkpoint": job.checkpoint,
        "as_of_ms": job.as_of_ms,
        "advance": advance,
        "reader_key": reader_key,
    }
    if kind == "score":
        prepared = prepare_scores(source, shelf, versions, job.labels, job.settings, curves=curves, **common)
    else:
        prepared = prepare_actions(source, shelf, versions, job.joining, job.settings, **common)
    facts = tuple(one.facts for one in versions)
    found = compare_rows(prepared, facts, job.settings, advance=advance)
    left_out: dict[str, int] = {**prepared.left_out, **found.left_out}
    return VersionComparison(
        job.checkpoint,
        kind,
        job.as_of_ms,
        digest,
        found.metrics,
        facts,
        prepared.weeks,
        tuple(found.values),
        tuple(found.pairs),
        tuple(found.best),
        dict(sorted(left_out.items())),
        prepared.notes,
        job.sections(),
    )
