"""A comparison on a real server: lanes set, shoppers stay in them, harm sets them back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bundles import FEATURES, rows
from servers import ACTION, RunningServer, scorer_here, settings, start_server

from scorer import Client
from scorer.learn.ab.plan import AbPlan
from scorer.registry import Registry

World = tuple[Path, str, str]
ACTION_POINT = "action.authorise"
START = ("start", "--checkpoint", ACTION_POINT, "--control")
LEARN = "[ab]\nshoppers = 100\ntuned_decisions = 1000\n[join]\nfamilies = []\n"


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> World:
    """The directory, and the digests of control and variant."""
    registry = Registry(tmp_path / "registry")
    control, variant = (registry.push(built_bundles[f"action-{n}"]) for n in (1, 2))
    registry.alias("action-authorise", "live", control)
    (tmp_path / "learn.toml").write_text(LEARN)
    return tmp_path, control, variant


def lanes(server: RunningServer) -> dict[str, tuple[str, float]]:
    (point,) = server.status()["checkpoints"]
    return {lane["name"]: (lane["bundle"], lane["share"]) for lane in point["lanes"]}


def ab(server: RunningServer, world: World, *arguments: str, to: bool = True) -> Any:
    address = ["--address", server.control] if to else []
    directory = str(world[0] / "comparison")
    done = scorer_here("learn", "ab", arguments[0], directory, *arguments[1:], *address, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def shop(server: RunningServer, count: int, *, declined: str) -> dict[str, set[str]]:
    """Shoppers by bundle: each comes twice, and one bundle's payments are declined."""
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


def test_harm_sets_the_lanes_back(world: World) -> None:
    directory, control, variant = world
    with start_server(directory, settings(ACTION)) as server:
        sources = ["--log", str(directory / "decisions"), "--bundles", str(directory / "registry")]
        sources += ["--config", str(directory / "learn.toml")]
        ab(
            server, world, *START, "action-authorise@live", "--variant", f"new={variant}:0.5",
            "--config", str(directory / "learn.toml"), "--reason", "try it",
        )  # fmt: skip
        assert lanes(server) == {"control": (control, 0.5), "new": (variant, 0.5)}
        assert server.event("swapped", cause="set lanes")["reason"] == "A/B: try it"

        seen = shop(server, 600, declined=variant)
        assert not seen[control] & seen[variant], "a shopper stays in one lane"
        read = ab(server, world, "read", *sources, to=False)
        (difference,) = read["differences"]
        assert difference["verdict"] == "harm"
        assert difference["high"] < -0.5
        assert read["ratio"]["mismatch"] is False
        assert [lane["decisions"] for lane in read["lanes"]] == [
            2 * len(seen[control]),
            2 * len(seen[variant]),
        ]

        ended = ab(server, world, "watch", "--once", *sources)
        assert ended["how"] == "set back"
        assert "harm: lane new" in ended["why"]
        assert lanes(server) == {"live": (control, 1.0)}
        assert "harm: lane new" in server.event("swapped", cause="set lanes")["reason"]
        table = server.status()["lane_table"]
        assert ab(server, world, "watch", "--once", *sources) == ended, "it ends once"
        assert server.status()["lane_table"] == table
        assert AbPlan.read(directory / "comparison").control.bundle == control


def test_no_harm_goes_on_until_it_is_stopped(world: World) -> None:
    directory, _, variant = world
    with start_server(directory, settings(ACTION)) as server:
        sources = ["--log", str(directory / "decisions"), "--bundles", str(directory / "registry")]
        sources += ["--config", str(directory / "learn.toml")]
        start = [*START, "action-authorise@live"]
        ab(
            server,
            world,
            *start,
            "--variant",
            f"new={variant}:0.5",
            "--config",
            str(directory / "learn.toml"),
        )
        shop(server, 500, declined="nobody")
        assert ab(server, world, "watch", "--once", *sources) is None
        readings = (directory / "comparison/readings.jsonl").read_text().splitlines()
        assert len(readings) == 1
        assert json.loads(readings[0])["differences"][0]["verdict"] in ("undecided", "not worse", "better")
        ended = ab(server, world, "stop", "--keep", "new", "--reason", "it is better")
        assert lanes(server) == {"live": (variant, 1.0)}
        assert ended["why"] == "it is better"


def test_lanes_that_somebody_changed_are_left_alone(world: World) -> None:
    directory, control, variant = world
    with start_server(directory, settings(ACTION)) as server:
        start = [
            "start",
            "--checkpoint",
            ACTION_POINT,
            "--control",
            control,
            "--variant",
            f"new={variant}:0.2",
        ]
        ab(server, world, *start)
        assert server.cli("lanes", ACTION_POINT, f"a={control}:0.4", f"b={variant}:0.6").returncode == 0
        ended = ab(server, world, "stop")
        assert "left as they are" in ended["how"]
        assert lanes(server) == {"a": (control, 0.4), "b": (variant, 0.6)}
