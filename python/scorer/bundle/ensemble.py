"""Ensembles of a score bundle: one score from the scores of several models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, FiniteFloat

from scorer.bundle.models import MeanNode, StackNode, SwitchCase, SwitchNode
from scorer.errors import BundleError


class _Ensemble(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class MeanEnsemble(_Ensemble):
    """The weighted mean of the models' scores, or of their logits."""

    kind: Literal["mean"] = "mean"
    of: Literal["scores", "logits"] = "scores"
    weights: list[FiniteFloat] = []
    """One weight above 0 for each model, in their order; empty: equal weights."""


class StackEnsemble(_Ensemble):
    """A logistic regression on the models' scores, or on their logits."""

    kind: Literal["stack"] = "stack"
    of: Literal["scores", "logits"] = "logits"
    coefficients: list[FiniteFloat]
    """One coefficient for each model, in their order."""
    intercept: FiniteFloat = 0.0


class SegmentCase(_Ensemble):
    """A segment with a model of its own: categories of the feature, or a range of it."""

    model: int = Field(ge=0)
    """Number of the model: 0 for the first one, 1 for the first of the members."""
    categories: list[str] = []
    start: FiniteFloat | None = Field(
        default=None, validation_alias=AliasChoices("from", "start"), serialization_alias="from"
    )
    """Least value of the range, inclusive."""
    end: FiniteFloat | None = Field(
        default=None, validation_alias=AliasChoices("to", "end"), serialization_alias="to"
    )
    """End of the range, exclusive."""


class SwitchEnsemble(_Ensemble):
    """The score of one model, selected by a feature of the row."""

    kind: Literal["switch"] = "switch"
    feature: str
    """A category, or a number or flag that ranges are stated of."""
    cases: list[SegmentCase]
    default: int = Field(default=0, ge=0)
    """Number of the model for a missing value and for values that no case lists."""


Ensemble: TypeAlias = Annotated[MeanEnsemble | StackEnsemble | SwitchEnsemble, Field(discriminator="kind")]


def ensemble_node(
    ensemble: MeanEnsemble | StackEnsemble | SwitchEnsemble, slots: Sequence[str], row: str, output: str
) -> MeanNode | StackNode | SwitchNode:
    """Return the node that combines the scores of models.

    Args:
        ensemble: How the scores are combined.
        slots: The score slots of the models, in their order.
        row: The row slot that has the feature of a switch.
        output: The slot to write.

    Raises:
        BundleError: A segment names a model that does not exist, or a model is in no segment.
    """
    match ensemble:
        case MeanEnsemble(of=of, weights=weights):
            return MeanNode(inputs=list(slots), weights=weights, of=of, output=output)
        case StackEnsemble(of=of, coefficients=coefficients, intercept=intercept):
            return StackNode(
                inputs=list(slots), coefficients=coefficients, intercept=intercept, of=of, output=output
            )
        case SwitchEnsemble(feature=feature, cases=cases, default=default):
            used = {default, *(case.model for case in cases)}
            for number in sorted(used ^ set(range(len(slots)))):
                raise BundleError(
                    f"ensemble: model {number} is in no segment; add a case or remove the model"
                    if number < len(slots)
                    else f"ensemble: there is no model {number}, only 0 to {len(slots) - 1}; correct the case"
                )
            return SwitchNode(
                row=row,
                feature=feature,
                cases=[
                    SwitchCase(
                        input=slots[case.model], categories=case.categories, start=case.start, end=case.end
                    )
                    for case in cases
                ],
                default=slots[default],
                output=output,
            )
