"""Logs for the join: records of one bundle, and the result of a join."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scorer.bundle import inspect
from scorer.learn.experience import State
from scorer.learn.join.joining import join
from scorer.learn.join.settings import Family, JoinSettings
from scorer.log import BundleShelf
from scorer.log.proof import TOKEN
from scorer.log.source.directories import log_directories
from scorer.v1.log_pb2 import DecisionRecord, DeliveryRecord, LogRecord, OutcomeRecord, TokenClaims

POINT = "action.authorise"
HOUR = 3_600_000
# A Monday.
START = 1_767_571_200_000
SLOW = Family(name="frictionless", factors={"3ds": "frictionless"}, hours=72.0)
SETTINGS = JoinSettings(families=(SLOW,), hours=24.0)


class Maker:
    """Records of one bundle."""

    def __init__(self, path: Path) -> None:
        found = inspect(path)
        self.digest = bytes.fromhex(found.digest.removeprefix("sha256:"))
        self.fingerprint = int(found.schema_fingerprint, 16)
        self.actions = [action.id for action in found.actions]

    def decision(self, name: str, hour: float, taken: int = 0, **other: Any) -> bytes:
        pmf = [0.1] * len(self.actions)
        pmf[taken] = 1 - 0.1 * (len(self.actions) - 1)
        fields: dict[str, Any] = {
            "decision_id": name,
            "checkpoint": POINT,
            "lane": "live",
            "bundle": self.digest,
            "decided_at_us": round((START + hour * HOUR) * 1000),
            "entity": f"shopper-{name}",
            "features": [10.0, 3.0, 1.0, math.nan],
            "schema_fingerprint": self.fingerprint,
            "pmf": pmf,
            "action_index": taken,
            "action": self.actions[taken],
            "propensity": pmf[taken],
        }
        return LogRecord(decision=DecisionRecord(**{**fields, **other})).SerializeToString()

    def token(self, name: str, hour: float, taken: int = 0, **other: Any) -> dict[str, Any]:
        """What an outcome's record holds if the token of such a decision proves it."""
        record = LogRecord.FromString(self.decision(name, hour, taken)).decision
        fields: dict[str, Any] = {
            "decided_at_ms": record.decided_at_us // 1000,
            "bundle": self.digest[:8],
            "action": True,
            "index": taken,
            "propensity": record.propensity,
        }
        return {"proof": TOKEN, "token": TokenClaims(**{**fields, **other})}


def delivery(name: str, hour: float, *, delivered: bool = False) -> bytes:
    at = round((START + hour * HOUR) * 1000)
    fields = {"checkpoint": POINT, "decision_id": name, "decided_at_us": at, "delivered": delivered}
    return LogRecord(delivery=DeliveryRecord(**fields)).SerializeToString()


def outcome(name: str, hour: float, value: float = 1.0, revision: int = 0, **other: Any) -> bytes:
    fields: dict[str, Any] = {
        "checkpoint": POINT,
        "decision_id": name,
        "kind": "authorised",
        "value": value,
        "revision": revision,
        "received_at_us": round((START + hour * HOUR) * 1000),
    }
    return LogRecord(outcome=OutcomeRecord(**{**fields, **other})).SerializeToString()


def run(
    logs: Path | Sequence[Path], shelf: BundleShelf, hour: float, of: JoinSettings = SETTINGS, **more: Any
) -> Any:
    source = log_directories([logs] if isinstance(logs, Path) else logs)
    return join(source, shelf, of, as_of_ms=START + round(hour * HOUR), **more)


def known(joined: Any) -> dict[str, tuple[str, float | None]]:
    e = joined.experience
    return {
        str(name): (State(int(state)).name, None if math.isnan(reward) else float(reward))
        for name, state, reward in zip(e.decision_id, e.state, e.reward, strict=True)
    }


def counts(joined: Any) -> dict[str, int]:
    return {one.name: one.count for one in joined.findings}
