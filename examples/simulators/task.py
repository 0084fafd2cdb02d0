"""The simulated payments as a learning task: the context columns of requests, and the catalogue's columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from examples.columns import column
from examples.oracle import LoggedChoices
from examples.simulators import actions
from examples.simulators.payments import (
    COUNTRIES,
    DECLINES,
    DEVICES,
    ISSUER_NAMES,
    SCHEMES,
    Contexts,
    Logged,
)
from scorer.bundle import Action, Feature
from scorer.learn.oracle import OracleTask

CONTEXT: tuple[Feature, ...] = (
    column("amount", minimum=0.0, maximum=1e7),
    column("hour", minimum=0.0, maximum=23.0),
    column("issuer", "category", ISSUER_NAMES),
    column("country", "category", COUNTRIES),
    column("scheme", "category", SCHEMES),
    column("device", "category", DEVICES),
    column("last_decline", "category", DECLINES),
    column("is_retry", "flag"),
    column("earlier_attempts", minimum=0.0, maximum=100.0),
    column("has_token", "flag"),
    column("low_value_count", minimum=0.0, maximum=100.0),
    column("risk", minimum=0.0, maximum=1.0),
)


def authorise_task(name: str = "action-authorise") -> OracleTask:
    """Return the task of choosing a payment action."""
    return OracleTask(
        name=name,
        context=CONTEXT,
        action=tuple(
            column(f"action_{name}", "category", levels) for name, levels in actions.FACTORS.items()
        ),
        actions=tuple(
            Action(
                id=action.id,
                factors=dict(action.factors),
                features=[float(code) for code in action.codes],
                attributes={"challenge": float(action.factors["three_ds"] == "challenge")},
            )
            for action in actions.catalogue()
        ),
    )


def context_rows(given: Contexts) -> npt.NDArray[np.float32]:
    """Return `[n, 12]` contexts in the order of `CONTEXT`, categories as codes."""
    return np.column_stack(
        [
            given.amount,
            given.hour,
            given.issuer,
            given.country,
            given.scheme,
            given.device,
            given.last_decline,
            given.last_decline > 0,
            given.earlier_attempts,
            given.has_token,
            given.low_value_count,
            given.risk,
        ]
    ).astype(np.float32)


def choices(logged: Logged) -> LoggedChoices:
    """Return a log of payments as training rows of the oracle."""
    return LoggedChoices(context_rows(logged.contexts), logged.action, logged.authorised)


def mask_bytes(mask: npt.NDArray[np.bool_]) -> bytes:
    """Return one payment's eligible actions in the wire format: one bit each, least significant first."""
    return np.packbits(mask, bitorder="little").tobytes()
