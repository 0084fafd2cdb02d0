"""The bundle of a candidate, and building it again from its lineage and the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from scorer.bundle import Manifest, SchemaFile, build_score_bundle, read_manifest
from scorer.bundle.lineage import describe_lineage, library_versions
from scorer.learn.errors import DataError
from scorer.learn.fraud.checks import describe
from scorer.learn.fraud.settings import FraudSettings
from scorer.learn.fraud.table import read_table
from scorer.learn.fraud.task import read_score_task, schema_digest
from scorer.learn.fraud.training import FraudModel, train_fraud
from scorer.learn.training.trained import Built

KEY: Final = "fraud"
"""Where a bundle's lineage metrics have what the training decided."""


def build_fraud(
    model: FraudModel,
    data: Path | None,
    output: Path,
    *,
    run_id: str = "",
    created_at: datetime | None = None,
    code_version: str | None = None,
) -> Built:
    """Build the bundle of a candidate. The same model, data, ids and time give the same digest.

    Args:
        model: The candidate.
        data: The file that it was trained on, whose label policy the lineage records; None: the data was not
            read from a file, and the lineage has its digest only.
        output: Directory to create.
        run_id: Id of the training run; empty: a new one.
        created_at: Time of the bundle; None: now.
        code_version: Version of the training code; None: the Git commit of the working directory.
    """
    settings = model.settings
    parameters = {
        "algorithm": model.fitted.algorithm,
        "trees": settings.trees,
        "depth": settings.depth,
        "learning_rate": settings.learning_rate,
        "min_child_weight": settings.min_child_weight,
        "subsample": settings.subsample,
        "colsample": settings.colsample,
        "l2": settings.l2,
        "positive_weight": settings.positive_weight,
        "seed": settings.seed,
    }
    lineage = describe_lineage(
        *(() if data is None else (data,)),
        data_digest=model.data_digest,
        code_version=code_version,
        run_id=run_id or None,
        metrics={KEY: lineage_of(model)},
        parameters=parameters,
        importance=model.fitted.gain,
    )
    built = build_score_bundle(
        output,
        name=model.task.name,
        model=model.fitted.model,
        schema=SchemaFile(features=list(model.task.features)),
        bands=model.thresholds.bands(),
        training=model.training_rows,
        validation=model.reference_rows,
        lineage=lineage,
        calibration=model.calibration,
        created_at=created_at,
        seed=settings.seed,
    )
    return Built(model.task.name, built.path, built.digest)


def lineage_of(model: FraudModel) -> dict[str, Any]:
    """Return all that decided, as the bundle's lineage has it."""
    recorded = {
        "settings": model.settings.model_dump(mode="json"),
        "schema": schema_digest(model.task),
        "windows": model.windows.as_dict(),
        "counts": {name: dict(count) for name, count in model.counts.items()},
        "late": dict(model.late),
        "findings": describe(model.findings),
        "choice": dict(model.choice),
        "thresholds": {"review": model.thresholds.review, "decline": model.thresholds.decline},
        "test": model.measures.as_dict(),
        "baseline": model.baseline.as_dict(),
        "beats": model.beats.as_dict(),
        "last_ms": model.last_ms,
    }
    return recorded if model.selection is None else {**recorded, "selection": dict(model.selection)}


@dataclass(frozen=True)
class Rebuilt:
    """A bundle that was built again.

    Attributes:
        built: The new bundle.
        wanted: Digest of the original.
    """

    built: Built
    wanted: str

    @property
    def is_equal(self) -> bool:
        """Whether both bundles have the same bytes."""
        return self.built.digest == self.wanted


def rebuild(
    candidate: Path,
    data: Path,
    output: Path,
    *,
    any_versions: bool = False,
    at: Callable[[str], None] = lambda _: None,
) -> Rebuilt:
    """Build a bundle again from its lineage and the data.

    Args:
        candidate: The bundle.
        data: The file that it was trained on.
        output: Directory to create.
        any_versions: Use the installed libraries although the bundle was built with others.
        at: Called with the name of each stage.

    Raises:
        DataError: The bundle has no lineage of this training, or data, schema or libraries are others.
    """
    manifest = read_manifest(candidate)
    recorded = recorded_training(manifest)
    task = read_score_task(candidate)
    if (now := schema_digest(task)) != recorded["schema"]:
        raise DataError(
            f'"{candidate}": its schema has the digest {now[:19]}, and was trained with '
            f"{recorded['schema'][:19]}; restore the original bundle"
        )
    before, here = manifest.lineage.library_versions, library_versions()
    changed = sorted(name for name in {*before, *here} if before.get(name) != here.get(name))
    if changed and not any_versions:
        name = changed[0]
        raise DataError(
            f'"{candidate}" was built with {name} {before.get(name, "(none)")}, here is '
            f"{here.get(name, '(none)')}; install that version, or give --any-versions"
        )
    try:
        settings = FraudSettings.model_validate(recorded["settings"])
    except ValidationError as error:
        raise DataError(
            f'"{candidate}": this version does not know its settings ({error.errors()[0]["msg"]}); use the '
            "version that built it"
        ) from None
    table = read_table(data, task.features, settings.columns)
    if table.digest != manifest.lineage.data_digest:
        raise DataError(
            f'"{data}" has the digest {table.digest[:19]}, the bundle was trained on '
            f"{manifest.lineage.data_digest[:19]}; give the original file"
        )
    model = train_fraud(
        table,
        task,
        settings,
        until_ms=recorded["windows"]["test"]["end_ms"],
        selection=recorded.get("selection"),
        at=at,
    )
    built = build_fraud(
        model,
        data,
        output,
        run_id=manifest.lineage.run_id,
        created_at=datetime.fromisoformat(manifest.created_at),
        code_version=manifest.lineage.code_version,
    )
    return Rebuilt(built, manifest.digest)


def recorded_training(manifest: Manifest) -> dict[str, Any]:
    """Return what the lineage of a bundle has of this training.

    Raises:
        DataError: The bundle was not built by it.
    """
    recorded = manifest.lineage.metrics.get(KEY)
    if not isinstance(recorded, dict) or "settings" not in recorded:
        raise DataError(
            f'"{manifest.name}" {manifest.digest[:19]} was not built by `scorer learn fraud train`, '
            "so its lineage has no settings; give a bundle that was"
        )
    return recorded
