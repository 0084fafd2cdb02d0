"""Batches on one bundle, payments from several threads, and a swap of both bundles under that traffic."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from examples.columns import named_row
from examples.demo.errors import DemoError
from examples.demo.process import ServerProcess
from examples.demo.traffic import FRAUD, TIMEOUT_S, Traffic
from examples.routing_log import RoutingLog
from scorer.client import Client

ROUTE = "action.route"


@dataclass(frozen=True)
class Batch:
    """Scores of many rows, all from one bundle."""

    digest: str
    scores: npt.NDArray[np.float64]
    margins: npt.NDArray[np.float64]
    labels: tuple[str, ...]
    seconds: float


def score_in_batches(client: Client, rows: npt.NDArray[np.float32], run: str) -> Batch:
    """Score rows through `ScoreBatch`, as many per request as the checkpoint allows.

    Raises:
        DemoError: two bundles or a fallback answered.
    """
    most = client.describe(FRAUD).max_batch_rows
    started = time.perf_counter()
    answers = [
        client.score_batch(FRAUD, rows[first : first + most], request_id=f"{run}-{first}", timeout=TIMEOUT_S)
        for first in range(0, len(rows), most)
    ]
    digests = {answer.served.bundle for answer in answers}
    if len(digests) != 1 or not all(answer.served.by_model for answer in answers):
        raise DemoError(f"the batches were answered by {len(digests)} bundles or by a fallback; try again")
    return Batch(
        digest=digests.pop(),
        scores=np.concatenate([np.asarray(answer.scores) for answer in answers]),
        margins=np.concatenate([np.asarray(answer.margins) for answer in answers]),
        labels=tuple(label for answer in answers for label in answer.decisions),
        seconds=time.perf_counter() - started,
    )


@dataclass(frozen=True)
class Swap:
    """The swap's times, in seconds since the traffic began.

    Attributes:
        ordered_at: when the aliases were moved.
        first_answer: by checkpoint, when the new bundle first answered.
        last_answer: by checkpoint, when the old bundle last answered.
    """

    ordered_at: float
    first_answer: Mapping[str, float]
    last_answer: Mapping[str, float]


def drive(
    traffic: Traffic,
    server: ServerProcess,
    reach: Callable[[int], None],
    least: int,
    swap_at: float,
    swap_seconds: float,
    order: Callable[[], None],
    old: Mapping[str, str],
    new: Mapping[str, str],
) -> Swap:
    """Run the traffic, change the aliases during it, and end when the new bundles have answered.

    Args:
        traffic: traffic with more payments than `least`, not started yet.
        server: server, which must not end while the traffic runs.
        reach: receives the number of completed payments.
        least: smallest number of payments to send.
        swap_at: share of `least` after which the aliases change.
        swap_seconds: time limit in seconds for the new bundles to answer.
        order: changes the aliases.
        old: previous digest by checkpoint.
        new: new digest by checkpoint.

    Raises:
        DemoError: a call failed, the server ended, or the new bundles did not answer in time.
    """
    traffic.start()
    ordered_at = None
    wanted_after = max(1, least // 10)
    try:
        while True:
            traffic.check()
            if not server.running:
                raise DemoError(
                    f"the server ended during the traffic: {server.last_problem or 'no reason given'}"
                )
            done = traffic.done
            reach(min(done, least))
            if ordered_at is None and done >= least * swap_at:
                order()
                ordered_at = traffic.seconds
            swapped = ordered_at is not None and all(
                traffic.answered_by(checkpoint, digest) >= wanted_after for checkpoint, digest in new.items()
            )
            if swapped and done >= least:
                break
            if traffic.finished or (ordered_at is not None and traffic.seconds - ordered_at > swap_seconds):
                raise DemoError(
                    f"the new bundles did not take over within {swap_seconds:.0f} s:"
                    f" {server.last_problem or 'the server gave no reason'}"
                )
            # Progress is polled; nothing depends on the length of this pause.
            time.sleep(0.02)
    finally:
        traffic.stop()
    if ordered_at is None:
        raise DemoError("the traffic ended before the swap")
    timeline = traffic.measured.timeline
    return Swap(
        ordered_at=ordered_at,
        first_answer={c: min(at for at, where, d in timeline if where == c and d == new[c]) for c in new},
        last_answer={c: max(at for at, where, d in timeline if where == c and d == old[c]) for c in old},
    )


@dataclass(frozen=True)
class RoutingReplay:
    """The replayed part of the routing log with the server's choices.

    Attributes:
        rows: positions in the log.
        pmf: `[rows, providers]` as served.
        chosen: `[rows]` the provider that was drawn.
        digest: digest of the bundle.
    """

    rows: npt.NDArray[np.intp]
    pmf: npt.NDArray[np.float64]
    chosen: npt.NDArray[np.int64]
    digest: str


def replay_routing(
    client: Client,
    log: RoutingLog,
    rows: npt.NDArray[np.intp],
    run: str,
    threads: int,
    reach: Callable[[int], None],
) -> RoutingReplay:
    """Select a provider for each of these attempts, with the probability of every provider."""
    pmf = np.empty((len(rows), len(log.providers)))
    chosen = np.empty(len(rows), dtype=np.int64)
    digests: set[str] = set()

    def ask(part: Sequence[int]) -> None:
        for at in part:
            row = int(rows[at])
            features = named_row(log.columns, log.context[row])
            answer = client.select_action(
                ROUTE, features, include_pmf=True, request_id=f"{run}-r-{row}", timeout=TIMEOUT_S
            )
            if not answer.served.by_model:
                raise DemoError(f"a fallback answered at {ROUTE}: {answer.served.fallback_reason}")
            pmf[at], chosen[at] = answer.pmf, answer.action_index
            digests.add(answer.served.bundle)

    done = 0
    with ThreadPoolExecutor(threads) as pool:
        parts = [range(first, min(first + 64, len(rows))) for first in range(0, len(rows), 64)]
        for part, _ in zip(parts, pool.map(ask, parts), strict=True):
            done += len(part)
            reach(done)
    if len(digests) != 1:
        raise DemoError(f"{ROUTE} was answered by {len(digests)} bundles; one was expected")
    return RoutingReplay(rows=rows, pmf=pmf, chosen=chosen, digest=digests.pop())
