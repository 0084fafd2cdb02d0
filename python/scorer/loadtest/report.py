"""The generator's report, typed. All times are whole microseconds unless a name says otherwise."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LatencySummary(_Frozen):
    """Figures of one histogram (three significant digits)."""

    count: int
    min: int
    mean: float
    p50: int
    p90: int
    p99: int
    p999: int
    max: int


class MethodReport(_Frozen):
    """One method's part of a run."""

    name: str
    requests: int
    errors: int
    latency_us: LatencySummary


class WindowReport(_Frozen):
    """One window of a run; requests belong to the window that they should have been sent in."""

    start: float
    intended: int
    misses: int
    errors: int
    fallbacks: int
    latency_us: LatencySummary


class StepReport(_Frozen):
    """One caller's part of a step: `rate` was due per second, `requests` were due and not called off.

    `misses` were late or not answered, `fallbacks` in time but not by the model.
    """

    start: float
    seconds: float
    rate: float
    requests: int
    misses: int
    errors: int
    fallbacks: int
    latency_us: LatencySummary

    @property
    def goodput(self) -> float:
        """Requests per second that were answered within the SLA."""
        return (self.requests - self.misses) / self.seconds


class CallerReport(_Frozen):
    """One caller's part of a run, step by step."""

    name: str
    steps: tuple[StepReport, ...]


class Report(_Frozen):
    """A whole run.

    Attributes:
        config: What the generator was told.
        requests: Requests that the schedule had in the measured part.
        sent: Those not lost to the limit on outstanding requests.
        answered: Those answered, by model or fallback.
        misses: Those not answered, or later than the SLA.
        errors: Not answered, by gRPC status or the generator's own word (`overflow`, `not_connected`,
            `client_timeout`, `malformed_reply`, `refused_stream`, `stream_reset`, `connection_lost`).
        cancelled: Called off on purpose before a reply came; no misses.
        fallbacks: Answered by a fallback, by reason.
        latency_us: From the intended send time to the reply.
        model_latency_us: The same of the model's answers alone.
        send_lag_us: From the intended to the actual send time: the generator's own health.
        server_exec_us: The server's figure for evaluating the bundle.
        curve: (share, microseconds) along the latency distribution.
        methods: By method.
        callers: By caller and step.
        windows: In order of time.
        interrupted: The run was ended early.
    """

    config: dict[str, object]
    requests: int
    sent: int
    answered: int
    misses: int
    errors: dict[str, int]
    cancelled: int
    fallbacks: dict[str, int]
    latency_us: LatencySummary
    model_latency_us: LatencySummary
    send_lag_us: LatencySummary
    server_exec_us: LatencySummary
    curve: tuple[tuple[float, int], ...]
    methods: tuple[MethodReport, ...]
    callers: tuple[CallerReport, ...]
    windows: tuple[WindowReport, ...]
    interrupted: bool


class LoadProgress(_Frozen):
    """What is known once per second during a run."""

    elapsed: float
    warming_up: bool
    finished: int
    errors: int
    fallbacks: int
    send_lag_p99_us: int
    latency_us: LatencySummary
