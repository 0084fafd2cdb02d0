"""Settings of the comparison of versions over time at a checkpoint of the platform."""

from __future__ import annotations

from pydantic import Field

from scorer.learn.comparison.settings import ComparisonSettings
from scorer.learn.labels.settings import LabelSettings


class CheckpointComparison(ComparisonSettings):
    """How the platform compares versions of a checkpoint over time."""

    labels: LabelSettings | None = Field(
        default=None,
        description="Label policy as in learn.toml. Default: `outcome` is the only kind, a decision waits "
        "for `matured_hours`, and after that it counts as negative.",
        examples=[{"kinds": [{"kind": "chargeback"}], "maturity": 0.95}],
    )

    def of_weeks(self, weeks: int | None) -> ComparisonSettings:
        """Return the settings without the policy, with a number of weeks; None: the configured one."""
        own = {name: getattr(self, name) for name in ComparisonSettings.model_fields}
        return ComparisonSettings(**own | ({} if weeks is None else {"weeks": weeks}))
