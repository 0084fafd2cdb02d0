"""The TOML file that `scorer bundle build` reads, and building a bundle from it."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from scorer.bundle.ensemble import Ensemble
from scorer.bundle.models import (
    Action,
    Band,
    CategoryTable,
    Feature,
    PolicySpec,
    ReasonsFile,
    SchemaFile,
    TransformStep,
)
from scorer.errors import BundleError

if TYPE_CHECKING:
    from scorer.bundle.build import HeldOut
    from scorer.bundle.net import OnnxModel
    from scorer.bundle.rules import BundleRules
    from scorer.bundle.score_map import ScoreReference
    from scorer.bundle.write import WrittenBundle

_T = TypeVar("_T")


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BundleSection(_Section):
    """The bundle's name and kind, and the files of its models. Paths are relative to the TOML file."""

    name: str
    kind: Literal["score", "action"]
    model: Path
    voters: list[Path] = []
    members: list[Path] = []
    """Further models of a score bundle, which [ensemble] combines with the model."""
    output_index: int | None = None
    """Which output of the models is the score. Default: the first one of a forest; of an ONNX model the only
    one, or the second one of two."""
    golden_cases: int = Field(default=512, ge=256)
    sensitive: list[str] = []
    """Features whose values in the training data do not go into golden cases; `*` stands for all of them."""
    reasons: Path | None = None
    """JSON file with the codes and texts of reasons, in the format of a bundle's reasons.json."""
    seed: int = 0


class DataSection(_Section):
    """Parquet files with one column per feature."""

    training: Path
    validation: Path
    held_out: Path | None = None
    """The data to fit the calibration map on; default: the validation data."""


class CalibrationSection(_Section):
    """How the calibration map is fitted."""

    method: Literal["isotonic", "sigmoid"] = "isotonic"
    label: str
    """Column of the held-out data with the outcome, 0 or 1."""
    action: str | None = None
    """For action bundles: column of the held-out data with the id of the action that was taken."""


class ScoreMapSection(_Section):
    """The older model whose thresholds the new model keeps: either its scores or its bundle."""

    scores: Path | None = None
    """Parquet file with scores of the older model."""
    column: str = "score"
    """Column of that file."""
    bundle: Path | None = None
    """Bundle of the older model, which scores the validation data."""


class ListSection(_Section):
    """A list that conditions name. The path is relative to the TOML file."""

    file: Path | None = None
    type: Literal["string", "int"] = "string"
    external: bool = False
    minimum_version: int | None = Field(default=None, ge=1)


class FunctionSection(_Section):
    """A function in a WebAssembly module. The path is relative to the TOML file."""

    name: str
    module: Path
    parameters: list[str]
    export: str | None = None
    fuel: int = 10_000


class OnnxSection(_Section):
    """Settings of the nodes of ONNX models; see `OnnxModel`."""

    missing: FiniteFloat | Literal["nan"] | None = None
    link: Literal["identity", "sigmoid"] = "identity"


class RulesSection(_Section):
    """Rules of the bundle; see docs/rules.md."""

    file: Path
    lists: dict[str, ListSection] = {}
    salt: str | None = None


class LineageSection(_Section):
    """Lineage that cannot be derived from the data files; see `describe_lineage`."""

    code_version: str | None = None
    run_id: str | None = None
    metrics: dict[str, Any] = {}
    parameters: dict[str, Any] = {}
    importance: dict[str, FiniteFloat] = {}


class BuildSpec(_Section):
    """Content of a build specification file."""

    bundle: BundleSection
    data: DataSection
    features: list[Feature]
    action_features: list[Feature] = []
    steps: list[TransformStep] = []
    tables: dict[str, CategoryTable] = {}
    """The tables that steps name."""
    functions: list[FunctionSection] = []
    """The team's own functions, which steps and rules call."""
    thresholds: list[Band] = []
    policy: PolicySpec | None = None
    actions: Path | None = None
    """JSON file with the catalogue, in the format of a bundle's actions.json."""
    onnx: OnnxSection | None = None
    ensemble: Ensemble | None = None
    calibration: CalibrationSection | None = None
    score_map: ScoreMapSection | None = None
    rules: RulesSection | None = None
    lineage: LineageSection = LineageSection()

    @property
    def clear_features(self) -> list[str]:
        """Names of the features whose golden cases hold values of training rows."""
        sensitive = self.bundle.sensitive
        return [] if "*" in sensitive else [each.name for each in self.features if each.name not in sensitive]


def read_spec(path: Path) -> BuildSpec:
    """Read and check a build specification.

    Raises:
        BundleError: The file cannot be read or is not valid. The message has one line per error.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BundleError(f'"{path}" cannot be read: {error.strerror}; give a bundle\'s TOML file') from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BundleError(f'"{path}" is not valid TOML: {error}') from None
    try:
        spec = BuildSpec.model_validate(content)
    except ValidationError as error:
        mistakes = [f'"{path}": {".".join(map(str, e["loc"]))}: {e["msg"]}' for e in error.errors()]
        raise BundleError("\n".join(mistakes)) from None
    wrong = _contradictions(spec)
    if wrong:
        raise BundleError("\n".join(f'"{path}": {rule}' for rule in wrong))
    return spec


def build_from_spec(path: Path, output: Path) -> WrittenBundle:
    """Build the bundle that a TOML file describes.

    Args:
        path: The TOML file.
        output: The directory to create; it must not exist.

    Raises:
        BundleError: The file or its data are not valid, or the engine does not reproduce the model bit for
            bit.
    """
    from scorer.bundle.build import build_action_bundle, build_score_bundle
    from scorer.bundle.functions import CustomFunction
    from scorer.bundle.lineage import describe_lineage

    spec = read_spec(path)
    base = path.parent
    training = _table(base / spec.data.training)
    validation = _table(base / spec.data.validation)
    schema = SchemaFile(features=spec.features, action_features=spec.action_features)
    lineage = describe_lineage(
        base / spec.data.training,
        code_version=spec.lineage.code_version,
        run_id=spec.lineage.run_id,
        metrics=spec.lineage.metrics,
        parameters=spec.lineage.parameters,
        importance=spec.lineage.importance,
    )
    common: dict[str, Any] = {
        "name": spec.bundle.name,
        "model": _model(spec, base / spec.bundle.model),
        "schema": schema,
        "training": training,
        "validation": validation,
        "lineage": lineage,
        "steps": spec.steps,
        "tables": spec.tables,
        "functions": [
            CustomFunction(one.name, base / one.module, one.parameters, one.export, one.fuel)
            for one in spec.functions
        ],
        "output_index": spec.bundle.output_index or 0,
        "golden_cases": spec.bundle.golden_cases,
        "sensitive": spec.bundle.sensitive,
        "reasons": None if spec.bundle.reasons is None else _read_reasons(base / spec.bundle.reasons),
        "rules": _read_bundle_rules(spec.rules, base),
        "seed": spec.bundle.seed,
    }
    if spec.policy is None or spec.actions is None:
        held_out = _held_out(spec, base, validation, None)
        return build_score_bundle(
            output,
            bands=spec.thresholds,
            members=[_model(spec, base / member) for member in spec.bundle.members],
            ensemble=spec.ensemble,
            calibration=held_out,
            score_map=_older_scores(spec.score_map, base, validation),
            **common,
        )
    actions = _read_actions(base / spec.actions)
    return build_action_bundle(
        output,
        actions=actions,
        policy=spec.policy,
        voters=[base / voter for voter in spec.bundle.voters],
        calibration=_held_out(spec, base, validation, actions),
        **common,
    )


def _model(spec: BuildSpec, path: Path) -> Path | OnnxModel:
    """Return what the builder takes for the file of a model."""
    from scorer.bundle.net import OnnxModel, is_net

    if spec.bundle.kind != "score" or not is_net(path):
        return path
    settings = spec.onnx or OnnxSection()
    return OnnxModel(path, settings.missing, settings.link, spec.bundle.output_index)


def _contradictions(spec: BuildSpec) -> list[str]:
    wrong = []
    models = [spec.bundle.model, *spec.bundle.members]
    if spec.onnx and not any(model.suffix == ".onnx" for model in models):
        wrong.append("onnx: no model has the ending .onnx; remove the section")
    if spec.bundle.kind == "score":
        if not spec.thresholds:
            wrong.append("thresholds: a score bundle needs at least one; add [[thresholds]]")
        if (spec.ensemble is None) != (not spec.bundle.members):
            wrong.append("bundle.members and [ensemble] belong together; give both or none")
        if spec.score_map and (spec.score_map.scores is None) == (spec.score_map.bundle is None):
            wrong.append("score_map: give either the scores or the bundle of the older model")
        if spec.policy or spec.actions or spec.action_features or spec.bundle.voters:
            wrong.append("policy, actions, action_features and voters are for action bundles; remove them")
    else:
        if spec.policy is None or spec.actions is None:
            wrong.append(
                "an action bundle needs policy and actions; add [policy] and the path of the actions"
            )
        if spec.thresholds:
            wrong.append("thresholds are for score bundles; remove them")
        if spec.bundle.members or spec.ensemble or spec.score_map:
            wrong.append("members, ensemble and score_map are for score bundles; remove them")
        if spec.calibration and spec.calibration.action is None:
            wrong.append("calibration.action: name the column with the action that was taken")
    return wrong


def _table(path: Path) -> Any:
    import pyarrow
    from pyarrow import parquet

    try:
        return parquet.read_table(path)
    except FileNotFoundError:
        raise BundleError(f'data "{path}" is missing; give the path of a Parquet file') from None
    except (pyarrow.ArrowException, OSError) as error:
        raise BundleError(f'data "{path}" cannot be read as Parquet: {error}') from None


def _held_out(spec: BuildSpec, base: Path, validation: Any, actions: list[Action] | None) -> HeldOut | None:
    from scorer.bundle.build import HeldOut

    section = spec.calibration
    if section is None:
        return None
    data = validation if spec.data.held_out is None else _table(base / spec.data.held_out)
    taken = None
    if actions is not None and section.action is not None:
        index = {action.id: at for at, action in enumerate(actions)}
        ids = _column(data, section.action).to_pylist()
        unknown = next((name for name in ids if name not in index), None)
        if unknown is not None:
            raise BundleError(f'column "{section.action}": "{unknown}" is no action of the catalogue; add it')
        taken = [index[name] for name in ids]
    return HeldOut(data, _column(data, section.label).to_numpy(), taken, section.method)


def _older_scores(section: ScoreMapSection | None, base: Path, validation: Any) -> ScoreReference | None:
    from scorer.bundle.check import read_schema
    from scorer.bundle.columns import encode
    from scorer.bundle.loaded import Bundle
    from scorer.bundle.score_map import ScoreReference, read_scores

    if section is None:
        return None
    if section.scores is not None:
        return ScoreReference(read_scores(base / section.scores, section.column))
    older = base / (section.bundle or "")
    bundle = Bundle.load(older)
    return ScoreReference(bundle.score(encode(read_schema(older).features, validation)).scores)


def _column(table: Any, name: str) -> Any:
    if name not in table.column_names:
        raise BundleError(f'the held-out data has no column "{name}"; correct the name')
    return table[name]


def _read_actions(path: Path) -> list[Action]:
    return _read_json(path, "actions", list[Action])


def _read_bundle_rules(section: RulesSection | None, base: Path) -> BundleRules | None:
    from scorer.bundle.rules import ListFile, read_rules

    if section is None:
        return None
    lists: dict[str, ListFile | tuple[Path, str]] = {
        name: ListFile(one.file and base / one.file, one.type, one.external, one.minimum_version)
        for name, one in section.lists.items()
    }
    return replace(read_rules(base / section.file, lists), salt=section.salt)


def _read_reasons(path: Path) -> ReasonsFile:
    return _read_json(path, "reasons", ReasonsFile)


def _read_json(path: Path, what: str, kind: type[_T]) -> _T:
    try:
        return TypeAdapter(kind).validate_python(json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise BundleError(f'{what} "{path}" cannot be read: {error.strerror}') from None
    except json.JSONDecodeError as error:
        raise BundleError(f'{what} "{path}" is not valid JSON: {error}') from None
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise BundleError(f'{what} "{path}": {where}: {first["msg"]}') from None
