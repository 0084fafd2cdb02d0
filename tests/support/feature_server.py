"""A server with computed features of cards and terminals, and events for it."""

from __future__ import annotations

import time
import urllib.request
from typing import Any

from servers import RunningServer

from scorer.bundle import ComputedFeatures
from scorer.client import Event

PATIENT = 30.0
FRAUD, SELECT = "fraud.checkout", "action.authorise"
SET: dict[str, Any] = {
    "name": "cards",
    "version": 1,
    "events": {
        "payment": {
            "entities": ["card", "terminal"],
            "numbers": ["amount"],
            "texts": ["country"],
            "accept_late": 604_800,
        }
    },
    "features": [
        {
            "name": "payments_1d", "entity": "card", "event": "payment",
            "aggregate": "count", "window": 86_400, "default": 2,
        },
        {
            "name": "mean_1d", "entity": "card", "event": "payment",
            "aggregate": "mean", "of": "amount", "window": 86_400, "default": 10,
        },
        {
            "name": "cards_7d", "entity": "terminal", "event": "payment",
            "aggregate": "distinct", "of": "card", "window": 604_800,
        },
    ],
}  # fmt: skip
COUNT = ComputedFeatures(SET, {"count_24h": "payments_1d"})
BOTH = ComputedFeatures(SET, {"count_24h": "payments_1d", "distance": "mean_1d"})
CONFIG = '\n[features]\nsets = ["cards.json"]\ndirectory = "features"\n'


def row(**stated: float) -> dict[str, float]:
    """Return the features of a request that the caller states."""
    return {"amount": 50.0, "hour": 15.0, "distance": 3.0, **stated}


def payment(number: int, *, card: str = "card-1", ago: float = 60.0, amount: float = 20.0) -> Event:
    """Return a payment of a card at the terminal t1, in the past."""
    at = int((time.time() - ago) * 1e6)
    keys = {"card": card, "terminal": "t1"}
    return Event("payment", f"p{number}", at, keys, {"amount": amount}, {"country": "NL"})


def metrics(server: RunningServer) -> dict[str, float]:
    """Return the samples of the metrics page, by name and labels."""
    with urllib.request.urlopen(f"http://{server.serving['metrics']}/metrics", timeout=PATIENT) as page:
        lines = page.read().decode().splitlines()
    return {
        name: float(value)
        for name, _, value in (line.rpartition(" ") for line in lines if not line.startswith("#"))
    }
