"""Payments through `scorer.Client`: score, select an action, simulate the outcome, report it.

Each thread takes a block of payments at a time. It scores them one by one, applies the rules for eligible
actions at that risk, selects an action for each, simulates the outcome and reports both outcomes.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from examples.columns import named_row
from examples.demo.errors import DemoError
from examples.fraud.transactions import Transactions
from examples.simulators.payments import Contexts, Payments
from examples.simulators.task import CONTEXT, context_rows, mask_bytes
from scorer.bundle import Feature
from scorer.client import Client
from scorer.client.results import Served
from scorer.errors import ScorerError

FRAUD = "fraud.checkout"
AUTHORISE = "action.authorise"

# A long timeout, so that the demo does not fail on a busy machine. Latency is only measured.
TIMEOUT_S = 10.0


@dataclass
class Answers:
    """The replies for `n` payments; -1 or NaN for payments that were not sent.

    Attributes:
        score: `[n]` fraud probability as served.
        margin: `[n]` raw output as served.
        action: `[n]` chosen action.
        propensity: `[n]` its probability under the policy.
        expected: `[n]` the oracle's P(authorised) of the chosen action.
        authorised: `[n]` 1 if the simulated issuer authorised it, else 0.
        risk: `[n]` risk in the request of the action.
        fraud_bundle: `[n]` bundle that scored, as position in `bundles`.
        action_bundle: `[n]` bundle that selected the action, as position in `bundles`.
        sent_at: `[n]` seconds since the traffic began.
    """

    score: npt.NDArray[np.float64]
    margin: npt.NDArray[np.float64]
    action: npt.NDArray[np.int64]
    propensity: npt.NDArray[np.float64]
    expected: npt.NDArray[np.float64]
    authorised: npt.NDArray[np.int64]
    risk: npt.NDArray[np.float64]
    fraud_bundle: npt.NDArray[np.int64]
    action_bundle: npt.NDArray[np.int64]
    sent_at: npt.NDArray[np.float64]

    @staticmethod
    def empty(n: int) -> Answers:
        """Return empty rows for `n` payments."""
        return Answers(
            score=np.full(n, np.nan),
            margin=np.full(n, np.nan),
            action=np.full(n, -1, dtype=np.int64),
            propensity=np.full(n, np.nan),
            expected=np.full(n, np.nan),
            authorised=np.full(n, -1, dtype=np.int64),
            risk=np.full(n, np.nan),
            fraud_bundle=np.full(n, -1, dtype=np.int64),
            action_bundle=np.full(n, -1, dtype=np.int64),
            sent_at=np.full(n, np.nan),
        )


@dataclass
class Measured:
    """Counts and times of one run, which threads update once per block under a lock.

    Attributes:
        latency_ms: latency of every call by method, measured in the client.
        execution_us: evaluation time of the server of every call, by method.
        answers: number of answers by checkpoint and bundle digest.
        timeline: (seconds, checkpoint, digest) of every answer.
        fallbacks: replies that came from a fallback.
        unlogged: actions that the server could not log.
        errors: calls that failed, by message.
    """

    latency_ms: dict[str, list[float]] = field(default_factory=dict)
    execution_us: dict[str, list[int]] = field(default_factory=dict)
    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    timeline: list[tuple[float, str, str]] = field(default_factory=list)
    fallbacks: int = 0
    unlogged: int = 0
    errors: Counter[str] = field(default_factory=Counter)

    def took(self, method: str, started: float, served: Served | None = None) -> None:
        """Record a call that was answered now."""
        self.latency_ms.setdefault(method, []).append((time.perf_counter() - started) * 1e3)
        if served is not None:
            self.execution_us.setdefault(method, []).append(served.exec_us)

    def add(self, other: Measured) -> None:
        """Add the counts of `other`."""
        for method, latencies in other.latency_ms.items():
            self.latency_ms.setdefault(method, []).extend(latencies)
        for method, times in other.execution_us.items():
            self.execution_us.setdefault(method, []).extend(times)
        self.answers.update(other.answers)
        self.timeline.extend(other.timeline)
        self.fallbacks += other.fallbacks
        self.unlogged += other.unlogged
        self.errors.update(other.errors)


class Traffic:
    """Sends payments from several threads until stopped, or until all are sent.

    Args:
        client: client that the threads share.
        columns: schema of the fraud model.
        payments: transactions to send as payments.
        rows: `[n, features]` features of the fraud model.
        contexts: `[n]` contexts of the payments; their risk is replaced by the served score.
        world: simulates the outcomes.
        run: prefix of request ids, unique within one log.
        threads: number of client threads.
        block: payments that a thread handles at a time.
    """

    def __init__(
        self,
        client: Client,
        columns: Sequence[Feature],
        payments: Transactions,
        rows: npt.NDArray[np.float32],
        contexts: Contexts,
        world: Payments,
        run: str,
        threads: int,
        block: int,
    ) -> None:
        self._client = client
        self._columns = columns
        self._payments = payments
        self._rows = rows
        self.contexts = contexts
        self.world = world
        self._run = run
        self._block = block
        self._lock = threading.Lock()
        self._next = 0
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._bundles: list[str] = []
        self.done = 0
        self.answers = Answers.empty(len(payments))
        self.measured = Measured()
        self._started = time.perf_counter()
        self._threads = [
            threading.Thread(target=self._work, name=f"payments-{number}", daemon=True)
            for number in range(threads)
        ]

    @property
    def bundles(self) -> tuple[str, ...]:
        """Digests in the order of their first reply."""
        return tuple(self._bundles)

    @property
    def seconds(self) -> float:
        """Seconds since the traffic began."""
        return time.perf_counter() - self._started

    @property
    def finished(self) -> bool:
        """Whether every thread has ended."""
        return not any(thread.is_alive() for thread in self._threads)

    def start(self) -> None:
        """Start the threads."""
        self._started = time.perf_counter()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Start no further blocks and wait for the running ones.

        Raises:
            DemoError: a call failed.
        """
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.check()

    def check(self) -> None:
        """Raise a `DemoError` with the failure of a thread, if there was one."""
        if self._failure is not None:
            raise DemoError(f"the traffic stopped: {self._failure}") from self._failure

    def answered_by(self, checkpoint: str, digest: str) -> int:
        """Return how many replies of this bundle have been counted so far."""
        with self._lock:
            return self.measured.answers[checkpoint, digest]

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                with self._lock:
                    first = self._next
                    self._next += self._block
                if first >= len(self._payments):
                    return
                self._handle(np.arange(first, min(first + self._block, len(self._payments))))
        except ScorerError as error:
            with self._lock:
                self.measured.errors[str(error)] += 1
                self._failure = error
            self._stop.set()
        except Exception as error:  # a thread's failure must reach the main thread, whatever it is
            self._failure = error
            self._stop.set()

    def _handle(self, block: npt.NDArray[np.intp]) -> None:
        seen = Measured()
        self._score(block, seen)
        given = replace(self.contexts.take(block), risk=self.answers.risk[block])
        self._choose(block, given, seen)
        chosen = self.answers.action[block]
        self.answers.authorised[block] = self.world.authorised(given, chosen)
        self._report(block, seen)
        with self._lock:
            self.done += len(block)
            self.measured.add(seen)

    def _score(self, block: npt.NDArray[np.intp], seen: Measured) -> None:
        for i in block:
            features = named_row(self._columns, self._rows[i])
            self.answers.sent_at[i] = self.seconds
            started = time.perf_counter()
            answer = self._client.score(
                FRAUD, features, request_id=self._id("f", i), entity=self._entity(i), timeout=TIMEOUT_S
            )
            seen.took("Score", started, answer.served)
            self.answers.score[i], self.answers.margin[i] = answer.score, answer.margin
            # The next request contains a float32, as the training data did.
            self.answers.risk[i] = np.float32(answer.score)
            self.answers.fraud_bundle[i] = self._count(seen, FRAUD, answer.served)

    def _choose(self, block: npt.NDArray[np.intp], given: Contexts, seen: Measured) -> None:
        rows, masks = context_rows(given), given.eligible()
        for at, i in enumerate(block):
            features, mask = named_row(CONTEXT, rows[at]), mask_bytes(masks[at])
            started = time.perf_counter()
            answer = self._client.select_action(
                AUTHORISE,
                features,
                eligible=mask,
                request_id=self._id("a", i),
                entity=self._entity(i),
                timeout=TIMEOUT_S,
            )
            seen.took("SelectAction", started, answer.served)
            if not masks[at, answer.action_index]:
                raise DemoError(f"payment {self._id('a', i)}: {answer.action} was chosen and is not eligible")
            self.answers.action[i] = answer.action_index
            self.answers.propensity[i] = answer.propensity
            self.answers.expected[i] = answer.expected_reward
            self.answers.action_bundle[i] = self._count(seen, AUTHORISE, answer.served)
            seen.unlogged += not answer.logged

    def _report(self, block: npt.NDArray[np.intp], seen: Measured) -> None:
        for i in block:
            reports = (
                (AUTHORISE, self._id("a", i), "authorised", float(self.answers.authorised[i])),
                (FRAUD, self._id("f", i), "fraud", float(self._payments.fraud[i])),
            )
            for checkpoint, decision, kind, value in reports:
                started = time.perf_counter()
                self._client.report_outcome(
                    checkpoint,
                    decision,
                    kind,
                    value,
                    occurred_at_ms=int(self._payments.time_ms[i]),
                    timeout=TIMEOUT_S,
                )
                seen.took("ReportOutcome", started)

    def _count(self, seen: Measured, checkpoint: str, served: Served) -> int:
        seen.answers[checkpoint, served.bundle] += 1
        seen.timeline.append((self.seconds, checkpoint, served.bundle))
        seen.fallbacks += not served.by_model
        with self._lock:
            if served.bundle not in self._bundles:
                self._bundles.append(served.bundle)
            return self._bundles.index(served.bundle)

    def _id(self, kind: str, i: int) -> str:
        return f"{self._run}-{kind}-{self._payments.ids[i]}"

    def _entity(self, i: int) -> str:
        return f"customer-{self._payments.customer[i]}"
