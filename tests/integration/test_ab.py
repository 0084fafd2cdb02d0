"""Lanes of a real server compared by the outcomes that their clients report."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from bundles import FEATURES, rows
from servers import ACTION, RunningServer, scorer_in_process, settings, start_server

from scorer import Client
from scorer.registry import Registry

World = tuple[Path, str, str]
ACTION_POINT = "action.authorise"
LEARN = "[ab]\nshoppers = 100\ntuned_decisions = 1000\n[join]\nfamilies = []\n"


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> World:
    """The directory, the digest of the control and the digest of the variant."""
    registry = Registry(tmp_path / "registry")
    control, variant = (registry.push(built_bundles[f"action-{n}"]) for n in (1, 2))
    registry.alias("action-authorise", "live", control)
    (tmp_path / "learn.toml").write_text(LEARN)
    return tmp_path, control, variant


def ab(world: World, since: str, *arguments: str) -> tuple[int, Any]:
    directory, control, variant = world
    done = scorer_in_process(
        "learn", "ab", "--checkpoint", ACTION_POINT, "--since", since,
        "--control", f"control={control}:0.5", "--variant", f"new={variant.removeprefix('sha256:')[:12]}:0.5",
        "--bundles", str(directory / "registry"), "--config", str(directory / "learn.toml"), *arguments,
    )  # fmt: skip
    return done.returncode, done.stdout or done.stderr


def shop(server: RunningServer, count: int, *, declined: str) -> dict[str, set[str]]:
    """Return the shoppers of each bundle. Each pays twice, and the payments of one bundle are declined."""
    contexts = rows(count, seed=4).tolist()
    seen: dict[str, set[str]] = {}
    with Client(server.address) as client:
        for at, values in enumerate(contexts):
            entity = f"shopper-{at % (count // 2)}"
            chosen = client.select_action(
                ACTION_POINT, dict(zip(FEATURES, values, strict=True)), entity=entity
            )
            seen.setdefault(chosen.served.bundle, set()).add(entity)
            authorised = 0.0 if chosen.served.bundle == declined else 1.0
            client.report_outcome(ACTION_POINT, chosen.decision_id, kind="authorised", value=authorised)
    return seen


@pytest.mark.parametrize("harm", [True, False], ids=["harm", "no harm"])
def test_harm_has_its_own_exit_code(world: World, harm: bool) -> None:
    directory, control, variant = world
    with start_server(directory, settings(ACTION)) as server:
        set_lanes = server.cli("lanes", ACTION_POINT, f"control={control}:0.5", f"new={variant}:0.5")
        assert set_lanes.returncode == 0, set_lanes.stderr
        since = datetime.now(UTC).isoformat()
        seen = shop(server, 600, declined=variant if harm else "no bundle")
        assert not seen[control] & seen[variant], "a shopper stays in one lane"
        sources = ("--log", str(directory / "decisions"))
        code, text = ab(world, since, *sources, "--json")
        assert code == (3 if harm else 0), text
        figures = json.loads(text)
        (difference,) = figures["differences"]
        if harm:
            assert difference["verdict"] == "harm"
            assert difference["high"] < -0.5
        else:
            assert difference["verdict"] in ("undecided", "not worse", "better")
        assert figures["ratio"]["mismatch"] is False
        assert [lane["decisions"] for lane in figures["lanes"]] == [
            2 * len(seen[control]),
            2 * len(seen[variant]),
        ]
        code, text = ab(world, since, *sources)
        assert "new - control: " in text
        assert "sample ratio: as planned" in text


def test_an_error_has_another_exit_code_than_harm(world: World) -> None:
    code, text = ab(world, "2026-11-01", "--log", str(world[0] / "nothing"))
    assert code not in (0, 3)
    assert "nothing" in text
