"""Tests of servers and checkpoints that are added while the platform runs, and of the displayed settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet import FakeMember
from platforms import SETTINGS, World

from scorer.release.answers import CheckpointAdded
from scorer.release.effective import effective
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from scorer.release.fleet import CheckpointStatus
from scorer.release.open import open_service
from scorer.release.requests import NewCheckpoint, NewServer, ServeCheckpoint
from scorer.release.settings import PlatformFile


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    world = World(tmp_path, built_bundles)
    yield world
    world.close()


def _answers(world: World, name: str, role: str = "live") -> None:
    """Start a fake server of this name that responds to calls."""
    status = CheckpointStatus("score", "", (), ())
    world.fleet._held[name] = FakeMember(role, {"fraud.checkout": status})


def _add(world: World, user: str = "admin", **fields: Any) -> Any:
    new = NewServer(**{"name": "extra", "control": "127.0.0.1:9", **fields})
    return world.service.additions.add_server(world.actor(user), new)


def test_an_added_server_is_managed_at_once_and_by_other_processes(world: World, tmp_path: Path) -> None:
    _answers(world, "extra")
    added = _add(world)
    assert (added.declared, added.added_by, added.reachable) == (False, "admin", True)
    assert [one.name for one in world.fleet.members] == ["live-1", "live-2", "pool-1", "extra"]
    settings = PlatformFile.parse(SETTINGS.format(database="platform.sqlite"), base=tmp_path)
    second = open_service(settings, fleet=world.fleet)
    assert [one.name for one in settings.fleet][-1] == "extra"
    # Another process detects the removal at its next refresh.
    world.service.additions.remove_server(world.actor("admin"), "extra")
    assert [one.name for one in world.settings.fleet][-1] == "pool-1"
    second.service.additions.refresh()
    assert [one.name for one in settings.fleet][-1] == "pool-1"
    second.store.close()
    entries = world.service.audit.entries(world.actor("admin"))
    assert [one.action for one in entries if one.object == "extra"] == ["server.remove", "server.add"]


def test_a_server_is_called_before_it_is_stored(world: World) -> None:
    _answers(world, "extra")
    world.fleet.disconnect("extra")
    with pytest.raises(UnreachableError, match="nothing was changed"):
        _add(world)
    world.fleet.restart("extra")
    with pytest.raises(InvalidError, match="is no directory"):
        _add(world, log="/nowhere/at/all")
    with pytest.raises(InvalidError, match="is not an address"):
        _add(world, control="nonsense")
    with pytest.raises(ConflictError, match='"live-1" has this name'):
        _add(world, name="live-1")
    with pytest.raises(ConflictError, match='"live-1" has this address'):
        _add(world, control="127.0.0.1:1")
    assert "extra" not in [one.name for one in world.settings.fleet]


def test_only_admins_add_and_remove(world: World) -> None:
    _answers(world, "extra")
    additions, owner = world.service.additions, world.actor("owner")
    with pytest.raises(NotAllowedError):
        _add(world, user="owner")
    with pytest.raises(NotAllowedError):
        additions.servers(owner)
    with pytest.raises(NotAllowedError):
        additions.remove_server(owner, "live-1")
    with pytest.raises(NotAllowedError):
        additions.add_checkpoint(owner, NewCheckpoint(name="a", alias="a@live"))
    with pytest.raises(ConflictError, match=r"declared in platform\.toml"):
        additions.remove_server(world.actor("admin"), "live-1")
    with pytest.raises(NotFoundError):
        additions.remove_server(world.actor("admin"), "nobody")


def test_an_added_checkpoint_is_managed_at_once_and_names_the_servers_that_lack_it(world: World) -> None:
    additions, admin = world.service.additions, world.actor("admin")
    gates = [{"metric": "error_rate", "success": "== 0", "min_rows": 20}]
    new = NewCheckpoint(name="fraud.refund", alias="fraud-refund@live", minutes=30_000, gates=gates)
    additions.add_checkpoint(admin, new)
    view = world.service.checkpoints.view(admin, "fraud.refund")
    assert (view.alias, view.recorded, view.slots) == ("fraud-refund@live", None, 2)
    settings = world.settings.checkpoints["fraud.refund"]
    assert [gate.metric for gate in settings.gates] == ["error_rate"]
    assert settings.max_minutes >= 30_000
    world.tick()
    assert list(additions.lacking("fraud.refund")) == ["live-1", "live-2"]
    assert list(additions.lacking("fraud.checkout")) == []
    assert not additions.is_declared("fraud.refund")
    assert world.service.decisions.recent(admin, "fraud.refund") == []
    with pytest.raises(ConflictError, match="exists already"):
        additions.add_checkpoint(admin, new)


def test_platform_toml_has_precedence_over_additions(world: World, tmp_path: Path) -> None:
    admin = world.actor("admin")
    world.service.additions.add_checkpoint(admin, NewCheckpoint(name="later", alias="added@live"))
    text = SETTINGS.format(database="platform.sqlite") + '\n[checkpoints."later"]\nalias = "declared@live"\n'
    settings = PlatformFile.parse(text, base=tmp_path)
    second = open_service(settings, fleet=world.fleet)
    assert settings.checkpoints["later"].alias == "declared@live"
    assert second.service.additions.is_declared("later")
    second.store.close()


def test_settings_are_shown_without_secrets(tmp_path: Path) -> None:
    text = SETTINGS.format(database="platform.sqlite").replace(
        'database = "platform.sqlite"', 'database = "postgresql://scorer:hunter2@db.example.com/platform"'
    )
    result = {(one.section, one.key): one for one in effective(PlatformFile.parse(text, base=tmp_path))}
    database = result["platform", "database"]
    assert "hunter2" not in " ".join(one.value for one in result.values())
    assert "scorer:***@db.example.com" in database.value
    assert not database.is_default
    assert result["platform", "tick_ms"].is_default
    assert result["builds", "memory_mb"].value == "4096"


def _new(world: World, name: str = "fraud.refund") -> None:
    world.service.additions.add_checkpoint(
        world.actor("admin"), NewCheckpoint(name=name, alias="fraud-checkout@refund", p99_ms=7.5)
    )


def test_a_checkpoint_is_added_to_the_servers_that_lack_it(world: World) -> None:
    additions, admin = world.service.additions, world.actor("admin")
    _new(world)
    assert additions.lacking("fraud.refund") == ["live-1", "live-2"]
    done = additions.serve_checkpoint(admin, "fraud.refund", ServeCheckpoint(kind="score"))
    assert done == [CheckpointAdded("live-1"), CheckpointAdded("live-2")]
    status = world.fleet.held("live-2").checkpoints["fraud.refund"]
    assert (status.kind, status.following) == ("score", "fraud-checkout@refund")
    assert additions.lacking("fraud.refund") == []
    (entry,) = [e for e in world.service.audit.entries(admin) if e.action == "checkpoint.serve"]
    assert entry.details["servers"] == {"live-1": "added", "live-2": "added"}
    with pytest.raises(ConflictError, match="every reachable server"):
        additions.serve_checkpoint(admin, "fraud.refund", ServeCheckpoint(kind="score"))


def test_a_server_that_refuses_a_checkpoint_is_reported_and_the_others_have_it(world: World) -> None:
    additions, admin = world.service.additions, world.actor("admin")
    _new(world)
    original = world.fleet.add_checkpoint

    def refusing(member: Any, *arguments: Any, **more: Any) -> None:
        if member.name == "live-1":
            raise RefusedError('server "live-1" refuses: it exists with other settings')
        original(member, *arguments, **more)

    world.fleet.add_checkpoint = refusing  # type: ignore[method-assign]
    first, second = additions.serve_checkpoint(admin, "fraud.refund", ServeCheckpoint(kind="action"))
    assert first.server == "live-1" and "other settings" in first.error
    assert second == CheckpointAdded("live-2")
    assert additions.lacking("fraud.refund") == ["live-1"]


def test_only_admins_add_a_checkpoint_that_servers_have(world: World) -> None:
    _new(world)
    with pytest.raises(NotAllowedError):
        world.service.additions.serve_checkpoint(
            world.actor("owner"), "fraud.refund", ServeCheckpoint(kind="score")
        )
    with pytest.raises(NotFoundError, match="there is no checkpoint"):
        world.service.additions.serve_checkpoint(
            world.actor("admin"), "no.such", ServeCheckpoint(kind="score")
        )
