"""Models of a bundle's JSON files, which `docs/bundle-format.md` describes.

They check single fields early and support completion in editors. Rules that need several fields, such as the
order of thresholds and the sum of floors, are checked by the engine when a bundle is built or loaded.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    SerializerFunctionWrapHandler,
    model_serializer,
)

FORMAT = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Feature(_Strict):
    """One feature of a schema."""

    name: str
    type: Literal["number", "category", "flag"] = "number"
    categories: list[str] = []
    """The levels of a feature of type category. The code of a level is its position."""
    missing: Literal["allow", "refuse"] = "allow"
    """Whether a request may leave the feature out."""
    unknown_category: Literal["refuse", "missing"] = "refuse"
    """Whether a level that is not listed is rejected or treated as missing."""
    minimum: FiniteFloat | None = None
    """Least allowed value of a number."""
    maximum: FiniteFloat | None = None
    """Greatest allowed value of a number."""


class SchemaFile(_Strict):
    """``schema.json``: the columns of the forest's input, in order."""

    features: list[Feature]
    """The features of a request, which are the first columns."""
    action_features: list[Feature] = []
    """The columns after those, whose values come from the catalogue."""

    @property
    def columns(self) -> list[Feature]:
        """Every column of the forest's input."""
        return [*self.features, *self.action_features]


class Action(_Strict):
    """One action of a bundle's catalogue, ``actions.json``."""

    id: str
    factors: dict[str, str] = {}
    features: list[FiniteFloat | None] = []
    """Values of the action features, as float32: None for a missing value, the code for a category."""
    attributes: dict[str, FiniteFloat] = {}
    """Quantities by name that caps refer to, such as a cost."""


class Band(_Strict):
    """A label for the scores from `start` up to the next band's start."""

    start: FiniteFloat = Field(validation_alias=AliasChoices("from", "start"), serialization_alias="from")
    label: str


class Cap(_Strict):
    """A price (Lagrange multiplier) on an attribute of actions, which keeps its mean below a limit."""

    attribute: str
    lambda_: FiniteFloat = Field(
        validation_alias=AliasChoices("lambda", "lambda_"), serialization_alias="lambda"
    )
    limit: FiniteFloat | None = None


class PolicySpec(_Strict):
    """A policy: its rule with the rule's parameter, the floors, the caps and the salt of the draw."""

    rule: Literal["uniform", "epsilon_greedy", "softmax", "squarecb", "fastcb", "loss_ratio", "bagging"]
    epsilon: FiniteFloat | None = None
    inverse_temperature: FiniteFloat | None = None
    gamma: FiniteFloat | None = None
    exponent: FiniteFloat | None = None
    voters: int | None = None
    floor: FiniteFloat = 0.0
    action_floors: dict[str, FiniteFloat] = {}
    caps: list[Cap] = []
    salt: str
    """32 hexadecimal digits from which, with checkpoint and decision id, the draw is derived."""


class Log1p(_Strict):
    """Transform a value x to ln(1 + x)."""

    function: Literal["log1p"] = "log1p"
    feature: str
    output: str | None = None
    """Name of the column to add; None replaces the feature."""


class Standardise(_Strict):
    """Transform a value x to (x - mean) / scale."""

    function: Literal["standardise"] = "standardise"
    feature: str
    mean: FiniteFloat
    scale: FiniteFloat
    output: str | None = None
    """Name of the column to add; None replaces the feature."""


class Clip(_Strict):
    """Transform a value to the nearest one from `low` to `high`."""

    function: Literal["clip"] = "clip"
    feature: str
    low: FiniteFloat | None = None
    high: FiniteFloat | None = None
    output: str | None = None
    """Name of the column to add; None replaces the feature."""


class Bucket(_Strict):
    """Add a column with the number of edges at or below a value."""

    function: Literal["bucket"] = "bucket"
    feature: str
    edges: list[FiniteFloat]
    """Ascending edges. They are rounded to float32, as the values are."""
    output: str


class MissingFlag(_Strict):
    """Add a flag that is 1 where a feature of any type is missing."""

    function: Literal["missing"] = "missing"
    feature: str
    output: str


class Arithmetic(_Strict):
    """Add a column with the sum, difference or product of two numbers or flags."""

    function: Literal["add", "subtract", "multiply"]
    left: str
    right: str
    output: str


class FeatureRatio(_Strict):
    """Add a column with the quotient of two numbers or flags."""

    function: Literal["ratio"] = "ratio"
    left: str
    right: str
    zero: Literal["missing"] | FiniteFloat
    """The result, a number or a missing value, for a divisor of 0 or so near to 0 that the quotient is not
    finite in float32."""
    output: str


class TableLookup(_Strict):
    """Add a column with the number that a table of ``tables.json`` has for a category."""

    function: Literal["table"] = "table"
    feature: str
    table: str
    output: str


class DatePart(_Strict):
    """Add a column with a part of a time in seconds since 1970-01-01 00:00 UTC."""

    function: Literal["datepart"] = "datepart"
    feature: str
    part: Literal["hour", "weekday", "day"]
    """Hour 0 to 23, weekday 0 (Monday) to 6, or day of the month 1 to 31."""
    offset: int = 0
    """Seconds that are added to the time, such as 3600 for UTC+1."""
    output: str


class FunctionCall(_Strict):
    """Add a column with the result of a function of ``functions.json``. NaN stands for a missing value."""

    function: Literal["custom"] = "custom"
    name: str
    inputs: list[str]
    """Numbers or flags, one for each parameter of the function."""
    output: str


TransformStep: TypeAlias = Annotated[
    Log1p
    | Standardise
    | Clip
    | Bucket
    | MissingFlag
    | Arithmetic
    | FeatureRatio
    | TableLookup
    | DatePart
    | FunctionCall,
    Field(discriminator="function"),
]


class FunctionEntry(_Strict):
    """A function of a bundle in a WebAssembly module."""

    name: str
    file: str
    """The module, ``function-01.wasm`` to ``function-16.wasm``."""
    export: str | None = None
    """The name by which the module exports the function; None: `name`."""
    parameters: list[str]
    fuel: int = 10_000
    """The number of instructions that a call may execute."""


class FunctionsFile(_Strict):
    """Content of the file ``functions.json`` of a bundle."""

    functions: list[FunctionEntry]


class CategoryTable(_Strict):
    """A number for each category of a feature."""

    values: dict[str, FiniteFloat]
    default: FiniteFloat | None = None
    """The number for a missing category and for those that are not listed; None for a missing value."""


class TablesFile(_Strict):
    """Content of the file ``tables.json`` of a bundle."""

    tables: dict[str, CategoryTable]


class TransformNode(_Strict):
    """Program node that maps a row to a transformed row."""

    kind: Literal["transform"] = "transform"
    input: str
    output: str
    steps: list[TransformStep]


class ForestNode(_Strict):
    """Program node that maps a row to margins."""

    kind: Literal["forest"] = "forest"
    file: str
    input: str
    output: str


class OnnxNode(_Strict):
    """Program node that maps a row to a score, by a model in the ONNX format."""

    kind: Literal["onnx"] = "onnx"
    file: str
    input: str
    output: str
    index: int | None = None
    """Which value of the model's output is the score; None for the only one, or the second one of two."""
    link: Literal["identity", "sigmoid"] = "identity"
    """Function from the model's output to the score; "sigmoid" for a model that gives logits."""
    missing: FiniteFloat | Literal["nan"] | None = None
    """What the model reads in place of missing values: a number, or "nan" if it handles them itself."""


class LinkNode(_Strict):
    """Program node that maps margins to a score, by the link function of the training library."""

    kind: Literal["link"] = "link"
    input: str
    output: str
    index: int = 0


class CalibrateNode(_Strict):
    """Program node that maps a score or margin to a calibrated score, by a map of ``calibration.json``."""

    kind: Literal["calibrate"] = "calibrate"
    map: str
    input: str
    output: str


class ScoreMapNode(_Strict):
    """Program node that maps a score by ``score_map.json``."""

    kind: Literal["scoremap"] = "scoremap"
    file: str = "score_map.json"
    input: str
    output: str


class MeanNode(_Strict):
    """Program node that computes the weighted mean of scores, or of their logits."""

    kind: Literal["mean"] = "mean"
    inputs: list[str]
    weights: list[FiniteFloat] = []
    """One weight above 0 for each input; equal weights if the list is empty."""
    of: Literal["scores", "logits"] = "scores"
    output: str


class StackNode(_Strict):
    """Program node that computes a probability from scores by a logistic regression."""

    kind: Literal["stack"] = "stack"
    inputs: list[str]
    coefficients: list[FiniteFloat]
    intercept: FiniteFloat = 0.0
    of: Literal["scores", "logits"] = "logits"
    output: str


class SwitchCase(_Strict):
    """The score that a switch selects for some categories, or for a range of values."""

    input: str
    categories: list[str] = []
    start: FiniteFloat | None = Field(
        default=None, validation_alias=AliasChoices("from", "start"), serialization_alias="from"
    )
    """Least value of the range, inclusive."""
    end: FiniteFloat | None = Field(
        default=None, validation_alias=AliasChoices("to", "end"), serialization_alias="to"
    )
    """End of the range, exclusive."""


class SwitchNode(_Strict):
    """Program node that selects one of several scores by a feature of a row."""

    kind: Literal["switch"] = "switch"
    row: str = "row"
    feature: str
    cases: list[SwitchCase]
    default: str
    """The score for a missing value and for values that no case lists."""
    output: str


class OverlayNode(_Strict):
    """Program node that adds the overlay of ``overlay.json`` to the score of every action."""

    kind: Literal["overlay"] = "overlay"
    file: str
    input: str
    output: str


class RuleListEntry(_Strict):
    """File and type of a list that conditions name."""

    file: str | None = None
    """The file in the bundle. An external list may have none."""
    type: Literal["string", "int"] = "string"
    external: bool = False
    """Whether the newest version in the registry is read, which changes without another bundle."""
    minimum_version: int | None = None
    """The oldest version of an external list that the rules may read."""

    @model_serializer(mode="wrap")
    def _without_defaults(self, render: SerializerFunctionWrapHandler) -> dict[str, object]:
        # An engine that does not know external lists must be able to read the other ones.
        return {key: value for key, value in render(self).items() if value not in (None, False)}


class RulesNode(_Strict):
    """Program node that applies the rules of ``rules.toml``, directly before the last node."""

    kind: Literal["rules"] = "rules"
    file: str
    input: str
    """The slot of the score that the threshold reads; in an action bundle "row"."""
    output: str
    lists: dict[str, RuleListEntry] = {}
    salt: str
    """32 hexadecimal digits from which, with the request's id, roll-outs are derived."""


class ThresholdNode(_Strict):
    """Program node that maps a score to a decision."""

    kind: Literal["threshold"] = "threshold"
    input: str
    output: str
    bands: list[Band]


class PolicyNode(_Strict):
    """Program node that maps the scores of all actions to one action."""

    kind: Literal["policy"] = "policy"
    input: str
    output: str
    voters: list[str] = []
    eligible: str | None = None
    """The slot of the actions that rules leave eligible; None without rules."""
    policy: PolicySpec


Node: TypeAlias = Annotated[
    TransformNode
    | ForestNode
    | OnnxNode
    | LinkNode
    | CalibrateNode
    | ScoreMapNode
    | MeanNode
    | StackNode
    | SwitchNode
    | OverlayNode
    | RulesNode
    | ThresholdNode
    | PolicyNode,
    Field(discriminator="kind"),
]


class IsotonicMap(_Strict):
    """A piecewise linear map of the model's prediction, constant outside its knots."""

    method: Literal["isotonic"] = "isotonic"
    x: list[FiniteFloat]
    y: list[FiniteFloat]


class SigmoidMap(_Strict):
    """Platt scaling of the margin x: 1 / (1 + exp(-(slope x + intercept)))."""

    method: Literal["sigmoid"] = "sigmoid"
    slope: FiniteFloat
    intercept: FiniteFloat


CalibrationMap: TypeAlias = Annotated[IsotonicMap | SigmoidMap, Field(discriminator="method")]


class CalibrationFile(_Strict):
    """Content of the file ``calibration.json`` of a bundle."""

    maps: dict[str, CalibrationMap]


class ScoreMapFile(_Strict):
    """Content of the file ``score_map.json`` of a bundle: a piecewise linear map of scores.

    It is constant outside its knots.
    """

    x: list[FiniteFloat]
    """Scores at the knots, strictly ascending."""
    y: list[FiniteFloat]
    """The scores that they become, which do not descend."""


Offsets: TypeAlias = dict[str, dict[str, FiniteFloat]]
"""Logit offsets, by factor of the catalogue and level of the factor."""


class OverlaySpec(_Strict):
    """``overlay.json``: logit offsets per segment and factor level, for changes since training.

    The offset of an action in segment ``s`` is the sum over the factors ``f`` of ``everywhere[f][level]`` and
    ``segments[s][f][level]``, where ``level`` is the action's level of the factor. The sum is clipped to
    ``[-limit, limit]`` and added to the logit of the oracle's probability. For a request whose segment is
    missing or not listed, only `everywhere` is used.
    """

    segment: str
    """Name of the context feature, of type category, whose level is the segment."""
    limit: FiniteFloat = Field(default=2.0, gt=0, le=10)
    everywhere: Offsets = {}
    segments: dict[str, Offsets] = {}


class ReasonEntry(_Strict):
    """Code and texts of the reason that is given if a feature contributes to a score."""

    code: str
    """The code, such as "R04". Several features may have one code."""
    text: dict[str, str] = {}
    """Texts by language, such as "en"."""


class ReasonsFile(_Strict):
    """Content of the file ``reasons.json`` of a bundle: reasons by feature.

    A feature that is not listed has its own name as the code.
    """

    features: dict[str, ReasonEntry]


class Distribution(_Strict):
    """Histogram (`edges`, `counts`), mean and 101 percentiles (`quantiles`) of a model's scores."""

    count: int
    mean: FiniteFloat
    quantiles: list[FiniteFloat]
    edges: list[FiniteFloat]
    counts: list[int]


class ReferenceFile(_Strict):
    """Content of the file ``reference.json`` of a bundle."""

    training: Distribution
    validation: Distribution


class FileEntry(_Strict):
    """Hash and size in bytes of a file, as the manifest lists them."""

    sha256: str
    bytes: int


def _unset(value: Any) -> bool:
    return not value


class Lineage(BaseModel):
    """The origin of a bundle. Fields that are not listed here are kept unchanged."""

    model_config = ConfigDict(frozen=True, extra="allow")

    data_digest: str
    code_version: str
    library_versions: dict[str, str] = {}
    run_id: str = ""
    metrics: dict[str, Any] = {}
    parameters: dict[str, Any] = Field(default={}, exclude_if=_unset)
    """Algorithm and hyperparameters of training, by name."""
    importance: dict[str, FiniteFloat] = Field(default={}, exclude_if=_unset)
    """Importance of each feature in training, 0 or above."""
    labels: list[dict[str, Any]] = Field(default=[], exclude_if=_unset)
    """Label policy of each data file that `scorer learn label` wrote, with its moment, curves and counts."""
    revision_of: str = Field(default="", exclude_if=_unset)
    """Digest of the bundle that this bundle is a revision of."""
    revision: int = Field(default=0, exclude_if=_unset)
    """Number of the revision: 0 for a bundle that was built, 1 for its first revision."""
    revision_notes: dict[str, Any] = Field(default={}, exclude_if=_unset)
    """Notes on the revision, such as the time window that its overlay was fitted on."""


class Manifest(_Strict):
    """Content of the file ``manifest.json`` of a bundle."""

    format: Literal[1] = 1
    digest: str
    name: str
    kind: Literal["score", "action"]
    created_at: str
    program: list[Node]
    files: dict[str, FileEntry]
    lineage: Lineage


def to_json(model: BaseModel) -> bytes:
    """Return the content of a bundle's JSON file, indented and without fields that are None."""
    return model.model_dump_json(indent=1, by_alias=True, exclude_none=True).encode() + b"\n"
