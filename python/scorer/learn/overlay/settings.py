"""`[overlay]`: how what moved since training is learned."""

from __future__ import annotations

from pydantic import Field, FiniteFloat

from scorer.learn.section import LearnSection


class OverlaySettings(LearnSection):
    """The overlay between two generations; see docs/overlay.md."""

    segment: str = Field(default="issuer", description="The context's category that offsets are kept for.")
    family: str = Field(
        default="three_ds",
        description='The action factor by whose values outcomes take longer or shorter; "": none does.',
    )
    everywhere: FiniteFloat = Field(
        default=0.15,
        gt=0,
        le=5,
        description="Prior standard deviation of an offset that holds in every segment, in log-odds.",
    )
    within: FiniteFloat = Field(
        default=0.25, gt=0, le=5, description="The same of an offset that holds in one segment."
    )
    limit: FiniteFloat = Field(default=3.0, gt=0, le=10, description="Largest offset served, in log-odds.")
    half_life_hours: FiniteFloat = Field(
        default=168.0, gt=0, description="Evidence is worth half after this long ..."
    )
    half_life_outcomes: FiniteFloat = Field(
        default=5000.0,
        gt=0,
        description="... or after this many outcomes of its segment, whichever is sooner.",
    )
    quicker: FiniteFloat = Field(
        default=8.0,
        gt=1,
        description="A second belief forgets so many times sooner, and takes over where it is right.",
    )
    every_minutes: FiniteFloat = Field(default=5.0, gt=0, description="Between fits.")
    window_hours: FiniteFloat = Field(
        default=72.0, gt=0, description="After which no outcome comes any more."
    )
    quantile: FiniteFloat = Field(
        default=0.7,
        gt=0,
        lt=1,
        description="Share of each kind of outcome that a decision waits for before it counts.",
    )
    harm: FiniteFloat = Field(
        default=1000.0,
        gt=1,
        description="Evidence that switches it off: outcomes between false alarms, on average.",
    )
    help: FiniteFloat = Field(default=20.0, gt=1, description="Evidence that switches it on again.")
    allowance: FiniteFloat = Field(
        default=0.005,
        ge=0,
        description="Nats an outcome that are no harm: actions chosen for their score disappoint a little.",
    )

    @property
    def every_ms(self) -> int:
        """Milliseconds between two fits of the overlay."""
        return round(self.every_minutes * 60_000)
