"""Settings of drift detection: of the detection itself and of the monitor."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scorer.config.source import SettingsSource

WEEK: Final = 168
"""Hours of a week."""
LOOKS_PER_MONTH: Final = 720
"""Hours of 30 days; there is one look an hour."""


class DetectionSettings(BaseModel):
    """When a quantity counts as shifted, and when an alert opens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    windows_hours: tuple[int, ...] = Field(
        default=(6, 24),
        min_length=1,
        max_length=6,
        description="Lengths of the windows that end at a look, hours. Each is compared with the same hours "
        "of earlier weeks.",
    )
    weeks: int = Field(default=4, ge=2, le=12, description="Number of earlier weeks in that comparison.")
    history_days: int = Field(
        default=28,
        ge=7,
        le=56,
        description="Days of earlier looks from which the usual variation of a quantity is estimated. With "
        "less than a week of them a quantity is not judged by earlier weeks.",
    )
    least_rows: int = Field(
        default=300, ge=50, le=10_000_000, description="Rows of a window below which it is not judged."
    )
    least_psi: float = Field(
        default=0.05,
        ge=0,
        le=10,
        description="PSI against earlier weeks below which a shift is not reported, however sure.",
    )
    least_reference_psi: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="The same for a week against the reference, which finds gradual changes.",
    )
    least_rate: float = Field(
        default=0.01, ge=0, le=1, description="Change of a missing or unseen rate below which it is ignored."
    )
    least_ratio: float = Field(
        default=0.25,
        ge=0,
        le=10,
        description="Change of an outcome rate, relative to the earlier rate, below which it is ignored.",
    )
    alerts_per_month: float = Field(
        default=0.2,
        gt=0,
        le=100,
        description="Upper bound of the expected false alerts in 30 days of one lane. It is divided between "
        "all quantities, windows and looks.",
    )
    shifted_looks: int = Field(
        default=2, ge=1, le=48, description="k: shifted looks after which an alert opens."
    )
    of_looks: int = Field(default=3, ge=1, le=48, description="m: number of latest looks that k is of.")
    cool_down_hours: int = Field(
        default=72,
        ge=1,
        le=24 * 90,
        description="Hours after an alert of a lane in which further quantities are added to it instead of "
        "opening another one.",
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if any(not 1 <= hours <= WEEK for hours in self.windows_hours):
            raise ValueError(f"windows_hours: each length is from 1 to {WEEK} hours")
        if self.shifted_looks > self.of_looks:
            raise ValueError("shifted_looks is greater than of_looks; k of m requires k <= m")
        return self

    def alpha(self, quantities: int) -> float:
        """Return the false-alarm rate of one test.

        The budget of a month is divided by the number of tests in it: looks, quantities, and the windows with
        the comparison to the reference. By Bonferroni's inequality the expected number of false alarms is at
        most the budget, whatever the dependence between tests.

        Args:
            quantities: Number of quantities of the lane.
        """
        return self.alerts_per_month / (LOOKS_PER_MONTH * max(quantities, 1) * (len(self.windows_hours) + 1))


class DriftSettings(BaseModel):
    """Section `[drift]` of `platform.toml`, and the file of `scorer drift run`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="Whether drift is monitored.")
    segments: tuple[str, ...] = Field(
        default=(),
        max_length=8,
        description="Features whose categories, or bins of values, are segments, such as the issuer. Each "
        "segment is judged by its outcomes and its share of high scores.",
        examples=[["issuer", "country"]],
    )
    reference_rows: int = Field(
        default=5_000,
        ge=100,
        le=100_000,
        description="Number of first rows of a feature that determine its bins.",
    )
    reference_start: str = Field(
        default="",
        pattern=r"^(\d{4}-\d{2}-\d{2})?$",
        description="First day, UTC, of the four weeks that the last week is compared with. Empty: the "
        "first four weeks of the lane.",
        examples=["2026-03-02"],
    )
    keep_days: int = Field(
        default=190, ge=80, le=1_000, description="Days for which the counts of hours are kept."
    )
    remembered: int = Field(
        default=2_000_000,
        ge=1_000,
        le=100_000_000,
        description="Number of newest decisions that outcomes are added to and duplicates are recognised by.",
    )
    detection: DetectionSettings = Field(default_factory=DetectionSettings)


def load_settings(path: Path | None) -> DriftSettings:
    """Read the settings from a TOML file; None: every default.

    Raises:
        InvalidSettingsError: With every fault found, each with its line.
    """
    if path is None:
        return DriftSettings()
    return SettingsSource.read(path, example="docs/drift.md").validate(DriftSettings)
