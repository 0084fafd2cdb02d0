"""An oracle with a policy as the engine runs it, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scorer.bundle import Bundle, PolicySpec, SchemaFile, SigmoidMap, preview_action_bundle
from scorer.learn.oracle import OracleTask


def preview(
    task: OracleTask,
    booster: Any,
    policy: PolicySpec,
    calibration: SigmoidMap | None = None,
    voters: Sequence[Any] = (),
) -> Bundle:
    """The bundle that `build_candidate` would build, in memory: nothing is written, sealed or golden-tested.

    The engine evaluates a context over the whole catalogue in microseconds where the training library needs
    milliseconds, so judging a policy on every decision of a week is cheap, and it is the server's own
    arithmetic that is judged.
    """
    return preview_action_bundle(
        model=booster,
        schema=schema_of(task),
        actions=task.actions,
        policy=policy,
        voters=voters,
        calibration=calibration,
    )


def schema_of(task: OracleTask) -> SchemaFile:
    """The task's columns as a bundle's schema."""
    return SchemaFile(features=list(task.context), action_features=list(task.action))
