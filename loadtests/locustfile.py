"""Shoppers for Locust: fraud scores and payment actions over gRPC.

    locust -f loadtests/locustfile.py --host 127.0.0.1:7000 --headless -u 50 -r 50 -t 30s

Locust is a closed loop: each user waits for its answer, so a stalled server is asked less.
Use it to see how a population of users fares; use `scorer loadtest` to judge a promise
(README.md says why).
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

# Locust runs its users as greenlets; gRPC's core must yield to them instead of to threads.
grpc.experimental.gevent.init_gevent()
# The imports took seconds in which the event loop's clock stood still; a run time counted from
# there would be over before it began.
gevent.get_hub().loop.update_now()

ROWS = 1_000


class Shop:
    """What all users of a process share: one client, and what the server offers."""

    def __init__(self, host: str) -> None:
        self.client = Client(host, timeout=1.0)
        self.client.wait_ready(timeout=10.0)
        self.checkpoints = {info.kind: info for info in self.client.checkpoints(timeout=5.0)}


@events.test_start.add_listener
def open_shop(environment: Environment, **_: Any) -> None:
    """Connects once, before the first user comes."""
    environment.shop = Shop(environment.host or "")


@events.test_stop.add_listener
def close_shop(environment: Environment, **_: Any) -> None:
    """Closes the connection."""
    environment.shop.client.close()


class Shopper(User):
    """Asks ten times per second, or as fast as the answers come."""

    abstract = True
    kind = ""
    wait_time = constant_throughput(10)

    def on_start(self) -> None:
        """Makes up what to send."""
        shop = self.environment.shop
        if self.kind not in shop.checkpoints:
            raise StopUser(f'the server has no checkpoint of kind "{self.kind}"')
        self.client = shop.client
        self.checkpoint = shop.checkpoints[self.kind].checkpoint
        self.rows = itertools.cycle(generate_rows(shop.checkpoints[self.kind], ROWS, seed=id(self) & 0xFFFF))

    def call(self, name: str, ask: Callable[[], Any]) -> Any:
        """Calls, times and tells Locust; None if the call failed."""
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
    """Has payments scored."""

    kind = "score"
    weight = 8

    @task
    def score(self) -> None:
        """One event."""
        row = next(self.rows)
        self.call("Score", lambda: self.client.score(self.checkpoint, row))


class PayingShopper(Shopper):
    """Has payment actions chosen, and reports how they went."""

    kind = "action"
    weight = 2

    @task
    def select_action(self) -> None:
        """One payment and its outcome."""
        row = next(self.rows)
        action = self.call("SelectAction", lambda: self.client.select_action(self.checkpoint, row))
        if action is not None and action.decision_id:
            self.call(
                "ReportOutcome",
                lambda: self.client.report_outcome(self.checkpoint, action.decision_id, "authorised", 1.0),
            )
