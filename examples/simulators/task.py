"""The simulated payments as a learning task: what a request carries, what the catalogue adds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
from scorer.learn.columns import Column
from scorer.learn.oracle import OracleAction, OracleTask, one_column_per_factor

CONTEXT: tuple[Column, ...] = (
    Column("amount", minimum=0.0, maximum=1e7),
    Column("hour", minimum=0.0, maximum=23.0),
    Column("issuer", "category", ISSUER_NAMES),
    Column("country", "category", COUNTRIES),
    Column("scheme", "category", SCHEMES),
    Column("device", "category", DEVICES),
    Column("last_decline", "category", DECLINES),
    Column("is_retry", "flag"),
    Column("earlier_attempts", minimum=0.0, maximum=100.0),
    Column("has_token", "flag"),
    Column("low_value_count", minimum=0.0, maximum=100.0),
    Column("risk", minimum=0.0, maximum=1.0),
)


def authorise_task(name: str = "action-authorise") -> OracleTask:
    """Choosing a payment action."""
    return OracleTask(
        name=name,
        context=CONTEXT,
        action=one_column_per_factor(actions.FACTORS),
        actions=tuple(
            OracleAction(
                id=action.id,
                factors=action.factors,
                features=tuple(float(code) for code in action.codes),
                attributes={"challenge": float(action.factors["three_ds"] == "challenge")},
            )
            for action in actions.catalogue()
        ),
    )


def context_rows(given: Contexts) -> npt.NDArray[np.float32]:
    """`[n, 12]` contexts in the order of `CONTEXT`, categories as codes."""
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
    """A log of payments as the oracle's training rows."""
    return LoggedChoices(context_rows(logged.contexts), logged.action, logged.authorised)


def mask_bytes(mask: npt.NDArray[np.bool_]) -> bytes:
    """One payment's eligible actions as a request carries them: a bit each, least significant first."""
    return np.packbits(mask, bitorder="little").tobytes()
