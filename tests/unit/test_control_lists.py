"""Tests of following external lists, with a fake data plane and a real registry."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeDataPlane

from scorer.control.lists import ExternalLists
from scorer.control.state import StateDirectory
from scorer.events import EventLog
from scorer.registry import Registry, files, lists


class World:
    """A state directory, a registry and a data plane that declares the list `cards`."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.registry = Registry(base / "registry")
        self.state = StateDirectory(base / "state")
        self.state.prepare()
        self.plane = FakeDataPlane()
        self.plane.extra_status = {"lists": [{"name": "cards", "bundles": ["sha256:b"]}]}
        self.stream = io.BytesIO()

    def start(self) -> ExternalLists:
        found = ExternalLists(self.plane, self.registry, self.state, EventLog(self.stream))
        found.read()
        return found

    def put(self, *elements: str) -> lists.ListVersion:
        file = self.base / "cards.txt"
        file.write_text("\n".join(elements))
        return lists.put(self.registry, "cards", file)[0]

    def events(self, name: str) -> list[dict[str, Any]]:
        told = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [event for event in told if event["event"] == name]

    def copies(self) -> list[str]:
        return [entry.name for entry in (self.state.path / "lists").iterdir()]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def play(part: Callable[[], Any]) -> None:
    asyncio.run(part())


def test_the_newest_version_is_copied_loaded_and_kept(world: World) -> None:
    first = world.put("a", "b")
    following = world.start()
    play(following.follow)
    assert world.plane.lists == {"cards": 1} and following.aliases == ("cards@list",)
    play(following.follow)
    assert len(world.plane.calls) == 1, "nothing is loaded twice"
    second = world.put("b", "c")
    play(following.follow)
    assert world.plane.lists == {"cards": 2}
    assert world.copies() == [second.digest.removeprefix("sha256:")]
    # The next process has the version without the registry, and does not go back.
    (world.base / "registry").rename(world.base / "gone")
    world.plane.lists.clear()
    again = world.start()
    play(again.complete)
    assert world.plane.lists == {"cards": 2}
    (world.base / "gone").rename(world.base / "registry")
    world.registry.alias("cards", "list", first.digest)
    play(again.follow)
    assert world.plane.lists == {"cards": 2}
    assert "older than version 2" in again.refused["cards"].reason


def test_a_refused_version_is_reported_once_and_tried_again_when_its_bytes_change(world: World) -> None:
    version = world.put("a")
    world.plane.refuse[version.digest] = "it is damaged"
    following = world.start()
    for _ in range(3):
        play(following.follow)
    (event,) = world.events("list_not_followed")
    assert (event["list"], event["reason"], event["version_in_use"]) == ("cards", "it is damaged", 0)
    assert len(world.plane.calls) == 1 and not following.is_failing

    async def healed() -> bool:
        return await following.may_have_healed()

    assert not asyncio.run(healed())
    stored = world.registry.path / "bundles" / version.digest.removeprefix("sha256:") / "elements.txt"
    stored.chmod(0o644)
    stored.write_text("a")
    world.plane.refuse.clear()
    assert asyncio.run(healed())
    play(following.follow)
    assert world.plane.lists == {"cards": 1} and not following.refused


def test_a_failed_copy_is_counted_and_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("a")
    following = world.start()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(world.registry, "copy", full)
        play(following.follow)
    assert following.is_failing and world.plane.calls == ["list cards not copied"]
    assert "No space left" in following.refused["cards"].reason
    play(following.follow)
    assert world.plane.lists == {"cards": 1} and not following.is_failing


def test_copies_of_lists_that_no_bundle_declares_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["cards", "devices", "shops"]
    versions = {}
    for name in names:
        file = world.base / "elements.txt"
        file.write_text(f"{name}\n")
        versions[name] = lists.put(world.registry, name, file)[0]
    declare = [{"name": name, "bundles": ["sha256:b"]} for name in names]
    world.plane.extra_status = {"lists": declare}
    following = world.start()
    play(following.follow)
    # The list that is loaded last is the one that stays longest.
    world.put("cards", "more")
    play(following.follow)
    copies = {name: following._path(following._used[name].digest) for name in names}
    assert all(path.is_dir() for path in copies.values())
    size = files.size_of(copies["cards"])
    monkeypatch.setattr("scorer.control.lists._UNUSED_BYTES", size)
    world.plane.extra_status = {"lists": declare[1:2]}
    play(following.follow)
    assert {name for name, path in copies.items() if path.is_dir()} == {"cards", "devices"}
    monkeypatch.setattr("scorer.control.lists._UNUSED_BYTES", 0)
    play(following.follow)
    assert {name for name, path in copies.items() if path.is_dir()} == {"devices"}
    # A start deletes nothing: bundles that declare the lists may not be loaded yet.
    world.plane.extra_status = {"lists": declare}
    play(following.follow)
    assert all(path.is_dir() for path in copies.values())
    again = world.start()
    world.plane.extra_status = {"lists": declare[:1]}
    play(again.complete)
    assert all(path.is_dir() for path in copies.values())
    # An older version is refused although its copy was deleted.
    world.plane.extra_status = {"lists": declare[1:2]}
    play(again.follow)
    assert not copies["cards"].is_dir()
    world.registry.alias("cards", "list", versions["cards"].digest)
    world.plane.extra_status = {"lists": declare[:2]}
    play(again.follow)
    assert "older than version 2" in again.refused["cards"].reason


def test_without_a_version_the_bundle_is_served_and_the_list_reported(world: World) -> None:
    world.put("a")
    world.plane.extra_status = {"lists": [{"name": "others", "bundles": ["sha256:b"]}]}
    following = world.start()
    play(following.complete)
    assert "scorer lists put others FILE" in following.refused["others"].reason
    # A list that no bundle declares any longer is not followed.
    world.plane.extra_status = {"lists": [{"name": "others", "bundles": []}]}
    play(following.follow)
    assert following.aliases == () and not following.refused


def test_a_damaged_file_of_versions_is_reported_and_replaced(world: World) -> None:
    (world.state.path / "lists.json").write_text("{")
    world.put("a")
    following = world.start()
    assert len(world.events("lists_unreadable")) == 1
    play(following.follow)
    saved = json.loads((world.state.path / "lists.json").read_text())
    assert saved["lists"]["cards"]["version"] == 1


def test_two_publications_at_a_time_do_not_hide_each_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scorer.errors import AliasMovedError

    world.put("a")
    push = world.registry.push

    def overtaken(*arguments: Any, **options: Any) -> str:
        with monkeypatch.context() as inner:
            inner.setattr(world.registry, "push", push)
            world.put("other")
        return push(*arguments, **options)

    with monkeypatch.context() as outer:
        outer.setattr(world.registry, "push", overtaken)
        with pytest.raises(AliasMovedError, match="moved to sha256:"):
            file = world.base / "mine.txt"
            file.write_text("mine\n")
            lists.put(world.registry, "cards", file)
    newest = lists.newest(world.registry, "cards")
    assert newest is not None and newest.version == 2
