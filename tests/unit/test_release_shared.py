"""Reads that viewers share: one for all until the next commit of any process, and never an outdated one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from changing import World
from sqlalchemy import func, insert, select

from scorer.release.access import Access
from scorer.release.errors import NotAuthenticatedError, NotFoundError
from scorer.release.model import Role
from scorer.release.store import Store, tables
from scorer.release.store.shared import SharedReads

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def add_user(store: Store, name: str) -> None:
    with store.write() as connection:
        connection.execute(insert(tables.users).values(name=name, created_at=NOW))


def users(store: Store) -> int:
    with store.read() as connection:
        return int(connection.execute(select(func.count()).select_from(tables.users)).scalar_one())


def test_a_version_differs_after_each_commit_of_any_connection(store: Store, database_url: str) -> None:
    versions = [store.version()]
    assert store.version() == versions[0] and users(store) == 0 and store.version() == versions[0]
    other = Store(database_url)
    try:
        for number, writer in enumerate((store, other, other, store)):
            before = store.version()
            add_user(writer, f"user-{number}")
            assert store.version() != before
            versions.append(store.version())
    finally:
        other.close()
    assert len(set(versions)) == 5


def test_a_result_is_shared_until_the_next_commit(store: Store, database_url: str) -> None:
    shared: SharedReads[int] = SharedReads(store, 8)
    assert [shared.get("users", lambda: users(store)) for _ in range(5)] == [0] * 5
    assert shared.count == 1
    other = Store(database_url)
    try:
        add_user(other, "ada")
    finally:
        other.close()
    assert shared.get("users", lambda: users(store)) == 1
    assert shared.count == 2


def test_a_commit_during_a_read_makes_its_result_outdated(store: Store) -> None:
    shared: SharedReads[int] = SharedReads(store, 8)

    def overtaken() -> int:
        result = users(store)
        add_user(store, "ada")
        return result

    assert shared.get("users", overtaken) == 0
    assert shared.get("users", lambda: users(store)) == 1


def test_callers_at_the_same_time_run_one_read(store: Store) -> None:
    shared: SharedReads[int] = SharedReads(store, 8)
    begun, going_on = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        assert going_on.wait(20)
        return users(store)

    with ThreadPoolExecutor(12) as threads:
        first = threads.submit(shared.get, "users", slow)
        assert begun.wait(20)
        others = [threads.submit(shared.get, "users", slow) for _ in range(11)]
        going_on.set()
        assert [one.result(20) for one in (first, *others)] == [0] * 12
    assert shared.count == 1


def test_a_failed_read_is_not_kept_and_blocks_nothing(store: Store) -> None:
    shared: SharedReads[int] = SharedReads(store, 8)
    with pytest.raises(ZeroDivisionError):
        shared.get("users", lambda: 1 // 0)
    assert len(shared) == 0 and shared.get("users", lambda: users(store)) == 0


def test_the_number_of_results_is_bounded(store: Store) -> None:
    shared: SharedReads[int] = SharedReads(store, 3)
    for number in (1, 2, 3, 1, 4):
        shared.get(number, lambda number=number: number)  # type: ignore[misc]
    assert len(shared) == 3 and shared.count == 4
    shared.get(1, lambda: 1)
    assert shared.count == 4, "the least recently used result was dropped, which is 2"
    shared.get(2, lambda: 2)
    assert shared.count == 5


# --- shared records ---


def test_viewers_of_a_change_share_its_records_and_not_their_rights(tmp_path: Path) -> None:
    world = World(f"sqlite:///{tmp_path}/platform.db")
    change = world.test("good-1")
    world.tick()
    records = world.changes._views._records
    result = {name: world.changes.get(getattr(world, name), change.id) for name in ("ada", "bob")}
    before = records.count
    assert result["ada"].events is result["bob"].events and before == 1
    assert "withdraw" in result["ada"].allowed and "withdraw" not in result["bob"].allowed
    assert "reject" in result["bob"].allowed and "reject" not in result["ada"].allowed
    with pytest.raises(NotFoundError):
        world.changes.get(world.stranger, change.id)
    with pytest.raises(NotFoundError):
        world.changes.events(world.stranger, change.id)
    world.changes.reject(world.bob, change.id, reason="not now")
    again = world.changes.get(world.ada, change.id)
    assert again.change.state == "rejected" and records.count == before + 1
    world.store.close()


def test_a_removed_user_and_a_removed_role_take_effect_with_the_next_request(store: Store) -> None:
    access = Access(store)
    _, secret = access.bootstrap("root")
    root = access.authenticate(secret)
    access.create_project(root, "fraud", "Fraud")
    access.set_member(root, "fraud", "mia", Role.OWNER)
    _, token = access.create_token(root, user="mia", label="tests", role=Role.OWNER)
    cookie, _ = access.open_session(token)
    assert access.session(cookie).actor.roles == {"fraud": Role.OWNER}
    assert [one.user for one in access.members(root, "fraud")] == ["mia"]
    access.set_member(root, "fraud", "mia", Role.VIEWER)
    assert access.session(cookie).actor.roles == {"fraud": Role.VIEWER}
    assert [one.role for one in access.members(root, "fraud")] == [Role.VIEWER]
    access.remove_user(root, "mia")
    with pytest.raises(NotAuthenticatedError):
        access.session(cookie)
    assert list(access.members(root, "fraud")) == []
    with pytest.raises(NotFoundError):
        access.members(root, "no-such")
