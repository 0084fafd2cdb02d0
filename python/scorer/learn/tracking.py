"""Training tracked in MLflow: a run per step, with what it was done with, what came out, and its pages.

Over the same REST client as the registry; no ``mlflow`` package. Tracking is a record, never a
condition: a server that is away costs a warning, not the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from scorer.errors import ScorerError
from scorer.learn.section import LearnSection

if TYPE_CHECKING:
    from scorer.learn.schedule.generation import RunReport

ARTIFACTS = ("evaluation.json", "published.json", "verdict/verdict.json", "verdict/report.html")
_OF_STEP = {"evaluate": ARTIFACTS[:1], "publish": ARTIFACTS[1:2], "gate": ARTIFACTS[2:]}


class TrackingSettings(LearnSection):
    """Where training runs are recorded: an MLflow server."""

    url: str | None = Field(
        default=None,
        pattern=r"^https?://[^\s@/]+(/\S*)?$",
        description="An MLflow server; credentials: MLFLOW_TRACKING_TOKEN, or _USERNAME and _PASSWORD.",
        examples=["http://127.0.0.1:5000"],
    )
    experiment: str = Field(default="scorer/learning", min_length=1, description="Name of the experiment.")


class Tracking:
    """Records runs; does nothing where no server is set."""

    def __init__(self, settings: TrackingSettings) -> None:
        self._settings = settings

    def steps(self, ran: RunReport) -> list[str]:
        """Records every step that was done just now; returns what went wrong, in words."""
        warnings = []
        for done in ran.steps:
            if done.state == "done":
                files = [ran.folder / name for name in _OF_STEP.get(done.step, ())]
                tags = {"scorer.generation": ran.folder.name, "scorer.step": done.step}
                says = {**done.says, "seconds": done.seconds}
                warning = self.record(f"{ran.folder.name} {done.step}", says, tags, files)
                warnings += [] if warning is None else [warning]
        return warnings

    def record(
        self, name: str, values: Mapping[str, Any], tags: Mapping[str, str], files: list[Path]
    ) -> str | None:
        """One finished run: numbers as metrics, everything else as parameters, files as artifacts.

        Returns:
            Why it could not be recorded, or None.
        """
        if self._settings.url is None:
            return None
        from scorer.registry.mlflow.rest import Rest
        from scorer.registry.mlflow.runs import Run

        flat = dict(_flat(values))
        numbers = {k: v for k, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        try:
            rest = Rest(self._settings.url)
            with Run.start(rest, self._settings.experiment, name) as run:
                run.tags(tags)
                run.params({key: value for key, value in flat.items() if key not in numbers})
                run.metrics(numbers)
                for file in files:
                    if file.is_file():
                        run.artifact(file)
        except (ScorerError, OSError) as error:
            return f"not tracked: {error}"
        return None


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        # MLflow's keys: letters, digits and _ - . / : and spaces.
        name = prefix + "".join(c if c.isalnum() or c in "_-./: " else "_" for c in str(key))
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value
