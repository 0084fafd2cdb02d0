"""Settings of a load test, from options or from a case file."""

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
    """A stretch of the measured part.

    Attributes:
        load: Its load as a multiple of the rate.
        seconds: Its length.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    load: NotNegative
    seconds: Positive


class LoadCaller(BaseModel):
    """A caller with connections of its own.

    Attributes:
        name: In the report.
        load: On top of the step's, as a multiple of the rate: for all steps, or one for each.
        methods: Which of the run's methods it calls; all by default.
        metadata: Headers of its requests.
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
        methods: What to call, with relative weights.
        checkpoints: Which to call; left out, the only one of the kind that a method needs.
        features: "named" or "dense": how requests carry features.
        rows: File to take features from (.parquet, .npy or .jsonl); without it they are
            made up from the checkpoint's schema.
        batch_rows: Rows of one `batch` request.
        rate: Requests per second.
        arrivals: Evenly, or at random as independent shoppers arrive.
        seconds: Length of the measured part; 10 by default, or the sum of the steps, which are stretched
            to it.
        steps: Stretches of different load; on the command line "1x10,5x5": loads and seconds.
        callers: The callers; by default one that calls every method.
        warmup_seconds: Length of the unmeasured part before it.
        connections: HTTP/2 connections of each caller.
        threads: Sending threads; one is enough to some 60,000 requests per second.
        max_outstanding: Requests without a reply at a time; beyond that they are errors.
        timeout_ms: Time limit of a request in milliseconds; later replies are errors.
        deadline_ms: Deadline that requests carry, in milliseconds; default: `timeout_ms`.
        cancel: Share of the requests that are cancelled on purpose.
        cancel_within_ms: Latest time of a cancellation after the send, in milliseconds; drawn uniformly.
        sla_ms: SLA in milliseconds that judges the run, in place of the checkpoint's.
        window_seconds: Length of the windows; 10 s from a minute on, otherwise 1 s.
        max_lag_ms: p99 of the generator's own send lag in milliseconds above which there is no verdict; by
            default a tenth of the SLA, at least 1 ms.
        payload_bytes: Size of a `noop` request's payload.
        seed: Of arrivals, generated rows and cancellations.
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
        """One name, "mix", or "score=8,select_action=2"."""
        if not isinstance(value, str):
            return value
        if value == "mix":
            return {MethodName.SCORE: 8.0, MethodName.SELECT_ACTION: 2.0}
        pairs = (part.partition("=") for part in value.split(","))
        return {name.strip(): weight or 1.0 for name, _, weight in pairs}

    @field_validator("steps", mode="before")
    @classmethod
    def _read_steps(cls, value: object) -> object:
        """A list of tables, or in short "1x10,5x5"."""
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
    """Settings from options; every mistake in one line."""
    try:
        return LoadSettings.model_validate(values)
    except ValidationError as error:
        raise LoadTestError(_mistakes(error)) from None


def _mistakes(error: ValidationError) -> str:
    mistakes = []
    for found in error.errors(include_url=False):
        # A method's own key carries a marker of pydantic's.
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
    """A load test kept as a file: `loadtests/cases/<name>/case.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str
    goal: str
    load: dict[str, Any]


def case_file(path: Path) -> CaseFile:
    """Reads a case from its file or its folder; its paths are relative to the folder."""
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
