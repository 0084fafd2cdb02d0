"""Settings of a load test, from command line options or from a case file."""

from __future__ import annotations

import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    field_validator,
    model_validator,
)

from scorer.loadtest.errors import LoadTestError


class MethodName(StrEnum):
    """Methods that a load test can call."""

    NOOP = "noop"
    SCORE = "score"
    SELECT_ACTION = "select_action"
    BATCH = "batch"


Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RateStep(BaseModel):
    """A step of the measured part with a constant load.

    Attributes:
        load: Load of the step as a multiple of the rate.
        seconds: Length of the step in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    load: NotNegative
    seconds: Positive


class LoadCaller(BaseModel):
    """A caller with its own connections.

    Attributes:
        name: Name of the caller in the report.
        load: Factor by which the load of a step is multiplied for this caller: one for all steps, or one per
            step.
        methods: The methods that it calls; default: all methods of the run.
        metadata: Metadata of its requests.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    load: tuple[NotNegative, ...] = Field(default=(1.0,), min_length=1)
    methods: tuple[MethodName, ...] = ()
    metadata: dict[str, str] = {}

    @field_validator("load", mode="before")
    @classmethod
    def _one_for_all(cls, value: object) -> object:
        return (value,) if isinstance(value, int | float) else value


class LoadSettings(BaseModel):
    """One load test.

    Attributes:
        target: "host:port" or "unix:///path".
        methods: The methods to call, with relative weights.
        checkpoints: The checkpoints to call; default: the only one of the kind that a method needs.
        features: Encoding of features in requests, "named" or "dense".
        rows: File with features (.parquet, .npy or .jsonl); default: features are generated from the
            checkpoint's schema.
        batch_rows: Number of rows of a `batch` request.
        rate: Requests per second.
        arrivals: "uniform" for equal intervals, "poisson" for independent arrivals at random times.
        seconds: Length of the measured part; default: the sum of the steps, or 10 s without steps. If both
            are given, the steps are scaled to this length.
        steps: Steps of different load; on the command line in the form "1x10,5x5" (load x seconds).
        callers: The callers; default: one that calls every method.
        warmup_seconds: Length of the unmeasured part before the measured part.
        connections: HTTP/2 connections of each caller.
        threads: Sending threads. One can send about 60,000 requests per second.
        max_outstanding: Largest number of requests without a reply; further requests count as errors.
        timeout_ms: Time limit of a request in milliseconds; later replies count as errors.
        deadline_ms: Deadline in the requests' metadata, in milliseconds; default: `timeout_ms`.
        cancel: Share of the requests that are cancelled on purpose, 0 to 1.
        cancel_within_ms: Latest time of a cancellation after sending, in milliseconds. The time is drawn
            uniformly.
        sla_ms: SLA in milliseconds for the verdict; default: that of the checkpoint.
        window_seconds: Length of the windows; default: 10 s for runs of 60 s or more, otherwise 1 s.
        max_lag_ms: Limit of the p99 of the generator's send lag in milliseconds, above which there is no
            verdict; default: a tenth of the SLA, at least 1 ms.
        payload_bytes: Size of the payload of a `noop` request.
        seed: Seed of arrivals, generated rows and cancellations.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    target: str = Field(min_length=1)
    methods: dict[MethodName, Positive] = Field(default={MethodName.SCORE: 1.0}, min_length=1)
    checkpoints: tuple[str, ...] = ()
    features: Literal["named", "dense"] = "named"
    rows: Path | None = None
    batch_rows: int = Field(default=100, ge=1)
    rate: float = Field(gt=0, le=1_000_000, allow_inf_nan=False)
    arrivals: Literal["uniform", "poisson"] = "uniform"
    seconds: Positive = 10.0
    steps: tuple[RateStep, ...] = ()
    callers: tuple[LoadCaller, ...] = ()
    warmup_seconds: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    connections: int = Field(default=4, ge=1, le=10_000)
    threads: int = Field(default=1, ge=1, le=64)
    max_outstanding: int = Field(default=10_000, ge=1)
    timeout_ms: float = Field(default=1000.0, ge=1, le=60_000)
    deadline_ms: Positive | None = None
    cancel: float = Field(default=0.0, ge=0, le=1)
    cancel_within_ms: Positive = 10.0
    sla_ms: Positive | None = None
    window_seconds: Positive | None = None
    max_lag_ms: Positive | None = None
    payload_bytes: int = Field(default=0, ge=0, le=1 << 20)
    seed: int = Field(default=1, ge=0, lt=1 << 63)

    @field_validator("methods", mode="before")
    @classmethod
    def _read_methods(cls, value: object) -> object:
        """Parse one name, "mix", or weights such as "score=8,select_action=2"."""
        if not isinstance(value, str):
            return value
        if value == "mix":
            return {MethodName.SCORE: 8.0, MethodName.SELECT_ACTION: 2.0}
        pairs = (part.partition("=") for part in value.split(","))
        return {name.strip(): weight or 1.0 for name, _, weight in pairs}

    @field_validator("steps", mode="before")
    @classmethod
    def _read_steps(cls, value: object) -> object:
        """Parse steps in the form "1x10,5x5"; leave a list of tables unchanged."""
        if not isinstance(value, str):
            return value
        pairs = (part.partition("x") for part in value.split(","))
        return [{"load": load.strip(), "seconds": seconds.strip()} for load, _, seconds in pairs]

    @model_validator(mode="wrap")
    @classmethod
    def _as_long_as_the_steps(
        cls, value: Any, handler: ModelWrapValidatorHandler[LoadSettings]
    ) -> LoadSettings:
        made = handler(value)
        if not made.steps:
            return made
        length = sum(step.seconds for step in made.steps)
        if "seconds" not in made.model_fields_set:
            return made.model_copy(update={"seconds": length})
        stretch = made.seconds / length
        steps = tuple(RateStep(load=step.load, seconds=step.seconds * stretch) for step in made.steps)
        return made.model_copy(update={"steps": steps})

    @property
    def window(self) -> float:
        """Length of the windows in seconds."""
        if self.window_seconds is not None:
            return self.window_seconds
        return 10.0 if self.seconds >= 60 else 1.0


def make_settings(values: dict[str, Any]) -> LoadSettings:
    """Return the settings for a mapping of option names to values.

    Raises:
        LoadTestError: Values are not valid. The message lists all errors in one line.
    """
    try:
        return LoadSettings.model_validate(values)
    except ValidationError as error:
        raise LoadTestError(_mistakes(error)) from None


def _mistakes(error: ValidationError) -> str:
    mistakes = []
    for found in error.errors(include_url=False):
        # For an error in a mapping's key, pydantic adds the marker "[key]" to the location.
        place = ".".join(str(part) for part in found["loc"] if part != "[key]")
        name = "method" + place.removeprefix("methods") if place.startswith("methods") else place
        if found["type"] == "missing":
            mistakes.append(f"{name}: is required")
        elif found["type"] == "extra_forbidden":
            mistakes.append(f"{name}: is no setting of a load test")
        elif place.startswith("methods.") and found["type"] == "enum":
            known = ", ".join([*MethodName, "mix"])
            unknown = f'method: "{found["input"]}" is unknown'
            mistakes.append(f'{unknown}; use {known}, or shares such as "score=8,select_action=2"')
        else:
            mistakes.append(f"{name}: {found['input']!r}: {found['msg'][0].lower()}{found['msg'][1:]}")
    return "; ".join(mistakes)


class CaseFile(BaseModel):
    """A load test in a file `loadtests/cases/<name>/case.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    goal: str
    load: dict[str, Any]


def case_file(path: Path) -> CaseFile:
    """Read a case from its file or its folder. Paths in the file are relative to its folder.

    Raises:
        LoadTestError: The file cannot be read or is not a case.
    """
    file = path / "case.toml" if path.is_dir() else path
    try:
        case = CaseFile.model_validate(tomllib.loads(file.read_text()))
    except FileNotFoundError:
        raise LoadTestError(f"{file}: no such case; a case is a folder with a case.toml") from None
    except OSError as error:
        raise LoadTestError(f"{file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise LoadTestError(f"{file}: {error}") from None
    except ValidationError as error:
        raise LoadTestError(f"{file}: {_mistakes(error)}") from None
    if isinstance(rows := case.load.get("rows"), str):
        return case.model_copy(update={"load": case.load | {"rows": str(file.parent / rows)}})
    return case
