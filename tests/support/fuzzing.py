"""Fuzzing of the platform's API by its own description: every operation with valid and invalid requests."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import httpx
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from platforms import World
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from scorer.release.errors import PlatformError

CHECKS = (
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
)


def fuzz(world: World, url: str, user: str | None, *, examples: int, number: int) -> dict[int, int]:
    """Call every operation as one user. Raises if a response differs from the description.

    Args:
        world: The platform. Its objects are requested as often as random ones.
        url: Base URL of the platform.
        user: Name of the user; None: no credentials.
        examples: Number of requests per operation and mode (valid, invalid).
        number: Seed of the random values.

    Returns:
        Number of responses by HTTP status.
    """
    description = httpx.get(f"{url}/api/v1/openapi.json", timeout=60).json()
    schema = schemathesis.openapi.from_dict(description)
    draft = world.draft()
    known = {
        "project": "fraud",
        "checkpoint": "fraud.checkout",
        "bundle": world.candidate,
        "change": draft.id,
        "user": "viewer",
        "figure": "flips",
    }
    statuses: dict[int, int] = {}
    headers = {} if user is None else {"Authorization": f"Bearer {world.tokens[user]}"}
    with requests.Session() as session:
        for result in schema.get_all_operations():
            operation = result.ok()
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                strategy = operation.as_strategy(generation_mode=mode)

                @seed(number)
                @settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate, Phase.shrink],
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=strategy, real=st.booleans(), data=st.data())
                def check(case: Any, real: bool, data: Any) -> None:
                    for name in case.path_parameters or {}:
                        if real and name in known:
                            case.path_parameters[name] = known[name]
                    if case.operation.label.endswith("/stream") or "wait" in (case.query or {}):
                        # A request that waits for events of a draft would never end.
                        case.query = {**(case.query or {}), "wait": 0}
                        if case.operation.label.endswith("/stream"):
                            return
                    response = case.call(
                        base_url=f"{url}/api/v1", session=session, headers=headers, timeout=60
                    )
                    statuses[response.status_code] = statuses.get(response.status_code, 0) + 1
                    case.validate_response(response, checks=CHECKS, headers=headers)

                try:
                    check()
                except Unsatisfiable:
                    # A request without parameters and body cannot be invalid.
                    assert mode is GenerationMode.NEGATIVE
                except Exception as error:
                    error.add_note(f"{operation.label} as {user}, {mode}, seed {number}")
                    raise
    with suppress(PlatformError):
        world.service.changes.withdraw(world.actor("modeler"), draft.id, reason="over")
    return statuses


def new_seed() -> int:
    return random.SystemRandom().randrange(2**31)
