"""The API from its own description, as an admin, as a viewer, as nobody: no 5xx, every answer as described.

`make fuzz-api` does the same for longer, with another seed each time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from platforms import World

pytest.importorskip("schemathesis", reason="needs the package schemathesis")

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "2"))


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    world = World(tmp_path, built_bundles)
    yield world
    world.close()


@pytest.mark.parametrize("user", ["admin", "viewer", None])
@pytest.mark.timeout(0 if EXAMPLES > 10 else 600)
def test_every_response_matches_the_description(world: World, user: str | None) -> None:
    from fuzzing import fuzz, new_seed

    number = 20261121 if EXAMPLES <= 10 else new_seed()
    print(f"seed {number}")
    with world.served() as url:
        statuses = fuzz(world, url, user, examples=EXAMPLES, number=number)
    if user is None:
        # 429 follows many wrong tokens from one address.
        assert set(statuses) <= {200, 401, 404, 405, 422, 429}, statuses
    else:
        # Some requests reached the operations, and others were refused before.
        assert statuses.get(200, 0) > 20 and statuses.get(422, 0) > 20, statuses
    assert world.service.audit.verify().problems == ()
