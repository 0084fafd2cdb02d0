"""Limits of the calls of agents: rate, calls at the same time, duration; and their counters."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from scorer.release.access.attempts import Attempts
from scorer.release.errors import ThrottledError, TimedOutError

if TYPE_CHECKING:
    from scorer.release.agent_settings import AgentSettings

_AGENTS: Final = 10_000
"""Largest number of agents whose rates are kept; the oldest one is dropped first."""
EDGES: Final = (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0)
"""Upper limits of the histogram of durations, in seconds."""


class CallLimits:
    """Runs calls within the limits.

    A call that exceeds its time cannot be ended. The caller gets an error, and the call keeps its place among
    those that run until it ends, so that calls that hang never take more threads than `running`.

    Args:
        settings: The limits.
        clock: Returns monotonic seconds.
    """

    def __init__(self, settings: AgentSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._rates = Attempts(limit=settings.calls_per_minute, seconds=60.0, sources=_AGENTS, clock=clock)
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()

    @property
    def running(self) -> int:
        """Number of calls that run now."""
        with self._lock:
            return self._running.total()

    def run(self, agent: str, work: Callable[[], Any], seconds: float) -> Any:
        """Run a call in a thread of its own and return its result.

        Args:
            agent: Name of the agent, by which its calls are counted.
            work: The call.
            seconds: Time after which it is given up.

        Raises:
            ThrottledError: The agent calls too often, or too many calls run.
            TimedOutError: The call takes too long.
        """
        self._take(agent)
        done = threading.Event()
        result: list[Any] = []
        errors: list[BaseException] = []

        def perform() -> None:
            try:
                result.append(work())
            except BaseException as error:
                errors.append(error)
            finally:
                self._give_back(agent)
                done.set()

        threading.Thread(target=perform, name="agent-call", daemon=True).start()
        if not done.wait(seconds):
            raise TimedOutError(f"the tool took longer than {seconds:g} s; ask for less, or try again")
        if errors:
            raise errors[0]
        return result[0]

    def _take(self, agent: str) -> None:
        own = self._settings
        if wait := self._rates.wait(agent):
            raise ThrottledError(
                f"{own.calls_per_minute} calls a minute are the limit of an agent; try again in {wait:.0f} s",
                retry_after=max(1, round(wait)),
            )
        self._rates.failed(agent)
        with self._lock:
            if self._running[agent] >= own.calls_at_once:
                raise ThrottledError(
                    f"{own.calls_at_once} calls of this agent run now, as many as may; wait until one ends",
                    retry_after=1,
                )
            if self._running.total() >= own.running:
                raise ThrottledError(
                    f"{own.running} calls of agents run now, as many as may; try again in a moment",
                    retry_after=1,
                )
            self._running[agent] += 1

    def _give_back(self, agent: str) -> None:
        with self._lock:
            self._running[agent] -= 1
            if not self._running[agent]:
                del self._running[agent]


class CallCounters:
    """Counts calls of this process for Prometheus."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._results: Counter[tuple[str, str]] = Counter()
        self._buckets: Counter[float] = Counter()
        self._seconds = 0.0

    def count(self, tool: str, result: str, seconds: float) -> None:
        """Count a call. `tool` is the name of a tool or `unknown`, and `result` is a constant."""
        with self._lock:
            self._results[tool, result] += 1
            self._seconds += seconds
            for edge in EDGES:
                self._buckets[edge] += seconds <= edge

    def value(self, tool: str, result: str) -> int:
        """Return the number of calls of a tool with a result."""
        with self._lock:
            return self._results[tool, result]

    def lines(self, running: int) -> list[str]:
        """Return the counters in Prometheus' text format."""
        with self._lock:
            results, buckets, seconds = dict(self._results), dict(self._buckets), self._seconds
        total = sum(results.values())
        calls, taken = "scorer_platform_agent_calls_total", "scorer_platform_agent_call_seconds"
        return [
            f"# HELP {calls} Calls of agents' tools, by tool and result.",
            f"# TYPE {calls} counter",
            *(
                f'{calls}{{tool="{tool}",result="{result}"}} {n}'
                for (tool, result), n in sorted(results.items())
            ),
            f"# HELP {taken} Duration of calls of agents' tools, with rejected ones.",
            f"# TYPE {taken} histogram",
            *(f'{taken}_bucket{{le="{edge:g}"}} {buckets.get(edge, 0)}' for edge in EDGES),
            f'{taken}_bucket{{le="+Inf"}} {total}',
            f"{taken}_sum {seconds:.6f}",
            f"{taken}_count {total}",
            "# HELP scorer_platform_agent_calls_running Calls of agents' tools that run now.",
            "# TYPE scorer_platform_agent_calls_running gauge",
            f"scorer_platform_agent_calls_running {running}",
        ]
