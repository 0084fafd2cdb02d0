"""Building bundles from trained models."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from scorer import bridge
from scorer.bundle import golden
from scorer.bundle.calibrate import fit_isotonic, fit_sigmoid
from scorer.bundle.columns import added_columns, encode, transform
from scorer.bundle.computed import FEATURES, ComputedFeatures, features_file
from scorer.bundle.ensemble import MeanEnsemble, StackEnsemble, SwitchEnsemble, ensemble_node
from scorer.bundle.functions import CustomFunction, function_files
from scorer.bundle.loaded import Bundle
from scorer.bundle.models import (
    FORMAT,
    Action,
    Arithmetic,
    Band,
    Bucket,
    CalibrateNode,
    CalibrationFile,
    CategoryTable,
    Clip,
    Feature,
    FeatureRatio,
    ForestNode,
    FunctionCall,
    IsotonicMap,
    Lineage,
    LinkNode,
    Node,
    PolicyNode,
    PolicySpec,
    ReasonsFile,
    ReferenceFile,
    SchemaFile,
    ScoreMapFile,
    ScoreMapNode,
    SigmoidMap,
    TablesFile,
    ThresholdNode,
    TransformNode,
    TransformStep,
    to_json,
)
from scorer.bundle.net import NetSource, is_net, open_net
from scorer.bundle.rules import BundleRules, rules_node
from scorer.bundle.score_map import SCORE_MAP, ScoreReference, fit_score_map
from scorer.bundle.source import Margins, Rows, Source, open_source
from scorer.bundle.statistics import distribution
from scorer.bundle.tables import TABLES
from scorer.bundle.write import WrittenBundle, timestamp, write_bundle
from scorer.errors import BundleError

# Most rows (and, for action bundles, most row-action pairs) whose scores go into the reference statistics.
# More do not visibly change a histogram of 50 bins.
_REFERENCE_ROWS = 100_000
_REFERENCE_ACTION_ROWS = 400_000


@dataclass(frozen=True)
class HeldOut:
    """Data to fit a calibration map on. The model must not have been trained on it."""

    data: Any
    """A table with one column per feature, or encoded rows ``[n, features]``; see `encode`."""
    labels: npt.ArrayLike
    """The outcome of each row, 0 or 1, ``[n]``."""
    actions: npt.ArrayLike | None = None
    """For action bundles: the action that was taken, as its position in the catalogue, ``[n]``."""
    method: Literal["isotonic", "sigmoid"] = "isotonic"
    """The kind of map; see `fit_isotonic` and `fit_sigmoid`."""


@dataclass
class _Draft:
    """The fields of a manifest and the contents of the files, while a bundle is being built."""

    name: str
    kind: Literal["score", "action"]
    created_at: datetime | None
    lineage: Lineage
    schema: SchemaFile
    sources: list[Source | NetSource]
    steps: Sequence[TransformStep]
    tables: Mapping[str, CategoryTable]
    functions: Sequence[CustomFunction] = ()
    program: list[Node] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def head(self, end: Node) -> str:
        program = [*self.program, end]
        return json.dumps(
            {
                "format": FORMAT,
                "name": self.name,
                "kind": self.kind,
                "created_at": timestamp(self.created_at),
                "program": [
                    node.model_dump(mode="json", by_alias=True, exclude_none=True) for node in program
                ],
                "lineage": self.lineage.model_dump(mode="json"),
            },
            allow_nan=False,
        )

    def bundle(self, end: Node) -> bridge.RawBundle:
        return bridge.draft_bundle(self.head(end), self.files)

    def transformed(self, rows: Rows) -> Rows:
        """Return the rows that the forests read."""
        return transform(self.schema.columns, self.steps, rows, self.tables, self.functions)

    def expected(self, rows: Rows) -> npt.NDArray[np.float64]:
        """Return the margins ``[n, outputs]`` that the training libraries compute.

        Those of the forests come first, in program order, and then the outputs of the ONNX models.
        """
        seen = self.transformed(rows)
        ordered = sorted(self.sources, key=lambda source: isinstance(source, NetSource))
        return np.ascontiguousarray(np.concatenate([source.expected(seen) for source in ordered], axis=1))


def build_score_bundle(
    output: str | PathLike[str],
    *,
    name: str,
    model: Any,
    schema: SchemaFile,
    bands: Sequence[Band],
    training: Any,
    validation: Any,
    lineage: Lineage,
    members: Sequence[Any] = (),
    ensemble: MeanEnsemble | StackEnsemble | SwitchEnsemble | None = None,
    calibration: IsotonicMap | SigmoidMap | HeldOut | None = None,
    score_map: ScoreMapFile | ScoreReference | None = None,
    steps: Sequence[TransformStep] = (),
    tables: Mapping[str, CategoryTable] | None = None,
    functions: Sequence[CustomFunction] = (),
    margins: Margins | None = None,
    output_index: int = 0,
    golden_cases: int = 512,
    sensitive: Collection[str] = (),
    reasons: ReasonsFile | None = None,
    rules: BundleRules | None = None,
    computed: ComputedFeatures | None = None,
    created_at: datetime | None = None,
    seed: int = 0,
) -> WrittenBundle:
    """Build a bundle that returns a score and the label of its band.

    Args:
        output: The directory to create; it must not exist.
        name: The bundle's name, such as "fraud-checkout".
        model: See `scorer.bundle.source.open_source`; or an `OnnxModel`, or the path of an .onnx file.
        schema: What a request brings, in the order of the model's columns.
        bands: Decision thresholds in ascending order, the first from 0.
        training: The data trained on: reference scores and golden rows come from it. See `encode`.
        validation: Data the model has not seen, for reference scores.
        lineage: Where the bundle comes from; see `describe_lineage`.
        members: Further models of the same columns, whose scores the ensemble combines with that of `model`.
        ensemble: How the scores of `model` and `members` are combined; needed if there are members. The score
            of an ensemble gives no reasons.
        calibration: A fitted map (isotonic of the model's prediction, sigmoid of its margin), held-out data
            to fit one on, or None to use the model's prediction as it is. That of an ensemble is isotonic, of
            the combined score.
        score_map: A static map of the score, or the scores of an older model, whose thresholds the new model
            keeps: the map is then fitted on them and on the new model's scores for the validation data.
        steps: Functions of features in front of the forests; the models were trained on `transform`ed rows.
        tables: The tables that steps name.
        functions: The team's own functions, which steps and rules call by name.
        margins: What golden cases are compared with, instead of the library's own prediction.
        output_index: Which output of a model with several is the score.
        golden_cases: At least 256.
        sensitive: Names of features whose values in the training data do not go into golden cases; `*` stands
            for all features. Values that the model and the schema have anyway take their place.
        reasons: Codes and texts of the reasons of scores. Only a bundle whose model states the weights of its
            nodes gives reasons.
        rules: Rules that change decisions. They are checked against the schema and the bands.
        computed: The feature set whose features the server reads, and the columns that they fill. The
            training data has these columns as well.
        created_at: Default: now. The same inputs and time give the same digest.
        seed: For sampling golden rows.

    Raises:
        BundleError: The inputs do not match each other, or the engine does not reproduce the model's margins
            bit for bit.
    """
    if schema.action_features:
        raise BundleError("schema: a score bundle has no action_features; move them to features")
    if (ensemble is None) != (not members):
        raise BundleError("ensemble: members and the ensemble belong together; give both or none")
    columns = (*(feature.name for feature in schema.columns), *added_columns(steps))
    sources = [_open(model, columns, margins), *(_open(member, columns) for member in members)]
    draft = _start(
        name, "score", schema, sources, steps, tables or {}, lineage, created_at, computed, functions
    )
    known, unseen = encode(schema.features, training), encode(schema.features, validation)
    if ensemble is not None:
        score = _add_ensemble(draft, ensemble, output_index, calibration)
        if reasons is not None:
            raise BundleError("reasons: no single forest explains an ensemble's score; build it without")
    else:
        if isinstance(calibration, HeldOut):
            calibration = _fit(draft, calibration, encode(schema.features, calibration.data), output_index)
        score, _ = _add_nodes(draft, output_index, calibration)
        _add_reasons(draft, reasons)
    if score_map is not None:
        score = _add_score_map(draft, score_map, score, unseen)
    end = ThresholdNode(input=_add_rules(draft, rules, score) or score, output="decision", bands=list(bands))
    bundle = Bundle(draft.bundle(end))
    random = np.random.default_rng(seed)
    rows = _golden_rows(draft, known, golden_cases, random, sensitive)
    reference = ReferenceFile(
        training=distribution(bundle.score(_subset(known, _REFERENCE_ROWS, random)).scores),
        validation=distribution(bundle.score(_subset(unseen, _REFERENCE_ROWS, random)).scores),
    )
    return _finish(Path(output), draft, end, rows, None, reference)


def build_action_bundle(
    output: str | PathLike[str],
    *,
    name: str,
    model: Any,
    schema: SchemaFile,
    actions: Sequence[Action],
    policy: PolicySpec,
    training: Any,
    validation: Any,
    lineage: Lineage,
    voters: Sequence[Any] = (),
    calibration: IsotonicMap | SigmoidMap | HeldOut | None = None,
    steps: Sequence[TransformStep] = (),
    tables: Mapping[str, CategoryTable] | None = None,
    functions: Sequence[CustomFunction] = (),
    margins: Margins | None = None,
    output_index: int = 0,
    golden_cases: int = 256,
    sensitive: Collection[str] = (),
    reasons: ReasonsFile | None = None,
    rules: BundleRules | None = None,
    computed: ComputedFeatures | None = None,
    created_at: datetime | None = None,
    seed: int = 0,
) -> WrittenBundle:
    """Build a bundle that chooses an action.

    Args:
        output: The directory to create; it must not exist.
        name: The bundle's name.
        model: The oracle, P(reward | context, action), trained on context and action features side by side.
        schema: Context features, and the action features that the catalogue fills.
        actions: The catalogue; its order is that of every mask and pmf.
        policy: From scores to probabilities.
        training: Contexts trained on.
        validation: Contexts the model has not seen.
        lineage: Where the bundle comes from.
        voters: For bagging: the ensemble members, models of the same columns. List the oracle again to let it
            vote as well.
        calibration: Of the oracle's output; members vote uncalibrated. Held-out data names the action taken.
        steps: Functions of features in front of every forest. A column that is added from features of the
            context, or of context and action, makes the server run the program once per action.
        tables: The tables that steps name.
        functions: The team's own functions, which steps and rules call by name.
        margins: What golden cases of the oracle are compared with.
        output_index: Which output of a model with several is the reward.
        golden_cases: At least 256.
        sensitive: Names of context features whose values do not go into golden cases.
        reasons: Codes and texts of the reasons of expected rewards, as in `build_score_bundle`.
        rules: Rules that restrict the eligible actions, checked against schema and catalogue.
        computed: A feature set whose features fill columns of the context, as in `build_score_bundle`.
        created_at: Default: now.
        seed: For sampling golden rows and eligible sets.

    Raises:
        BundleError: The inputs do not match each other, or the engine does not reproduce a model's margins
            bit for bit.
    """
    sources = [open_source(model, margins), *(open_source(voter) for voter in voters)]
    draft = _start(
        name, "action", schema, sources, steps, tables or {}, lineage, created_at, computed, functions
    )
    draft.files["actions.json"] = _actions_file(actions)
    known, unseen = encode(schema.features, training), encode(schema.features, validation)
    own = _action_rows(schema, actions)
    if isinstance(calibration, HeldOut):
        calibration = _fit(draft, calibration, _rows_of_taken(schema, calibration, own), output_index)
    score, members = _add_nodes(draft, output_index, calibration)
    _add_reasons(draft, reasons)
    eligible = _add_rules(draft, rules, "row")
    end = PolicyNode(input=score, output="action", voters=members, eligible=eligible, policy=policy)
    bundle = Bundle(draft.bundle(end))
    random = np.random.default_rng(seed)
    rows = _golden_rows(draft, known, golden_cases, random, sensitive)
    masks = golden.sample_masks(len(rows), len(actions), random)
    count = max(256, _REFERENCE_ACTION_ROWS // (len(actions) * len(sources)))
    reference = ReferenceFile(
        training=distribution(_chosen_rewards(bundle, _subset(known, count, random))),
        validation=distribution(_chosen_rewards(bundle, _subset(unseen, count, random))),
    )
    return _finish(Path(output), draft, end, rows, masks, reference, own)


def preview_action_bundle(
    *,
    model: Any,
    schema: SchemaFile,
    actions: Sequence[Action],
    policy: PolicySpec,
    voters: Sequence[Any] = (),
    calibration: IsotonicMap | SigmoidMap | None = None,
) -> Bundle:
    """Build an action bundle in memory, to evaluate candidates.

    It has no golden cases, so it cannot be deployed.

    Args:
        model: The oracle; see `build_action_bundle`.
        schema: Context features and action features.
        actions: The catalogue.
        policy: The policy.
        voters: For bagging: the ensemble members.
        calibration: A fitted map, or None.

    Raises:
        BundleError: The inputs do not match each other.
    """
    sources = [open_source(model), *(open_source(voter) for voter in voters)]
    lineage = Lineage(data_digest="none: a preview", code_version="preview")
    draft = _start("preview", "action", schema, sources, (), {}, lineage, None)
    draft.files["actions.json"] = _actions_file(actions)
    score, members = _add_nodes(draft, 0, calibration)
    return Bundle(draft.bundle(PolicyNode(input=score, output="action", voters=members, policy=policy)))


def _start(
    name: str,
    kind: Literal["score", "action"],
    schema: SchemaFile,
    sources: Sequence[Source | NetSource],
    steps: Sequence[TransformStep],
    tables: Mapping[str, CategoryTable],
    lineage: Lineage,
    created_at: datetime | None,
    computed: ComputedFeatures | None = None,
    functions: Sequence[CustomFunction] = (),
) -> _Draft:
    names = (*(feature.name for feature in schema.columns), *added_columns(steps))
    for source in sources:
        if isinstance(source, NetSource):
            # The engine compares its inputs with the columns.
            continue
        if source.forest.num_features != len(names):
            raise BundleError(
                f"{source.library} model takes {source.forest.num_features} features, "
                f"the schema has {len(names)} with the columns that steps add; "
                "build both from the same columns"
            )
        if source.names and source.names != names:
            at = next(i for i, pair in enumerate(zip(source.names, names, strict=True)) if pair[0] != pair[1])
            raise BundleError(
                f'{source.library} model: column {at} is "{source.names[at]}", the schema has "{names[at]}"; '
                "put the schema in the model's order"
            )
    draft = _Draft(name, kind, created_at, lineage, schema, list(sources), steps, tables, functions)
    draft.files.update(function_files(functions))
    draft.files["schema.json"] = to_json(schema)
    if computed is not None:
        draft.files[FEATURES] = features_file(computed, schema)
    if tables:
        draft.files[TABLES] = to_json(TablesFile(tables=dict(tables)))
    return draft


def _scores(draft: _Draft, slot: str, rows: Rows) -> npt.NDArray[np.float64]:
    """Return the scores of a slot of a program that is not complete yet, ``[n]``."""
    end = ThresholdNode(input=slot, output="decision", bands=[Band(start=0.0, label="any")])
    return np.asarray(Bundle(draft.bundle(end)).score(rows).scores, dtype=np.float64)


def _add_row(draft: _Draft) -> str:
    """Add the transform node, if there are steps; return the slot of the row that the forests read."""
    if not draft.steps:
        return "row"
    draft.program.append(TransformNode(input="row", output="inputs", steps=list(draft.steps)))
    return "inputs"


def _add_ensemble(
    draft: _Draft,
    ensemble: MeanEnsemble | StackEnsemble | SwitchEnsemble,
    output_index: int,
    calibration: IsotonicMap | SigmoidMap | HeldOut | None,
) -> str:
    """Add the nodes that combine the scores of all models; return the slot of the result."""
    row, slots = _add_row(draft), []
    for number, source in enumerate(draft.sources):
        slots.append(_add_model(draft, number, source, row, output_index))
    score = "combined"
    draft.program.append(ensemble_node(ensemble, slots, row, score))
    if isinstance(calibration, SigmoidMap) or (
        isinstance(calibration, HeldOut) and calibration.method == "sigmoid"
    ):
        raise BundleError("calibration: sigmoid takes the margin of one model; use isotonic for an ensemble")
    if isinstance(calibration, HeldOut):
        rows = encode(draft.schema.features, calibration.data)
        calibration = fit_isotonic(_scores(draft, score, rows), calibration.labels)
    if calibration is not None:
        draft.files["calibration.json"] = to_json(CalibrationFile(maps={"main": calibration}))
        draft.program.append(CalibrateNode(map="main", input=score, output="score"))
        score = "score"
    return score


def _add_score_map(
    draft: _Draft, score_map: ScoreMapFile | ScoreReference, score: str, validation: Rows
) -> str:
    """Add the score map, fitted on the scores of the validation data if it is not given."""
    if isinstance(score_map, ScoreReference):
        score_map = fit_score_map(_scores(draft, score, validation), score_map.scores)
    draft.files[SCORE_MAP] = to_json(score_map)
    draft.program.append(ScoreMapNode(input=score, output="mapped"))
    return "mapped"


def _open(model: Any, columns: tuple[str, ...], margins: Margins | None = None) -> Source | NetSource:
    """Open a model of a score bundle."""
    return open_net(model, columns, margins) if is_net(model) else open_source(model, margins)


def _add_net(draft: _Draft, number: int, source: NetSource, row: str, *, link: bool = True) -> str:
    """Add an ONNX model; return the slot of its score."""
    node = source.node(number, row, link=link)
    draft.files[node.file] = source.content
    draft.program.append(node)
    return node.output


def _add_model(draft: _Draft, number: int, source: Source | NetSource, row: str, output_index: int) -> str:
    """Add a forest and its link, or an ONNX model; return the slot of the prediction."""
    if isinstance(source, NetSource):
        return _add_net(draft, number, source, row)
    suffix = f"-{number:02}" if number else ""
    _add_margins(draft, number, source, row)
    draft.program.append(
        LinkNode(input=f"margins{suffix}", output=f"probability{suffix}", index=output_index)
    )
    return f"probability{suffix}"


def _add_margins(draft: _Draft, number: int, source: Source, row: str) -> str:
    """Add a forest; return the slot of its margins."""
    file = f"member-{number:02}.bin" if number else "forest.bin"
    output = f"margins-{number:02}" if number else "margins"
    draft.files[file] = source.forest.to_bytes()
    draft.program.append(ForestNode(file=file, input=row, output=output))
    return output


def _add_nodes(
    draft: _Draft, output_index: int, calibration: IsotonicMap | SigmoidMap | None
) -> tuple[str, list[str]]:
    """Add the nodes that compute the scores; return the oracle's slot and those of the members."""
    row = _add_row(draft)
    if calibration is not None:
        draft.files["calibration.json"] = to_json(CalibrationFile(maps={"main": calibration}))
    score, members = "probability", []
    for number, source in enumerate(draft.sources):
        if number or not isinstance(calibration, SigmoidMap):
            given = _add_model(draft, number, source, row, output_index)
        elif isinstance(source, NetSource):
            given = _add_net(draft, number, source, row, link=False)
        else:
            given = _add_margins(draft, number, source, row)
        if number:
            members.append(given)
        elif calibration is not None:
            score = "score"
            draft.program.append(CalibrateNode(map="main", input=given, output=score))
    return score, members


def _add_reasons(draft: _Draft, reasons: ReasonsFile | None) -> None:
    """Add the files that reasons need; none of them if the model states no weights of its nodes."""
    source = draft.sources[0]
    if isinstance(source, NetSource):
        if reasons is not None:
            raise BundleError("reasons: no forest explains the score of an ONNX model; build it without")
        return
    covers = source.forest.covers()
    if covers is not None:
        draft.files["covers.bin"] = covers
    if reasons is not None:
        if covers is None:
            raise BundleError(
                f"reasons: the {source.library} model states no usable weights of its nodes, so "
                "the bundle cannot give reasons; build it without, or from the original model"
            )
        draft.files["reasons.json"] = to_json(reasons)


def _add_rules(draft: _Draft, rules: BundleRules | None, source: str) -> str | None:
    """Add the rules node and its files; return the slot that it writes, or None without rules."""
    if rules is None:
        return None
    node, files = rules_node(rules, source, "ruled")
    draft.program.append(node)
    draft.files.update(files)
    return node.output


def _fit(draft: _Draft, held_out: HeldOut, rows: Rows, output_index: int) -> IsotonicMap | SigmoidMap:
    """Fit a calibration map on the model's outputs for the held-out rows, which have all columns."""
    source = draft.sources[0]
    sigmoid = held_out.method == "sigmoid"
    if isinstance(source, NetSource):
        # A sigmoid map takes the output of the model itself.
        alone = replace(draft, program=[], files=dict(draft.files))
        slot = _add_net(alone, 0, source, _add_row(alone), link=not sigmoid)
        scores = _scores(alone, slot, rows)
        return (fit_sigmoid if sigmoid else fit_isotonic)(scores, held_out.labels)
    forest = source.forest
    seen = draft.transformed(rows)
    if sigmoid:
        if forest.num_outputs != 1:
            raise BundleError(
                f"calibration: sigmoid takes the margin of a model with one output, this one has "
                f"{forest.num_outputs}; use isotonic"
            )
        return fit_sigmoid(forest.predict(seen, margin=True), held_out.labels)
    predictions = forest.predict(seen)
    return fit_isotonic(predictions.reshape(len(rows), -1)[:, output_index], held_out.labels)


def _rows_of_taken(schema: SchemaFile, held_out: HeldOut, action_rows: Rows) -> Rows:
    """Return the held-out contexts, each with the features of the action that was taken."""
    rows = encode(schema.features, held_out.data)
    if held_out.actions is None:
        raise BundleError("calibration: held-out data of an action bundle needs `actions`, the ones taken")
    taken = np.asarray(held_out.actions)
    if taken.shape != (len(rows),) or taken.min() < 0 or taken.max() >= len(action_rows):
        raise BundleError(
            f"calibration: actions must be {len(rows)} positions from 0 below {len(action_rows)}; "
            "give one per held-out row"
        )
    return np.ascontiguousarray(np.concatenate([rows, action_rows[taken]], axis=1))


def _golden_rows(
    draft: _Draft, data: Rows, count: int, random: np.random.Generator, sensitive: Collection[str]
) -> Rows:
    if len(data) == 0:
        raise BundleError("training: no rows; golden cases are sampled from them")
    transformed = {
        step.feature
        for step in draft.steps
        if step.output is None and not isinstance(step, Arithmetic | FeatureRatio | FunctionCall)
    }
    features = draft.schema.features
    names = {feature.name for feature in features}
    if unknown := sorted(set(sensitive) - names - {"*"}):
        raise BundleError(
            f'sensitive: "{unknown[0]}" is no feature of the schema; correct the name or remove it'
        )
    # Thresholds of a transformed feature are no values of the feature.
    splits = [
        (column, threshold)
        for source in draft.sources
        for column, threshold in source.splits()
        if column < len(features) and features[column].name not in transformed
    ]
    splits += _edges_of_steps(draft.steps, features)
    withheld = names if "*" in sensitive else set(sensitive)
    return golden.sample_rows(features, data, splits, count, random, withheld)


def _edges_of_steps(steps: Sequence[TransformStep], features: Sequence[Feature]) -> list[tuple[int, float]]:
    """Return the values of features at which a bucket or clip changes, as (column, value)."""
    columns = {feature.name: at for at, feature in enumerate(features)}
    edges: list[tuple[str, float]] = []
    for step in steps:
        if isinstance(step, Bucket):
            edges += [(step.feature, edge) for edge in step.edges]
        elif isinstance(step, Clip):
            edges += [(step.feature, limit) for limit in (step.low, step.high) if limit is not None]
    return [(columns[name], edge) for name, edge in edges if name in columns]


def _finish(
    output: Path,
    draft: _Draft,
    end: Node,
    rows: Rows,
    masks: npt.NDArray[np.bool_] | None,
    reference: ReferenceFile,
    action_rows: Rows | None = None,
) -> WrittenBundle:
    packed = None
    whole = rows
    if masks is not None and action_rows is not None:
        case, action = np.nonzero(masks)
        whole = np.ascontiguousarray(np.concatenate([rows[case], action_rows[action]], axis=1))
        packed = np.packbits(masks, axis=1, bitorder="little").tobytes()
    raw = draft.bundle(end)
    draft.files["golden.bin"] = bridge.build_golden(raw, rows, packed, draft.expected(whole))
    draft.files["reference.json"] = to_json(reference)
    manifest = bridge.seal_manifest(draft.head(end), draft.files)
    digest = write_bundle(output, {**draft.files, "manifest.json": manifest})
    return WrittenBundle(output, digest)


def _actions_file(actions: Sequence[Action]) -> bytes:
    lines = [json.dumps(action.model_dump(mode="json"), ensure_ascii=False) for action in actions]
    return ("[\n" + ",\n".join(lines) + "\n]\n").encode()


def _action_rows(schema: SchemaFile, actions: Sequence[Action]) -> Rows:
    values = [[np.nan if value is None else value for value in action.features] for action in actions]
    return np.asarray(values, dtype=np.float32).reshape(len(actions), len(schema.action_features))


def _chosen_rewards(bundle: Bundle, rows: Rows) -> npt.NDArray[np.float64]:
    """Return the expected reward of one drawn action per row, which is what decision records contain."""
    pmf, rewards = bundle.evaluate(rows)
    # The draws use evenly spaced points instead of random numbers, so the same data give the same result.
    points = (np.arange(len(rows)) + 0.5) / len(rows)
    drawn = (np.cumsum(pmf, axis=1) < points[:, None]).sum(axis=1).clip(max=pmf.shape[1] - 1)
    chosen: npt.NDArray[np.float64] = rewards[np.arange(len(rows)), drawn]
    return chosen


def _subset(rows: Rows, count: int, random: np.random.Generator) -> Rows:
    if len(rows) == 0:
        raise BundleError("reference data: no rows; give training and validation data")
    if len(rows) <= count:
        return rows
    return rows[np.sort(random.choice(len(rows), count, replace=False))]
