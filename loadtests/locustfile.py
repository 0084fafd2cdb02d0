"""Users for Locust that request fraud scores and payment actions over gRPC.

    locust -f loadtests/locustfile.py --host 127.0.0.1:7000 --headless -u 50 -r 50 -t 30s

Locust is a closed loop: each user waits for its answer, so a stalled server receives fewer requests.
Use it to simulate a population of users. Use `scorer loadtest` to check an SLA (README.md gives the reason).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import gevent
import grpc.experimental.gevent
from locust import User, constant_throughput, events, task
from locust.env import Environment
from locust.exception import StopUser

from scorer.client import Client, ClientError, Score, SelectedAction
from scorer.loadtest.rows import generate_rows

# Locust runs its users as greenlets, so the core of gRPC must yield to greenlets instead of threads.
grpc.experimental.gevent.init_gevent()
# The clock of the event loop did not advance during the imports, which took seconds. Without this update, a
# short run time would already be over.
gevent.get_hub().loop.update_now()

ROWS = 1_000


class Shop:
    """State that all users of a process share: the client and the checkpoints of the server."""

    def __init__(self, host: str) -> None:
        self.client = Client(host, timeout=1.0)
        self.client.wait_ready(timeout=10.0)
        self.checkpoints = {info.kind: info for info in self.client.checkpoints(timeout=5.0)}


@events.test_start.add_listener
def open_shop(environment: Environment, **_: Any) -> None:
    """Connect once, before the first user starts."""
    environment.shop = Shop(environment.host or "")


@events.test_stop.add_listener
def close_shop(environment: Environment, **_: Any) -> None:
    """Close the connection."""
    environment.shop.client.close()


class Shopper(User):
    """A user who sends ten requests per second, or one after each answer if that is slower."""

    abstract = True
    kind = ""
    wait_time = constant_throughput(10)

    def on_start(self) -> None:
        """Generate the rows to send."""
        shop = self.environment.shop
        if self.kind not in shop.checkpoints:
            raise StopUser(f'the server has no checkpoint of kind "{self.kind}"')
        self.client = shop.client
        self.checkpoint = shop.checkpoints[self.kind].checkpoint
        self.rows = itertools.cycle(generate_rows(shop.checkpoints[self.kind], ROWS, seed=id(self) & 0xFFFF))

    def call(self, name: str, ask: Callable[[], Any]) -> Any:
        """Make a call, and report its time to Locust. Returns None if the call failed."""
        began = time.perf_counter()
        answer, error = None, None
        try:
            answer = ask()
        except ClientError as failed:
            error = failed
        by_fallback = isinstance(answer, Score | SelectedAction) and not answer.served.by_model
        self.environment.events.request.fire(
            request_type="grpc",
            name=f"{name} (fallback)" if by_fallback else name,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=0,
            response=answer,
            exception=error,
            context={},
        )
        return answer


class FraudShopper(Shopper):
    """A user who requests fraud scores."""

    kind = "score"
    weight = 8

    @task
    def score(self) -> None:
        """Request one score."""
        row = next(self.rows)
        self.call("Score", lambda: self.client.score(self.checkpoint, row))


class PayingShopper(Shopper):
    """A user who requests payment actions and reports outcomes."""

    kind = "action"
    weight = 2

    @task
    def select_action(self) -> None:
        """Request one action, and report its outcome."""
        row = next(self.rows)
        action = self.call("SelectAction", lambda: self.client.select_action(self.checkpoint, row))
        if action is not None and action.decision_id:
            self.call(
                "ReportOutcome",
                lambda: self.client.report_outcome(self.checkpoint, action.decision_id, "authorised", 1.0),
            )
