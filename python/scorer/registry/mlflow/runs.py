"""Runs of an MLflow experiment, with their parameters, metrics and artifacts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from scorer.registry.mlflow import artifacts
from scorer.registry.mlflow.rest import MlflowRefusedError, Rest, now_ms

_BATCH = 100
_MAX_VALUE = 6000


class Run:
    """One run of an MLflow experiment.

    As a context manager it ends the run with the status FINISHED, or FAILED if an exception leaves the block.

    Args:
        rest: The server.
        identity: MLflow's id of the run.
        artifact_uri: Location of the run's artifacts.
        clock_ms: Returns the time in milliseconds since the Unix epoch.
    """

    def __init__(self, rest: Rest, identity: str, artifact_uri: str, clock_ms: Callable[[], int]) -> None:
        self._rest = rest
        self.id = identity
        self.artifact_uri = artifact_uri
        self._clock_ms = clock_ms

    @classmethod
    def start(cls, rest: Rest, experiment: str, name: str, *, clock_ms: Callable[[], int] = now_ms) -> Run:
        """Start a run.

        Args:
            rest: The server.
            experiment: Name of the experiment, which is created if it does not exist.
            name: Name of the run.
            clock_ms: Returns the time in milliseconds since the Unix epoch.

        Raises:
            RegistryUnavailableError: The server cannot be reached or its response is not MLflow's.
            MlflowRefusedError: MLflow rejects the request.
        """
        answer = rest.post(
            "/runs/create",
            experiment_id=_experiment(rest, experiment),
            run_name=name,
            start_time=clock_ms(),
        )
        try:
            info = answer["run"]["info"]
            return cls(rest, str(info["run_id"]), str(info["artifact_uri"]), clock_ms)
        except (KeyError, TypeError):
            raise rest.foreign() from None

    def tags(self, values: Mapping[str, Any]) -> None:
        """Set tags on the run."""
        self._batch("tags", [{"key": k, "value": _text(v)} for k, v in values.items()])

    def params(self, values: Mapping[str, Any]) -> None:
        """Set parameters of the run. MLflow rejects a later change of a parameter."""
        self._batch("params", [{"key": k, "value": _text(v)} for k, v in values.items()])

    def metrics(self, values: Mapping[str, Any], *, step: int = 0) -> None:
        """Record metrics of the run. Values that are not finite numbers are skipped: MLflow rejects them."""
        at = self._clock_ms()
        self._batch(
            "metrics",
            [
                {"key": k, "value": float(v), "timestamp": at, "step": step}
                for k, v in values.items()
                if isinstance(v, int | float) and math.isfinite(v)
            ],
        )

    def artifact(self, file: Path, folder: str = "") -> None:
        """Upload a file as an artifact of the run."""
        base = artifacts.proxied_path(self.artifact_uri, self._rest)
        self._rest.upload("/".join(filter(None, (base, folder, file.name))), file)

    def end(self, status: str = "FINISHED") -> None:
        """End the run with a status of MLflow: FINISHED, FAILED or KILLED."""
        self._rest.post("/runs/update", run_id=self.id, status=status, end_time=self._clock_ms())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.end()
            return
        try:
            self.end("FAILED")
        except Exception as second:  # the error of the block must be the one that is raised
            if error is not None:
                error.add_note(f"and the run could not be marked: {second}")

    def _batch(self, what: str, entries: list[dict[str, Any]]) -> None:
        for start in range(0, len(entries), _BATCH):
            self._rest.post("/runs/log-batch", run_id=self.id, **{what: entries[start : start + _BATCH]})


def _experiment(rest: Rest, name: str) -> str:
    for _ in range(2):
        try:
            return str(
                rest.get("/experiments/get-by-name", experiment_name=name)["experiment"]["experiment_id"]
            )
        except MlflowRefusedError as error:
            if error.code not in ("RESOURCE_DOES_NOT_EXIST", "RESOURCE_NOT_FOUND"):
                raise
        except (KeyError, TypeError):
            raise rest.foreign() from None
        try:
            return str(rest.post("/experiments/create", name=name)["experiment_id"])
        except MlflowRefusedError as error:
            if error.code != "RESOURCE_ALREADY_EXISTS":  # another process has just created it: get its id
                raise
        except KeyError:
            raise rest.foreign() from None
    raise rest.foreign()


def _text(value: Any) -> str:
    return str(value)[:_MAX_VALUE]
