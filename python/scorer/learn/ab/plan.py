"""What is compared, fixed before the first decision: kept as one file, never changed."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from scorer.learn.ab.settings import AbSettings
from scorer.learn.errors import DataError

FILE = "plan.json"


class Arm(BaseModel):
    """One lane of the comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    lane: str = Field(min_length=1)
    bundle: str = Field(pattern=r"^sha256:[0-9a-f]{64}$")
    share: float = Field(gt=0, lt=1)


class AbPlan(BaseModel):
    """A comparison. `arms[0]` is the control, which everything is set back to."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checkpoint: str
    arms: tuple[Arm, ...] = Field(min_length=2)
    started_ms: int
    settings: AbSettings = AbSettings()
    reason: str = ""

    @model_validator(mode="after")
    def _shares_add_up(self) -> AbPlan:
        if len({arm.lane for arm in self.arms}) < len(self.arms):
            raise ValueError("two arms have the same lane; give each its own")
        if abs(sum(arm.share for arm in self.arms) - 1) > 1e-6:
            raise ValueError("the shares of the arms must add up to 1")
        return self

    @property
    def control(self) -> Arm:
        """What is served without the comparison."""
        return self.arms[0]

    @property
    def variants(self) -> tuple[Arm, ...]:
        """What is compared with it."""
        return self.arms[1:]

    def write(self, directory: Path) -> None:
        """Keeps it.

        Raises:
            DataError: there is one already: a plan that changes while it is read proves nothing.
        """
        from scorer.durable import write_atomically

        directory.mkdir(parents=True, exist_ok=True)
        file = directory / FILE
        if file.exists():
            raise DataError(f'"{file}" exists: a comparison is planned once; use another directory')
        write_atomically(file, self.model_dump_json(indent=2).encode() + b"\n")

    @staticmethod
    def read(directory: Path) -> AbPlan:
        """The plan of a directory."""
        file = directory / FILE
        try:
            return AbPlan.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            raise DataError(f'"{file}" does not exist; start one with `scorer learn ab start`') from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise DataError(
                f'"{file}": {where}: {first["msg"]}; restore it, the plan must not change'
            ) from None
