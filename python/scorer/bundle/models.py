"""The JSON files of a bundle as models: what `docs/bundle-format.md` describes.

They give errors early and editors something to complete. The rules that need more than one
field (thresholds in order, floors that fit) are checked by the engine, which has the last word.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, FiniteFloat

FORMAT = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Feature(_Strict):
    """One feature of a schema."""

    name: str
    type: Literal["number", "category", "flag"] = "number"
    categories: list[str] = []
    """The dictionary of a category; a category's code is its position."""
    missing: Literal["allow", "refuse"] = "allow"
    unknown_category: Literal["refuse", "missing"] = "refuse"
    minimum: FiniteFloat | None = None
    maximum: FiniteFloat | None = None


class SchemaFile(_Strict):
    """``schema.json``: the columns of the forest's input, in order."""

    features: list[Feature]
    """What a request brings."""
    action_features: list[Feature] = []
    """The columns after those, filled from the catalogue."""

    @property
    def columns(self) -> list[Feature]:
        """Every column of the forest's input."""
        return [*self.features, *self.action_features]


class Action(_Strict):
    """One action of a bundle's catalogue, ``actions.json``."""

    id: str
    factors: dict[str, str] = {}
    features: list[FiniteFloat | None] = []
    """The action's own columns, as float32; None is missing, a category is its code."""
    attributes: dict[str, FiniteFloat] = {}
    """Quantities that caps refer to, such as a cost."""


class Band(_Strict):
    """Scores from here up to the next band's start have this label."""

    start: FiniteFloat = Field(validation_alias=AliasChoices("from", "start"), serialization_alias="from")
    label: str


class Cap(_Strict):
    """A price on an attribute of actions."""

    attribute: str
    lambda_: FiniteFloat = Field(
        validation_alias=AliasChoices("lambda", "lambda_"), serialization_alias="lambda"
    )
    limit: FiniteFloat | None = None


class PolicySpec(_Strict):
    """A policy: the rule with its own setting, floors, caps and the key of the draw."""

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
    """32 hexadecimal digits."""


class Log1p(_Strict):
    """Transform a value x to ln(1 + x)."""

    function: Literal["log1p"] = "log1p"
    feature: str


class Standardise(_Strict):
    """(x - mean) / scale."""

    function: Literal["standardise"] = "standardise"
    feature: str
    mean: FiniteFloat
    scale: FiniteFloat


TransformStep: TypeAlias = Annotated[Log1p | Standardise, Field(discriminator="function")]


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


class LinkNode(_Strict):
    """Margins to score, by the training library's own link."""

    kind: Literal["link"] = "link"
    input: str
    output: str
    index: int = 0


class CalibrateNode(_Strict):
    """Score to score, by a map of ``calibration.json``."""

    kind: Literal["calibrate"] = "calibrate"
    map: str
    input: str
    output: str


class OverlayNode(_Strict):
    """Score to score of every action, by ``overlay.json``."""

    kind: Literal["overlay"] = "overlay"
    file: str
    input: str
    output: str


class ThresholdNode(_Strict):
    """Program node that maps a score to a decision."""

    kind: Literal["threshold"] = "threshold"
    input: str
    output: str
    bands: list[Band]


class PolicyNode(_Strict):
    """Scores of every action to one action."""

    kind: Literal["policy"] = "policy"
    input: str
    output: str
    voters: list[str] = []
    policy: PolicySpec


Node: TypeAlias = Annotated[
    TransformNode | ForestNode | LinkNode | CalibrateNode | OverlayNode | ThresholdNode | PolicyNode,
    Field(discriminator="kind"),
]


class IsotonicMap(_Strict):
    """Of the model's prediction: linear between knots, constant beyond them."""

    method: Literal["isotonic"] = "isotonic"
    x: list[FiniteFloat]
    y: list[FiniteFloat]


class SigmoidMap(_Strict):
    """Platt scaling: 1 / (1 + exp(-(slope x + intercept))), of the margin."""

    method: Literal["sigmoid"] = "sigmoid"
    slope: FiniteFloat
    intercept: FiniteFloat


CalibrationMap: TypeAlias = Annotated[IsotonicMap | SigmoidMap, Field(discriminator="method")]


class CalibrationFile(_Strict):
    """Content of the file ``calibration.json`` of a bundle."""

    maps: dict[str, CalibrationMap]


Offsets: TypeAlias = dict[str, dict[str, FiniteFloat]]
"""Logit offsets by factor of the catalogue and the factor's level."""


class OverlaySpec(_Strict):
    """``overlay.json``: logit offsets per segment and factor level, for what moved since training.

    The offset of an action in segment ``s`` is ``everywhere[f][level]`` plus ``segments[s][f][level]``, with
    ``level`` the action's, summed over the factors ``f`` and clipped to ``[-limit, limit]``. A request whose
    segment is missing or not listed gets `everywhere` alone. It is added to the logit of a probability.
    """

    segment: str
    """A category of the context."""
    limit: FiniteFloat = Field(default=2.0, gt=0, le=10)
    everywhere: Offsets = {}
    segments: dict[str, Offsets] = {}


class Distribution(_Strict):
    """Histogram and percentiles of a model's scores."""

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
    """One file as the manifest lists it."""

    sha256: str
    bytes: int


def _unset(value: Any) -> bool:
    return not value


class Lineage(BaseModel):
    """What a bundle was made from; other fields are left alone."""

    model_config = ConfigDict(frozen=True, extra="allow")

    data_digest: str
    code_version: str
    library_versions: dict[str, str] = {}
    run_id: str = ""
    metrics: dict[str, Any] = {}
    parameters: dict[str, Any] = Field(default={}, exclude_if=_unset)
    """Algorithm and hyperparameters of training, by name."""
    importance: dict[str, FiniteFloat] = Field(default={}, exclude_if=_unset)
    """Importance of each feature as training measured it, 0 or above."""
    revision_of: str = Field(default="", exclude_if=_unset)
    """Digest of the bundle that this one is the next revision of."""
    revision: int = Field(default=0, exclude_if=_unset)
    """How many revisions lie between it and the bundle that was built."""
    revision_notes: dict[str, Any] = Field(default={}, exclude_if=_unset)
    """What the revision was made from, such as the window that its overlay was fitted on."""


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
    """A file of a bundle: readable, without fields that are not set."""
    return model.model_dump_json(indent=1, by_alias=True, exclude_none=True).encode() + b"\n"
