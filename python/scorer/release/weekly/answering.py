"""The result of a comparison as the service layer returns it: versions by digest, weeks by their Monday."""

from __future__ import annotations

from scorer.learn.comparison.figures import charts, group_names
from scorer.learn.comparison.results import VersionComparison
from scorer.release.weekly_answers import (
    BestVersion,
    ComparedMetric,
    ComparedPair,
    ComparedValues,
    ComparedVersion,
    ComparedWeek,
    WeeklyResult,
)


def weekly_result(found: VersionComparison, metric: str, by: str) -> WeeklyResult:
    """Return a result with the charts of one metric.

    Args:
        found: The comparison.
        metric: Name of the metric of the charts; empty: the first one.
        by: What a line of the charts is drawn for.

    Raises:
        DataError: There is no such metric or group.
    """
    digests = [one.digest for one in found.versions]
    weeks = [week.begin for week in found.weeks]
    return WeeklyResult(
        kind=found.kind,
        metrics=found.metrics,
        groups=group_names(found),
        versions=tuple(
            ComparedVersion(
                one.digest,
                one.name,
                one.created,
                one.algorithm,
                one.data,
                dict(one.parameters or {}),
                one.refused,
            )
            for one in found.versions
        ),
        weeks=tuple(
            ComparedWeek(
                week.begin,
                week.decisions,
                week.labelled,
                week.positive,
                week.declined,
                week.maturity,
                week.settled,
                week.reason,
            )
            for week in found.weeks
        ),
        values=tuple(
            ComparedValues(
                digests[one.version],
                None if one.week is None else weeks[one.week],
                one.basis,
                one.rows,
                one.positive,
                {
                    name: ComparedMetric(value.value, value.low, value.high)
                    for name, value in one.metrics.items()
                },
                one.reason,
            )
            for one in found.values
        ),
        pairs=tuple(
            ComparedPair(
                digests[one.left],
                digests[one.right],
                one.metric,
                one.weeks,
                one.rows,
                one.difference.value,
                one.difference.low,
                one.difference.high,
            )
            for one in found.pairs
        ),
        best=tuple(
            BestVersion(
                weeks[one.week],
                one.metric,
                digests[one.version],
                None if one.runner_up is None else digests[one.runner_up],
                None if one.lead is None else one.lead.value,
                None if one.lead is None else one.lead.low,
                None if one.lead is None else one.lead.high,
                one.clear,
            )
            for one in found.best
        ),
        left_out=dict(found.left_out),
        notes=found.notes,
        figures=charts(found, metric, by),
    )
