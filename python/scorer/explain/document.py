"""The JSON document of a global explanation. `docs/global-explanations.md` describes its fields."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

FORMAT: Final = 1

Text = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(ge=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ExplainedData(_Strict):
    """The rows that an explanation was computed from."""

    source: Text
    """Names of the files or the table, without directories; ``query`` for a SQL query."""
    seen: Count
    """Rows that were read."""
    refused: Count
    """Rows among them that the bundle's schema rejects. They are left out."""
    used: Annotated[int, Field(ge=1)]
    """Rows of the random sample that everything was computed from."""
    digest: Text
    """SHA-256 of the encoded sample."""


class ExplanationSettings(_Strict):
    """Limits of a global explanation. Its cost grows with each of them."""

    rows: int = Field(default=2000, ge=1, le=100_000)
    """Rows of the sample."""
    contributions: int = Field(default=1000, ge=1, le=100_000)
    """Rows of the sample for which exact contributions are computed."""
    features: int = Field(default=20, ge=1, le=200)
    """Features with curves: the most important ones."""
    points: int = Field(default=20, ge=2, le=200)
    """Points of a curve."""
    interacting: int = Field(default=8, ge=0, le=30)
    """Features whose pairs are examined: the most important ones."""
    interaction_rows: int = Field(default=100, ge=2, le=1000)
    """Rows for interactions. The cost grows with the square."""
    depth: int = Field(default=3, ge=1, le=5)
    """Depth of the surrogate tree."""
    resamples: int = Field(default=200, ge=20, le=10_000)
    """Resamples of the bootstrap."""
    seed: int = Field(default=0, ge=0, le=2**63 - 1)
    """Seed of the sample, the bootstrap and the split for the surrogate tree."""


class FeatureImportance(_Strict):
    """How much a feature moves the margin."""

    feature: Text
    mean: FiniteFloat | None = None
    """Mean absolute exact contribution; None: the bundle has no covers."""
    low: FiniteFloat | None = None
    """Lower end of the interval of the mean, 95 %, by the percentile bootstrap over rows."""
    high: FiniteFloat | None = None
    """Upper end of the interval."""
    splits: Count
    """Nodes of the forest that split on the feature."""
    cover: FiniteFloat | None = None
    """Sum of the covers of these nodes; None: the bundle has no covers."""
    gain: FiniteFloat | None = None
    """Importance that training measured, such as gain; None: the lineage does not state it."""


class DependencePoint(_Strict):
    """A point of a partial dependence curve."""

    value: FiniteFloat | None
    """Value of the feature, the code of a category, or None for a missing value."""
    label: Text
    rows: Count
    """Rows of the sample with this value, or between this and the previous point."""
    mean: FiniteFloat
    """Mean of the explained quantity over the sample if every row has this value."""
    low: FiniteFloat
    """Quantile 0.1 of the individual curves at this value."""
    median: FiniteFloat
    """Quantile 0.5 of the individual curves."""
    high: FiniteFloat
    """Quantile 0.9 of the individual curves."""
    score: FiniteFloat | None = None
    """Mean of the score; None: the explained quantity is the expected reward."""


class LocalEffect(_Strict):
    """A point of the curve of accumulated local effects."""

    value: FiniteFloat
    label: Text
    effect: FiniteFloat
    """Accumulated effect at the value. The mean over the rows is 0."""
    rows: Count
    """Rows of the interval that ends at the value."""


class FeatureDependence(_Strict):
    """How the explained quantity depends on a feature."""

    feature: Text
    type: Literal["number", "category", "flag"]
    points: Annotated[list[DependencePoint], Field(min_length=1, max_length=201)]
    effects: Annotated[list[LocalEffect], Field(max_length=201)]
    """Accumulated local effects; empty for categories, which have no order, and for constant features."""


class PairInteraction(_Strict):
    """How much the joint effect of two features differs from the sum of their own effects."""

    first: Text
    second: Text
    strength: FiniteFloat
    """Root mean square of the difference, in the unit of the explained quantity."""
    share: FiniteFloat
    """Friedman's H: the root of the share of the joint effect's variance, between 0 and 1."""


class SurrogateNode(_Strict):
    """A node of the surrogate tree. A leaf has no feature."""

    rows: Count
    value: FiniteFloat
    """Mean of the explained quantity over the node's rows."""
    label: Text | None = None
    """The most frequent decision of the node's rows; None for action bundles."""
    feature: Text | None = None
    threshold: FiniteFloat | None = None
    """Of a number or flag: rows below it go left."""
    level: Text | None = None
    """Of a category: rows with this level go left."""
    missing_left: bool = False
    left: int | None = None
    """Index of the left child."""
    right: int | None = None


class SurrogateTree(_Strict):
    """A small tree that imitates the bundle."""

    depth: int
    nodes: Annotated[list[SurrogateNode], Field(min_length=1, max_length=63)]
    """The root comes first, and children come after their parents."""
    fitted: Count
    """Rows that the tree was fitted on."""
    tested: Count
    """Other rows, on which its fidelity was measured."""
    r_squared: FiniteFloat | None
    """Share of the variance of the explained quantity that the tree explains; None: not measurable."""
    error: FiniteFloat | None
    """Mean absolute difference of tree and bundle."""
    agreement: FiniteFloat | None = None
    """Share of rows with the bundle's decision; None for action bundles and without rows to test."""

    @model_validator(mode="after")
    def _is_tree(self) -> SurrogateTree:
        parents: set[int] = set()
        for at, node in enumerate(self.nodes):
            parts = (node.feature, node.left, node.right)
            if all(part is None for part in parts):
                continue
            if node.feature is None or node.left is None or node.right is None:
                raise ValueError(f"node {at} has a part of a split; give feature, left and right, or none")
            if (node.threshold is None) == (node.level is None):
                raise ValueError(f"node {at} needs either a threshold or a level")
            for child in (node.left, node.right):
                if not at < child < len(self.nodes) or child in parents:
                    raise ValueError(f"node {at} has the child {child}, which does not make a tree")
                parents.add(child)
        return self


class GlobalExplanation(_Strict):
    """A global explanation of a bundle."""

    format: Literal[1] = 1
    bundle: Text
    """Digest of the bundle."""
    name: Text
    kind: Literal["score", "action"]
    quantity: Literal["margin", "expected_reward"]
    """What curves, interactions and the surrogate tree explain."""
    action: Text | None = None
    """Action whose expected reward is explained; None for score bundles."""
    created_at: Text
    data: ExplainedData
    settings: ExplanationSettings
    expectation: FiniteFloat | None
    """Expectation of the margin over the training rows; None: the bundle has no covers."""
    explained: Count
    """Rows whose exact contributions were computed."""
    importance: Annotated[list[FeatureImportance], Field(max_length=1 << 20)]
    """Every column of the forest, the most important first."""
    dependence: Annotated[list[FeatureDependence], Field(max_length=200)]
    interactions: Annotated[list[PairInteraction], Field(max_length=500)]
    """Every examined pair, the strongest first."""
    surrogate: SurrogateTree
    notes: Annotated[list[Text], Field(max_length=50)]
    """What a reader must know, one sentence each."""
