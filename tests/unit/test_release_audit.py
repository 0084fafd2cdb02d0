"""Tests on both engines that every later change of the audit log is detected."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, delete, insert, select, text, update
from typer.testing import CliRunner

from scorer.release.audit import Audit
from scorer.release.audit.chain import FIELDS, GENESIS, Walk, entry_hash
from scorer.release.model import PLATFORM, Actor, Role
from scorer.release.store import Store, tables

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
ADA = Actor("ada", {"checkout": Role.MODELER}, via="token", token="tok_1")


@pytest.fixture
def audit(store: Store) -> Audit:
    times = iter(NOW + timedelta(seconds=second) for second in range(100_000))
    return Audit(store, now=lambda: next(times))


def fill(store: Store, audit: Audit, count: int = 6) -> None:
    with store.write() as connection:
        for number in range(count):
            audit.append(
                connection, ADA, "change.draft", f"cr-{number}", project="checkout", details={"n": number}
            )


@contextmanager
def tampering(store: Store) -> Iterator[Connection]:
    """Open a transaction without the triggers of the database, as its owner can."""
    with store.write() as connection:
        if store.dialect == "sqlite":
            for name in ("audit_no_update", "audit_no_delete", "audit_head_no_delete"):
                connection.execute(text(f"DROP TRIGGER IF EXISTS {name}"))
        else:
            for table in ("audit", "audit_head"):
                connection.execute(text(f"ALTER TABLE {table} DISABLE TRIGGER USER"))
        yield connection


def rows(store: Store) -> list[dict[str, Any]]:
    with store.read() as connection:
        result = connection.execute(select(tables.audit).order_by(tables.audit.c.sequence))
        return [dict(row._mapping) for row in result]


def test_entries_are_a_chain(store: Store, audit: Audit) -> None:
    fill(store, audit, 3)
    entries = audit.entries(PLATFORM)
    assert [entry.sequence for entry in entries] == [3, 2, 1]
    assert [entry.previous for entry in entries] == [entries[1].hash, entries[2].hash, GENESIS]
    assert entries[2].at == NOW
    assert entries[2].details == {"n": 0, "token": "tok_1"}
    assert audit.head() == (3, entries[0].hash)
    verified = audit.verify(expect=(2, entries[1].hash))
    assert (verified.entries, verified.sequence, verified.head) == (3, 3, entries[0].hash)
    assert verified.problems == ()


def test_the_hash_is_the_documented_one() -> None:
    """The test follows the calculation in docs/operating.md."""
    import hashlib

    entry = {
        "sequence": 1, "at": 1_772_366_400_000_000, "actor": "ada", "via": "token", "action": "token.create",
        "object": "tok_1", "project": "", "details": '{"label":"ä"}', "previous": GENESIS,
    }  # fmt: skip
    canonical = (
        '{"action":"token.create","actor":"ada","at":1772366400000000,"details":"{\\"label\\":\\"\\u00e4\\"}",'
        f'"object":"tok_1","previous":"{GENESIS}","project":"","sequence":1,"via":"token"}}'
    )
    assert entry_hash(entry) == hashlib.sha256(b"scorer-audit-1\n" + canonical.encode()).hexdigest()


def test_an_entry_is_rolled_back_with_its_transaction(store: Store, audit: Audit) -> None:
    fill(store, audit, 1)
    with pytest.raises(ZeroDivisionError), store.write() as connection:
        audit.append(connection, ADA, "change.submit", "cr-1")
        _ = 1 / 0
    fill(store, audit, 1)
    assert [entry.action for entry in audit.entries(PLATFORM)] == ["change.draft", "change.draft"]
    assert audit.verify().problems == ()


def test_threads_and_stores_append_to_one_chain(database_url: str) -> None:
    stores = [Store(database_url), Store(database_url)]
    audits = [Audit(store) for store in stores]

    def append(index: int) -> None:
        for number in range(12):
            with stores[index % 2].write() as connection:
                audits[index % 2].append(connection, Actor(f"user{index}"), "x", str(number))

    threads = [threading.Thread(target=append, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    verified = audits[0].verify()
    assert (verified.entries, verified.sequence, verified.problems) == (96, 96, ())
    for store in stores:
        store.close()


def _changed(value: Any, seed: int, words: str) -> Any:
    return value + seed if isinstance(value, int) else words


@pytest.mark.fault_case(82)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    which=st.integers(0, 5),
    field=st.sampled_from([*FIELDS, "hash"]),
    seed=st.integers(-3, 10).filter(bool),
    words=st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=5),
)
@example(which=0, field="previous", seed=1, words="")
@example(which=5, field="hash", seed=1, words="")
@example(which=5, field="sequence", seed=7, words="")
@example(
    which=2, field="details", seed=1, words='{"n": 2,"token":"tok_1"}'
)  # the same JSON with other white space
def test_any_single_change_of_any_field_is_found(
    store: Store, audit: Audit, which: int, field: str, seed: int, words: str
) -> None:
    if not rows(store):
        fill(store, audit)
    before = rows(store)
    value = _changed(before[which][field], seed, words)
    taken = {row["sequence"] for row in before}
    if value == before[which][field] or (field == "sequence" and value in taken):
        return
    one = tables.audit.c.sequence
    with tampering(store) as connection:
        connection.execute(
            update(tables.audit).where(one == before[which]["sequence"]).values({field: value})
        )
    problems = audit.verify().problems
    changed = value if field == "sequence" else before[which]["sequence"]
    with tampering(store) as connection:
        connection.execute(update(tables.audit).where(one == changed).values(before[which]))
    assert problems
    named = " ".join(problems)
    assert any(str(number) in named for number in (changed, before[which]["sequence"]))
    assert audit.verify().problems == ()


@pytest.mark.fault_case(82)
@pytest.mark.parametrize("gone", [[1], [3], [2, 3, 4], [6], [5, 6], [1, 2, 3, 4, 5, 6]])
def test_removed_entries_are_reported(store: Store, audit: Audit, gone: list[int]) -> None:
    fill(store, audit)
    with tampering(store) as connection:
        connection.execute(delete(tables.audit).where(tables.audit.c.sequence.in_(gone)))
    problems = " ".join(audit.verify().problems)
    name = f"entry {gone[0]} is" if len(gone) == 1 else f"entries {gone[0]} to {gone[-1]} are"
    assert name in problems


def test_a_removed_tail_with_its_head_is_detected_by_a_stored_hash(store: Store, audit: Audit) -> None:
    fill(store, audit)
    anchor = audit.head()
    kept = rows(store)[3]
    with tampering(store) as connection:
        connection.execute(delete(tables.audit).where(tables.audit.c.sequence > 4))
        connection.execute(update(tables.audit_head).values(sequence=4, hash=kept["hash"]))
    assert audit.verify().problems == ()  # the database contains no evidence
    assert "entry 6, whose hash was kept elsewhere, is missing" in audit.verify(expect=anchor).problems


def test_a_completely_rewritten_chain_is_detected_by_a_stored_hash(store: Store, audit: Audit) -> None:
    fill(store, audit)
    anchor = audit.head()
    previous = GENESIS
    forged = []
    for row in rows(store):
        row.update(actor="mallory" if row["sequence"] == 2 else row["actor"], previous=previous)
        row["hash"] = previous = entry_hash(row)
        forged.append(row)
    with tampering(store) as connection:
        connection.execute(delete(tables.audit))
        connection.execute(insert(tables.audit), forged)
        connection.execute(update(tables.audit_head).values(hash=previous))
    assert audit.verify().problems == ()
    [problem] = audit.verify(expect=anchor).problems
    assert problem.startswith("entry 6: its hash")


def test_inserted_reordered_and_second_chains_are_detected(store: Store, audit: Audit) -> None:
    fill(store, audit)
    head = audit.head()
    good = rows(store)

    def problems(changed: list[dict[str, Any]]) -> str:
        walk = Walk()
        walk.feed(changed)
        return " ".join(walk.problems(head))

    assert problems(good) == ""
    swapped = [dict(row) for row in good]
    swapped[2], swapped[3] = (
        {**swapped[3], "sequence": 3},
        {**swapped[2], "sequence": 4},
    )
    assert "entry 3:" in problems(swapped)
    assert "entry 4:" in problems(swapped)
    inserted = {**good[5], "sequence": 7, "actor": "mallory", "previous": good[5]["hash"]}
    inserted["hash"] = entry_hash(inserted)
    assert "entry 7 is after the head" in problems([*good, inserted])
    other = {**good[0], "sequence": 4, "previous": GENESIS}
    other["hash"] = entry_hash(other)
    second_chain = problems([*good[:3], other, *good[4:]])
    assert "entry 4: its previous hash is 000000000000..." in second_chain
    assert "entry 5: its previous hash is" in second_chain
    assert "entry 3: its sequence does not follow 3" in problems([*good[:3], good[2], *good[3:]])


def test_a_missing_head_and_foreign_values_are_problems(store: Store, audit: Audit) -> None:
    fill(store, audit, 2)
    with tampering(store) as connection:
        connection.execute(delete(tables.audit_head))
    assert "the head is missing" in " ".join(audit.verify().problems)
    if store.dialect == "sqlite":  # SQLite accepts any value in any column
        with tampering(store) as connection:
            connection.execute(text("UPDATE audit SET details = x'00ff' WHERE sequence = 1"))
        assert "entry 1: its content does not match its hash" in audit.verify().problems


def test_users_list_only_entries_that_they_may_see(store: Store, audit: Audit) -> None:
    with store.write() as connection:
        audit.append(connection, ADA, "change.draft", "cr-1", project="checkout")
        audit.append(connection, Actor("bob"), "change.draft", "cr-2", project="other")
        audit.append(connection, ADA, "token.create", "tok_2")
        audit.append(connection, Actor("root"), "token.revoke", "tok_9")
    assert [entry.sequence for entry in audit.entries(ADA)] == [3, 1]
    assert [entry.sequence for entry in audit.entries(PLATFORM)] == [4, 3, 2, 1]
    assert [entry.sequence for entry in audit.entries(PLATFORM, action="token.")] == [4, 3]
    assert [entry.sequence for entry in audit.entries(PLATFORM, action="token.create")] == [3]
    assert audit.entries(ADA, project="other") == []
    assert [entry.sequence for entry in audit.entries(PLATFORM, before=3, limit=1)] == [2]
    assert [entry.object for entry in audit.entries(PLATFORM, user="bob")] == ["cr-2"]
    assert [entry.sequence for entry in audit.entries(PLATFORM, object="cr-1")] == [1]


def test_the_command_verifies_the_chain(tmp_path: Path) -> None:
    from scorer.cli import app

    url = f"sqlite:///{tmp_path}/platform.db"
    store = Store(url)
    fill(store, Audit(store))
    run = CliRunner()

    def call(*arguments: str) -> Any:
        return run.invoke(app, ["audit", *arguments, "--database", url])

    anchor = call("head").output.strip()
    assert anchor == "{}:{}".format(*Audit(store).head())
    good = call("verify", "--expect", anchor)
    assert (good.exit_code, good.output) == (0, f"6 entries, all hashes are correct; head {anchor}\n")
    assert "cr-5" in call("show", "--limit", "1").output
    with tampering(store) as connection:
        connection.execute(update(tables.audit).where(tables.audit.c.sequence == 4).values(actor="mallory"))
    bad = call("verify")
    assert bad.exit_code == 1
    assert "entry 4: its content does not match its hash" in str(bad.exception)
    as_json = call("verify", "--json")
    assert as_json.exit_code == 1
    assert '"entry 4: its content does not match its hash"' in as_json.output
    wrong = call("verify", "--expect", "7")
    assert "is not SEQ:HASH" in str(wrong.exception)
    store.close()
