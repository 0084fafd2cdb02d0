"""Publishes the bundle of a generation that drift began: as a TEST only, whatever the verdict is.

A TEST observes requests and answers none, so a candidate that waits for more decisions may be tested too. The
alias of the live bundle is never moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from scorer.bundle import verify
from scorer.learn.errors import DataError
from scorer.learn.gate.publish import ChangeRequests, Published, reason_of
from scorer.learn.gate.verdict import BUNDLE, read_verdict
from scorer.registry import RegistryBackend
from scorer.registry.reference import parse_alias

ALIAS: Final = "drift"
"""Alias of the bundle where no platform manages the checkpoint. No lane serves it."""


def publish_test(
    directory: Path,
    candidate: Path,
    registry: RegistryBackend,
    alias: str,
    *,
    drift: Mapping[str, Any],
    by: str | None = None,
    requests: ChangeRequests | None = None,
) -> Published:
    """Push the bundle and draft a TEST with the verdict and the drift as evidence.

    Args:
        directory: What `write_verdict` made.
        candidate: The candidate that was judged. It is published if the verdict is to wait.
        registry: Where bundles and aliases are.
        alias: Alias of the live bundle, which stays.
        drift: The alert: `alert`, `lane`, `opened`, `summary`, `causes`, `findings` and `segments`.
        by: Who publishes, for the alias's history.
        requests: The platform that manages the checkpoint. None: the alias `name@drift` is set.

    Raises:
        DataError: The bundle is not the one that was judged.
    """
    target = parse_alias(alias)
    verdict = read_verdict(directory)
    evidence = verdict.evidence
    is_waiting = evidence.decision == "wait"
    bundle = candidate if is_waiting else directory / BUNDLE
    digest = verify(bundle).digest
    if digest != (evidence.candidate.digest if is_waiting else verdict.bundle):
        raise DataError(f'"{bundle}" is not the bundle of its verdict; judge the candidate again')
    pushed = registry.push(bundle, by=by)
    reason = f"drift: {drift['summary']}; {reason_of(evidence)}"
    if requests is None:
        change = registry.alias(target.name, ALIAS, pushed, by=by, reason=reason)
        place = f"{target.name}@{ALIAS}"
        return Published(evidence.decision, pushed, place, change is not None, ((alias, 1.0),))
    requested = requests.request(
        "test",
        pushed,
        title=f"Learned bundle {pushed[7:19]} after drift",
        description=reason,
        evidence={**evidence.model_dump(mode="json"), "drift": json.loads(json.dumps(drift, default=str))},
    )
    return Published(
        evidence.decision, pushed, str(target), moved=False, lanes=((alias, 1.0),), requested=requested
    )
