"""Models of the generator's report.

Fields with the suffix `_us` are in microseconds, those of `LatencySummary` are whole microseconds, and
`start`, `seconds` and `elapsed` are in seconds.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LatencySummary(_Frozen):
    """Figures of one histogram, in microseconds with three significant digits."""

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
    """One window of a run. A request belongs to the window in which it should have been sent."""

    start: float
    intended: int
    misses: int
    errors: int
    fallbacks: int
    latency_us: LatencySummary


class StepReport(_Frozen):
    """One caller's part of a step.

    Attributes:
        start: Start of the step in seconds since the start of the measured part.
        seconds: Length of the step.
        rate: Requests per second that were to be sent.
        requests: Requests that were to be sent and were not cancelled on purpose.
        misses: Requests that were answered late or not at all.
        errors: Requests that were not answered.
        fallbacks: Requests that a fallback answered.
        latency_us: Latency of the answered requests.
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
        config: The generator's configuration.
        requests: Requests that were to be sent in the measured part.
        sent: Requests that were sent, that is, not dropped by the limit on outstanding requests.
        answered: Requests that the model or a fallback answered.
        misses: Requests that were not answered, or later than the SLA.
        errors: Numbers of requests that were not answered, by gRPC status or by the generator's reason
            (`overflow`, `not_connected`, `client_timeout`, `malformed_reply`, `refused_stream`,
            `stream_reset`, `connection_lost`).
        cancelled: Requests that were cancelled on purpose before a reply; they are not misses.
        fallbacks: Numbers of requests that a fallback answered, by reason.
        latency_us: Time from the intended send time to the reply.
        model_latency_us: The same for the answers of the model only.
        send_lag_us: Time from the intended to the actual send time. A high lag means that the generator is
            overloaded and the run is not valid.
        server_exec_us: Time for evaluating the bundle, as the server reports it.
        curve: Points (share, microseconds) of the latency distribution.
        methods: Figures by method.
        callers: Figures by caller and step.
        windows: Figures by window, in order of time.
        interrupted: Whether the run was ended early.
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
    """Figures of a run in progress, about once per second."""

    elapsed: float
    warming_up: bool
    finished: int
    errors: int
    fallbacks: int
    send_lag_p99_us: int
    latency_us: LatencySummary
