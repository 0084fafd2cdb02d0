"""The run that computes a global explanation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from scorer.batch.inputs import SourceOptions
from scorer.bundle.check import read_manifest, read_schema
from scorer.explain.dependence import dependence
from scorer.explain.document import (
    ExplainedData,
    ExplanationSettings,
    FeatureImportance,
    GlobalExplanation,
)
from scorer.explain.importance import contributions, importances
from scorer.explain.interactions import evaluations, interactions
from scorer.explain.quantity import ExplainedQuantity
from scorer.explain.sample import FeatureReader, RowSample, read_sample
from scorer.explain.surrogate import surrogate

Progress = Callable[[str, int, int | None], None]
"""Called with the name of a step, what of it is done, and its total, which is None while it is unknown."""


def explain_bundle(
    directory: Path,
    source: SourceOptions,
    settings: ExplanationSettings | None = None,
    *,
    action: str | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    progress: Progress | None = None,
) -> GlobalExplanation:
    """Explain a bundle on a sample of rows.

    The memory is bounded by the size of the sample. The same bundle, rows and settings give the same
    document, except for its time.

    Args:
        directory: The bundle's directory.
        source: Rows with the features of a request, such as a week of decisions.
        settings: Limits and the seed; None: the defaults.
        action: For an action bundle: id of the action; None: the first of the catalogue.
        now: Returns the current time, aware.
        progress: Called as the work goes on.

    Raises:
        BundleError: The bundle is not valid, the action does not suit it, or it accepts none of the rows.
        BatchError: The rows cannot be read, or a feature has no suitable column.
    """
    limits = settings or ExplanationSettings()
    report = progress or (lambda *_: None)
    reader = FeatureReader(directory)
    quantity = ExplainedQuantity(reader.bundle, action)
    sample = read_sample(
        reader, source, limits.rows, limits.seed, lambda done, total: report("reading", done, total)
    )
    return explain_sample(Path(directory), quantity, sample, limits, now=now, report=report)


def explain_sample(
    directory: Path,
    quantity: ExplainedQuantity,
    sample: RowSample,
    limits: ExplanationSettings,
    *,
    now: Callable[[], datetime],
    report: Progress,
) -> GlobalExplanation:
    """Explain a bundle on rows that have been read; the arguments are those of `explain_bundle`."""
    bundle, rows = quantity.bundle, sample.rows
    manifest, schema = read_manifest(directory), read_schema(directory)
    notes: list[str] = []
    random = np.random.default_rng(limits.seed)
    expectation, values = None, None
    if bundle.explains:
        chosen = np.sort(random.permutation(len(rows))[: limits.contributions])
        expectation, values = contributions(
            quantity, rows[chosen], lambda done: report("contributions", done, len(chosen))
        )
    else:
        notes.append(
            "The bundle has no covers.bin, so it has no exact contributions; features are in the order of "
            "their splits."
        )
    found = importances(
        directory,
        list(bundle.columns),
        manifest.lineage.importance,
        values,
        limits.resamples,
        limits.seed,
    )
    place = {feature.name: at for at, feature in enumerate(schema.features)}
    ranked = [one for one in found if one.feature in place and _is_used(one)]
    shown = ranked[: limits.features]
    if len(shown) < len(ranked):
        notes.append(f"Curves are computed for the {len(shown)} most important of {len(ranked)} features.")
    curves = []
    for at, one in enumerate(shown):
        column = place[one.feature]
        curves.append(dependence(quantity, rows, column, schema.features[column], limits.points))
        report("curves", at + 1, len(shown))
    pairs = ranked[: limits.interacting]
    few = rows[np.sort(random.permutation(len(rows))[: limits.interaction_rows])]
    total = len(pairs) + len(pairs) * (len(pairs) - 1) // 2
    done = iter(range(1, total + 1))
    measured = interactions(
        quantity,
        few,
        [(place[one.feature], one.feature) for one in pairs],
        lambda: report("interactions", next(done), total),
    )
    notes.append(
        f"Interactions are measured between the {len(pairs)} most important features on {len(few)} rows, "
        f"with {evaluations(len(pairs), len(few)):,} evaluations."
    )
    tree = surrogate(quantity, rows, schema.features, limits.depth, limits.seed)
    if not tree.tested:
        notes.append("There are too few rows to measure the fidelity of the surrogate tree.")
    if len(rows) == 1:
        notes.append("The sample has one row, so intervals have no width and curves are those of this row.")
    return GlobalExplanation(
        bundle=bundle.digest,
        name=bundle.name,
        kind="action" if bundle.kind == "action" else "score",
        quantity=quantity.name,
        action=quantity.action,
        created_at=now().astimezone(UTC).isoformat(timespec="seconds"),
        data=ExplainedData(
            source=sample.source,
            seen=sample.seen,
            refused=sample.refused,
            used=len(rows),
            digest=sample.digest,
        ),
        settings=limits,
        expectation=expectation,
        explained=0 if values is None else len(values),
        importance=found,
        dependence=curves,
        interactions=measured,
        surrogate=tree,
        notes=notes,
    )


def _is_used(one: FeatureImportance) -> bool:
    """Whether the forest splits on a feature; the others have flat curves."""
    return one.splits > 0
