"""Building a bundle from the files of a build. This module runs in the process of the build."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from scorer.bundle import infer
from scorer.bundle.build import HeldOut, build_action_bundle, build_score_bundle
from scorer.bundle.check import read_manifest
from scorer.bundle.lineage import library_versions
from scorer.bundle.models import Action, Band, Lineage, SchemaFile, ThresholdNode
from scorer.bundle.source import open_source
from scorer.errors import BundleError, ForestError
from scorer.release.builds.job import FORMATS, OUTPUT, BuildJob, BuildResult
from scorer.release.builds.tables import MAX_ROWS, read_table

if TYPE_CHECKING:
    from scorer.bundle.models import Manifest
    from scorer.forest import Forest

_BAND = 'write "from label" on each line, such as "0 approve" and "0.8 review"'


def make(job: BuildJob, folder: Path, say: Callable[[str], None]) -> BuildResult:
    """Build the bundle of a job into its folder.

    Args:
        job: The job.
        folder: Folder of the build, which contains its files.
        say: Called with a short description of each step.

    Raises:
        BundleError: A bundle cannot be built from the files; the message has the reason.
    """
    say("Reading the model")
    notes: list[str] = []
    model, margins, names, golden = _model(folder / job.model, notes)
    say("Reading the reference data")
    table = _read(folder / job.table, notes)
    unseen = _read(folder / job.validation, notes) if job.validation else table
    if not job.validation:
        notes.append("The reference scores of training and of validation come from the same table.")
    say("Checking the schema")
    live = read_manifest(folder / job.live) if job.live else None
    schema = _schema(job, folder, table, names)
    say("Building histograms and golden cases")
    common: dict[str, Any] = {
        "name": job.name,
        "model": model,
        "margins": margins,
        "schema": schema,
        "training": table,
        "validation": unseen,
        "lineage": _lineage(job, golden),
    }
    if live is not None and live.kind == "action":
        built = build_action_bundle(folder / OUTPUT, **common, **_actions(job, folder, live))
    else:
        if live is not None and any(node.kind == "transform" for node in live.program):
            notes.append("The live bundle transforms features before its forest; this bundle does not.")
        built = build_score_bundle(
            folder / OUTPUT, bands=_bands(job, live), calibration=_calibration(job, unseen), **common
        )
    return BuildResult(built.digest, tuple(notes))


def _model(path: Path, notes: list[str]) -> tuple[Any, Any, tuple[str, ...], str]:
    """Return the model for the builder, its margins, its columns, and the library of the golden cases."""
    library = FORMATS[path.suffix]
    # The engine's reader runs first, because it validates sizes in the file before the library reads it.
    forest = _forest(path, library)
    try:
        importlib.import_module(library)
    except ImportError:
        notes.append(
            f"{library} is not installed where the platform runs, so the golden cases hold the engine's own "
            "results: they were not compared with the library that trained the model."
        )
        return forest, lambda rows: forest.predict(rows, margin=True), _names(path), "scorer"
    return path, None, open_source(path).names, f"{library} {metadata.version(library)}"


def _forest(path: Path, library: str) -> Forest:
    from scorer.forest import Forest

    readers = {
        "xgboost": Forest.from_xgboost,
        "lightgbm": Forest.from_lightgbm,
        "treelite": Forest.from_treelite,
    }
    try:
        return readers[library](path)
    except ForestError as error:
        raise BundleError(str(error)) from None


def _names(path: Path) -> tuple[str, ...]:
    """Return the columns that a model file states, without its library; empty if it states none."""
    if path.suffix == ".txt":
        head = path.read_text("utf-8", "replace")[: 1 << 20].splitlines()
        line = next((line for line in head if line.startswith("feature_names=")), "")
        names = tuple(line.removeprefix("feature_names=").split())
        return () if names == tuple(f"Column_{at}" for at in range(len(names))) else names
    if path.suffix == ".json":
        return tuple(map(str, json.loads(path.read_bytes())["learner"].get("feature_names", ())))
    if path.suffix == ".ubj":
        raise BundleError(
            "the columns of a .ubj file are read by xgboost, which is not installed where the platform runs; "
            "save the model as .json"
        )
    return ()


def _read(path: Path, notes: list[str]) -> Any:
    table = read_table(path)
    if table.num_rows == MAX_ROWS:
        notes.append(f"Only the first {MAX_ROWS:,} rows of {path.name} were used.")
    return table


def _schema(job: BuildJob, folder: Path, table: Any, names: Sequence[str]) -> SchemaFile:
    live = None
    if job.live:
        live = SchemaFile.model_validate_json((folder / job.live / "schema.json").read_bytes())
    action_features = live.action_features if live else []
    if job.schema == "live":
        if live is None:
            raise BundleError("the schema is to be copied, but no checkpoint was chosen; choose one")
        return live
    if action_features and names:
        own = [feature.name for feature in action_features]
        if list(names[-len(own) :]) != own:
            raise BundleError(
                f"the model's last columns must be the action features {', '.join(own)[:300]}; "
                "train it with the columns of the live bundle"
            )
        names = names[: -len(own)]
    if job.schema == "example":
        features = infer.from_example((folder / job.example).read_bytes(), table, names=names)
    elif job.schema == "lines":
        features = infer.from_lines(job.features)
    else:
        features = infer.from_table(table, names=names, without=[job.label] if job.label else [])
    return SchemaFile(features=features, action_features=action_features)


def _bands(job: BuildJob, live: Manifest | None) -> list[Band]:
    if job.bands:
        return [_band(line) for line in job.bands.splitlines() if line.strip()]
    if live is None:
        raise BundleError(f"there are no thresholds: choose a checkpoint to copy them from, or {_BAND}")
    end = live.program[-1]
    if not isinstance(end, ThresholdNode):
        raise BundleError(f"the live bundle has no thresholds to copy; {_BAND}")
    return list(end.bands)


def _band(line: str) -> Band:
    start, _, label = line.strip().partition(" ")
    try:
        return Band.model_validate({"from": start, "label": label.strip()})
    except ValidationError:
        raise BundleError(f'the threshold "{line.strip()[:80]}" cannot be read; {_BAND}') from None


def _calibration(job: BuildJob, table: Any) -> HeldOut | None:
    if job.calibration == "none":
        return None
    if job.label not in table.column_names:
        raise BundleError(f'calibration needs the label, but the table has no column "{job.label}"; name it')
    try:
        importlib.import_module("sklearn")
    except ImportError:
        raise BundleError(
            "scikit-learn, which fits calibration maps, is not installed where the platform runs; choose no "
            "calibration, or build the bundle with `scorer bundle build`"
        ) from None
    method: Any = job.calibration
    return HeldOut(table, table[job.label].to_numpy(), None, method)


def _actions(job: BuildJob, folder: Path, live: Manifest) -> dict[str, Any]:
    end = live.program[-1]
    if end.kind != "policy" or end.voters:
        raise BundleError(
            "the live bundle's policy needs an ensemble of models; build the next one with "
            "`scorer bundle build`"
        )
    if job.bands or job.calibration != "none":
        raise BundleError(
            "thresholds and calibration are for scores, and the checkpoint chooses actions; leave them out"
        )
    catalogue = (folder / job.live / "actions.json").read_bytes()
    return {"actions": TypeAdapter(list[Action]).validate_json(catalogue), "policy": end.policy}


def _lineage(job: BuildJob, golden: str) -> Lineage:
    facts: dict[str, Any] = {
        "data_digest": job.table_digest,
        "code_version": job.version,
        "library_versions": library_versions(),
        "run_id": job.id,
        "built_by": job.user,
        "model_digest": job.model_digest,
        "golden_cases_by": golden,
    }
    return Lineage(**facts)
