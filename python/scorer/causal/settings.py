"""The settings of a task: `[causal]` of a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from scorer.config.example import example as example_text
from scorer.config.source import SettingsSource

MOST_HORIZON: Final = 60


class CausalSection(BaseModel):
    """A table of the file: unknown keys are rejected, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CausalColumns(CausalSection):
    """Names of the columns of the tables."""

    unit: str = Field(default="unit", min_length=1, description="Identifier of the customer or merchant.")
    period: str = Field(
        default="period", min_length=1, description='The month: a date, or text as "2026-01".'
    )
    value: str = Field(default="value", min_length=1, description="The unit's value in the month: money.")
    currency: str = Field(
        default="", description="Currency of the value. All rows must have the same one. Empty: no column."
    )
    product: str = Field(
        default="product", description="Product of an adoption. Empty: there is one product only."
    )
    adopted: str = Field(
        default="adopted",
        min_length=1,
        description="Date of an adoption. Without `adoptions`, a column of DATA; empty cells: never.",
    )


class CausalSettings(CausalSection):
    """What is measured, and how."""

    adoptions: str = Field(
        default="",
        examples=["adoptions.parquet"],
        description="Table of adoptions (Parquet or CSV), relative to this file: unit, product, date. "
        "Empty: DATA has the date in the column `adopted`.",
    )
    product: str = Field(
        default="", description="The product. Empty: the only one. Others are looked at for chains."
    )
    currency: str = Field(default="", description='Currency of the values, for the report, such as "USD".')
    features: tuple[str, ...] = Field(
        default=(),
        examples=[["transactions", "disputes"]],
        description="Numeric columns of DATA that units are matched on, besides the value: monthly means.",
    )
    exact: tuple[str, ...] = Field(
        default=(),
        examples=[["country"]],
        description="Columns of DATA that do not change over time: neighbours have the same values.",
    )
    pre_months: int = Field(
        default=12, ge=3, le=MOST_HORIZON, description="Months before adoption that units are matched on."
    )
    horizons: tuple[int, ...] = Field(
        default=(3, 12),
        min_length=1,
        max_length=4,
        description="Months after adoption, with the month of adoption, over which value is accumulated.",
    )
    neighbours: int = Field(
        default=10, ge=1, le=50, description="Most units that are averaged for a synthetic control."
    )
    threshold: FiniteFloat = Field(
        default=0.25,
        gt=0,
        description="Greatest distance of a neighbour: root mean square difference of the matching "
        "variables, in standard deviations.",
    )
    value_weight: FiniteFloat = Field(
        default=2.0, gt=0, description="Weight of the value among the matching variables; others have 1."
    )
    cohort: Literal["quarter", "month", "all"] = Field(
        default="quarter",
        description="Adopters are reported by quarter or month of first adoption, too; all: together only.",
    )
    absent: Literal["zero", "reject"] = Field(
        default="zero", description="A month without a row of a unit: its value is 0, or an error."
    )
    negative: Literal["accept", "reject"] = Field(
        default="accept", description="Negative values, such as a loss: accepted, or an error."
    )
    most_controls: int = Field(
        default=2_000_000,
        ge=0,
        description="Most units that never adopted and are held in memory, drawn by a hash of their "
        "identifiers. 0: all.",
    )
    confidence: FiniteFloat = Field(default=0.95, gt=0.5, lt=1, description="Of the intervals.")
    replications: int = Field(default=999, ge=99, le=99_999, description="Draws of the bootstrap.")
    pre_difference: FiniteFloat = Field(
        default=1.0,
        gt=0,
        description="Greatest mean difference of the value before adoption, summed over `pre_months`.",
    )
    placebo_months: int = Field(
        default=3, ge=1, description="Months by which the placebo in time pretends an earlier adoption."
    )
    placebo_level: FiniteFloat = Field(
        default=0.01, gt=0, lt=0.5, description="Significance level of placebos and of the trend."
    )
    growth_level: FiniteFloat = Field(
        default=0.02,
        gt=0,
        lt=0.5,
        description="Significance level of a growth of the difference in the last `placebo_months` before "
        "adoption. Tested where the effect over the longest horizon excludes zero.",
    )
    balance: FiniteFloat = Field(
        default=0.1, gt=0, description="Greatest standardised difference of a matching variable."
    )
    least_matched: FiniteFloat = Field(
        default=0.8, gt=0, le=1, description="Smallest share of adopters with neighbours."
    )
    fewest_units: int = Field(
        default=30, ge=2, description="Fewest matched adopters, and effective number of controls."
    )
    chain: FiniteFloat = Field(
        default=0.05,
        gt=0,
        description="Greatest difference between adopters and controls in the share that adopts another "
        "product in the period before adoption or the longest horizon.",
    )
    least_gamma: FiniteFloat = Field(
        default=1.1,
        ge=1,
        description="Smallest odds ratio of hidden bias that a significant effect must withstand.",
    )
    seed: int = Field(default=1, ge=0, description="Of ties, the bootstrap and pretended adopters.")
    columns: CausalColumns = Field(default=CausalColumns(), description="Names of columns.")

    @model_validator(mode="after")
    def _consistent(self) -> CausalSettings:
        if any(not 1 <= one <= MOST_HORIZON for one in self.horizons):
            raise ValueError(f"horizons: each is between 1 and {MOST_HORIZON} months")
        if len(set(self.horizons)) < len(self.horizons):
            raise ValueError("horizons: a number of months is given twice; remove one")
        if self.placebo_months + 3 > self.pre_months:
            raise ValueError(
                f"placebo_months: {self.placebo_months} of {self.pre_months} pre_months leaves fewer than 3 "
                "months to match on; lower placebo_months"
            )
        names = [self.columns.value, *self.features, *self.exact, self.columns.unit, self.columns.period]
        if twice := sorted({one for one in names if names.count(one) > 1}):
            raise ValueError(f'the column "{twice[0]}" is used twice; give each column one use')
        return self


class CausalTask(CausalSection):
    """The whole file of a task."""

    causal: CausalSettings = CausalSettings()


def load(path: Path) -> CausalSettings:
    """Read the file of a task; paths in it start from its folder.

    Raises:
        InvalidSettingsError: With every fault found, each with its line.
    """
    found = SettingsSource.read(path, example="scorer causal config").validate(CausalTask).causal
    if found.adoptions:
        found = found.model_copy(update={"adoptions": str(path.resolve().parent / found.adoptions)})
    return found


def example() -> str:
    """Return a complete, commented file of a task."""
    head = "# Settings of `scorer causal`. Every key is at its default; comments show examples.\n"
    return example_text(CausalTask, head)
