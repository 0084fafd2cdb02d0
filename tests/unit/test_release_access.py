"""Tests of roles and permissions, on both database engines."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from scorer.release.access import Access, Attempts
from scorer.release.audit import Audit
from scorer.release.errors import (
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotAuthenticatedError,
    NotFoundError,
)
from scorer.release.model import PLATFORM, Actor, Quotas, Role
from scorer.release.store import Store, tables

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.at = START

    def __call__(self) -> datetime:
        return self.at

    def forward(self, **length: float) -> None:
        self.at += timedelta(**length)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def access(store: Store, clock: Clock) -> Access:
    access = Access(store, now=clock, session_hours=12, idle_hours=2)
    access.create_project(PLATFORM, "checkout", "Checkout")
    access.create_project(PLATFORM, "payouts", "Payouts")
    for user, role in (
        ("vera", Role.VIEWER),
        ("mo", Role.MODELER),
        ("ann", Role.APPROVER),
        ("olga", Role.OWNER),
    ):
        access.set_member(PLATFORM, "checkout", user, role)
    access.set_member(PLATFORM, "payouts", "olga", Role.VIEWER)
    access.set_member(PLATFORM, "payouts", "paul", Role.OWNER)
    access.add_user(PLATFORM, "root", admin=True)
    return access


def bearer(access: Access, user: str, role: Role = Role.OWNER, **more: object) -> Actor:
    _, secret = access.create_token(PLATFORM, user=user, label="test", role=role, **more)  # type: ignore[arg-type]
    return access.authenticate(secret)


# === tokens ===


def test_a_token_has_the_roles_of_its_user_within_its_own_limits(access: Access) -> None:
    assert bearer(access, "olga").roles == {"checkout": Role.OWNER, "payouts": Role.VIEWER}
    assert bearer(access, "olga", Role.MODELER).roles == {
        "checkout": Role.MODELER,
        "payouts": Role.VIEWER,
    }
    assert bearer(access, "olga", project="payouts").roles == {"payouts": Role.VIEWER}
    actor = bearer(access, "mo")
    assert (actor.user, actor.via, actor.admin) == ("mo", "token", False)
    assert actor.token in {token.id for token in access.tokens(actor)}


def test_a_token_of_an_admin_can_be_restricted(access: Access) -> None:
    everything = bearer(access, "root", Role.ADMIN)
    assert everything.admin
    cut = bearer(access, "root", Role.MODELER)
    assert not cut.admin
    assert cut.roles == {"checkout": Role.MODELER, "payouts": Role.MODELER}
    scoped = bearer(access, "root", Role.OWNER, project="payouts")
    assert not scoped.admin
    assert scoped.roles == {"payouts": Role.OWNER}
    assert not bearer(access, "mo", Role.ADMIN).admin


def test_a_removed_membership_takes_effect_with_the_next_request(access: Access) -> None:
    _, secret = access.create_token(PLATFORM, user="mo", label="ci", role=Role.MODELER)
    assert access.authenticate(secret).roles == {"checkout": Role.MODELER}
    access.set_member(PLATFORM, "checkout", "mo", Role.VIEWER)
    assert access.authenticate(secret).roles == {"checkout": Role.VIEWER}
    access.set_member(PLATFORM, "checkout", "mo", None)
    assert access.authenticate(secret).roles == {}


def test_only_a_hash_of_a_token_is_stored(access: Access, store: Store) -> None:
    token, secret = access.create_token(PLATFORM, user="mo", label="ci", role=Role.MODELER)
    cookie, session = access.open_session(secret)
    assert secret.startswith("scr_")
    assert len(secret) == 4 + 43
    with store.read() as connection:
        for table in tables.metadata.sorted_tables:
            for row in connection.execute(select(table)):
                kept = repr(tuple(row))
                assert secret not in kept
                assert cookie not in kept
                assert session.csrf not in kept
    assert secret not in repr(token)


@pytest.mark.parametrize(
    "secret", ["", "scr_", "scr_" + "x" * 43, "Bearer scr_x", "ä\0\ud800", "x" * 100_000]
)
def test_a_wrong_token_is_refused(access: Access, secret: str) -> None:
    with pytest.raises(NotAuthenticatedError, match="this token is unknown") as refused:
        access.authenticate(secret)
    assert len(secret) < 5 or secret not in str(refused.value)


def test_expired_and_revoked_tokens_are_refused(access: Access, clock: Clock) -> None:
    token, secret = access.create_token(
        PLATFORM, user="mo", label="ci", role=Role.MODELER, expires_at=START + timedelta(days=1)
    )
    clock.forward(days=1, microseconds=-1)
    access.authenticate(secret)
    clock.forward(microseconds=1)
    with pytest.raises(NotAuthenticatedError, match="expired at 2026-03-02 12:00 UTC"):
        access.authenticate(secret)
    with pytest.raises(NotAuthenticatedError, match="expired"):
        access.open_session(secret)
    access.revoke_token(PLATFORM, token.id)
    access.revoke_token(PLATFORM, token.id)
    with pytest.raises(NotAuthenticatedError, match="has been revoked"):
        access.authenticate(secret)
    revocations = Audit(access._store).entries(PLATFORM, action="token.revoke")
    assert [entry.object for entry in revocations] == [token.id]


def test_a_clock_that_jumped_ahead_does_not_end_tokens_permanently(access: Access, clock: Clock) -> None:
    _, secret = access.create_token(
        PLATFORM, user="mo", label="ci", role=Role.MODELER, expires_at=START + timedelta(days=30)
    )
    clock.forward(days=400)
    with pytest.raises(NotAuthenticatedError):
        access.authenticate(secret)
    clock.forward(days=-400)
    access.authenticate(secret)


def test_the_last_use_is_written_at_most_once_a_minute(access: Access, clock: Clock) -> None:
    token, secret = access.create_token(PLATFORM, user="mo", label="ci", role=Role.MODELER)

    def used() -> datetime | None:
        [listed] = [each for each in access.tokens(PLATFORM) if each.id == token.id]
        return listed.last_used_at

    assert used() is None
    access.authenticate(secret)
    assert used() == START
    clock.forward(seconds=59)
    access.authenticate(secret)
    assert used() == START
    clock.forward(seconds=1)
    access.authenticate(secret)
    assert used() == START + timedelta(minutes=1)
    clock.forward(days=-1)
    access.authenticate(secret)
    assert used() == START + timedelta(minutes=1)


def test_a_token_creates_no_token_with_more_permissions(access: Access) -> None:
    scoped = bearer(access, "olga", project="payouts")
    with pytest.raises(NotAllowedError, match="your token is restricted to project payouts"):
        access.create_token(scoped, label="wider", role=Role.VIEWER)
    with pytest.raises(NotAllowedError, match="your token is restricted to project payouts"):
        access.create_token(scoped, label="other", project="checkout", role=Role.VIEWER)
    with pytest.raises(NotAllowedError, match="is viewer in project payouts"):
        access.create_token(scoped, label="more", project="payouts", role=Role.MODELER)
    cut = bearer(access, "olga", Role.MODELER)
    with pytest.raises(NotAllowedError, match="a token cannot have a higher role"):
        access.create_token(cut, label="more", role=Role.OWNER)
    _, secret = access.create_token(cut, label="same", role=Role.MODELER)
    assert access.authenticate(secret).roles == cut.roles
    with pytest.raises(NotAllowedError, match="olga is not an admin"):
        access.create_token(cut, label="more", role=Role.ADMIN)
    with pytest.raises(InvalidError, match="for the whole platform"):
        access.create_token(PLATFORM, label="x", project="checkout", role=Role.ADMIN, user="root")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    user=st.sampled_from(["vera", "mo", "ann", "olga", "paul"]),
    first=st.tuples(st.sampled_from(list(Role)[:4]), st.sampled_from([None, "checkout", "payouts"])),
    second=st.tuples(st.sampled_from(list(Role)), st.sampled_from([None, "checkout", "payouts"])),
)
def test_no_chain_of_tokens_gains_permissions(
    access: Access,
    user: str,
    first: tuple[Role, str | None],
    second: tuple[Role, str | None],
) -> None:
    parent = bearer(access, user, first[0], project=first[1])
    try:
        _, secret = access.create_token(parent, label="child", role=second[0], project=second[1])
    except (NotAllowedError, NotFoundError):
        return
    child = access.authenticate(secret)
    order = list(Role)
    assert not child.admin
    for project, role in child.roles.items():
        assert order.index(role) <= order.index(parent.roles[project])


def test_a_token_that_an_expiring_token_creates_expires_no_later(access: Access, clock: Clock) -> None:
    end = START + timedelta(days=7)
    actor = bearer(access, "mo", Role.MODELER, expires_at=end)
    token, _ = access.create_token(actor, label="heir", role=Role.MODELER)
    assert token.expires_at == end
    with pytest.raises(NotAllowedError, match="the new token cannot"):
        access.create_token(actor, label="later", role=Role.MODELER, expires_at=end + timedelta(seconds=1))
    sooner, _ = access.create_token(
        actor, label="sooner", role=Role.MODELER, expires_at=end - timedelta(days=1)
    )
    assert sooner.expires_at == end - timedelta(days=1)
    with pytest.raises(InvalidError, match="is past"):
        access.create_token(actor, label="past", role=Role.MODELER, expires_at=START)
    with pytest.raises(InvalidError, match="no time zone"):
        access.create_token(actor, label="naive", role=Role.MODELER, expires_at=datetime(2027, 1, 1))


def test_only_admins_create_tokens_of_other_users(access: Access) -> None:
    """Otherwise an owner could approve own changes as another user."""
    olga = bearer(access, "olga")
    with pytest.raises(NotAllowedError, match="or an admin creates a token"):
        access.create_token(olga, user="ann", label="x", project="checkout", role=Role.APPROVER)
    with pytest.raises(NotFoundError, match='there is no user "ann2"'):
        access.set_member(olga, "checkout", "ann2", Role.APPROVER)
    with pytest.raises(NotFoundError, match='there is no user "ghost"'):
        access.create_token(PLATFORM, user="ghost", label="x", role=Role.VIEWER)


def test_a_revoked_token_creates_no_tokens(access: Access) -> None:
    actor = bearer(access, "mo", Role.MODELER)
    assert actor.token
    access.revoke_token(PLATFORM, actor.token)
    with pytest.raises(NotAuthenticatedError, match="has been revoked"):
        access.create_token(actor, label="late", role=Role.VIEWER)


def test_users_and_owners_list_and_revoke_their_tokens(access: Access) -> None:
    mine, _ = access.create_token(PLATFORM, user="mo", label="a", role=Role.MODELER)
    scoped, _ = access.create_token(PLATFORM, user="mo", label="b", role=Role.MODELER, project="checkout")
    mo, olga, paul = (bearer(access, user) for user in ("mo", "olga", "paul"))
    seen = {user.user: {token.id for token in access.tokens(user)} for user in (mo, olga, paul)}
    assert {mine.id, scoped.id} <= seen["mo"]
    assert scoped.id in seen["olga"]
    assert mine.id not in seen["olga"]
    assert not seen["paul"] & {mine.id, scoped.id}
    for actor, token in ((olga, mine.id), (paul, scoped.id), (paul, "tok_none")):
        with pytest.raises(NotFoundError, match="that you may see"):
            access.revoke_token(actor, token)
    access.revoke_token(olga, scoped.id)
    access.revoke_token(mo, mine.id)


def test_eight_threads_create_tokens(access: Access, store: Store) -> None:
    tokens: list[str] = []

    def make(index: int) -> None:
        for number in range(6):
            _, secret = access.create_token(PLATFORM, user="mo", label=f"{index}.{number}", role=Role.VIEWER)
            tokens.append(access.authenticate(secret).token or "")

    threads = [threading.Thread(target=make, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 48
    audit = Audit(store)
    assert audit.verify().problems == ()
    assert {entry.object for entry in audit.entries(PLATFORM, action="token.create")} == set(tokens)


# === sessions ===


def test_a_session_is_opened_used_and_closed(access: Access) -> None:
    token, secret = access.create_token(PLATFORM, user="mo", label="web", role=Role.MODELER)
    cookie, opened = access.open_session(secret)
    again = access.session(cookie)
    assert again == opened
    assert again.actor == Actor("mo", {"checkout": Role.MODELER}, False, "session", token.id)
    other_cookie, other = access.open_session(secret)
    assert other.csrf != opened.csrf
    access.close_session(cookie)
    access.close_session(cookie)
    with pytest.raises(NotAuthenticatedError, match="sign in again"):
        access.session(cookie)
    access.session(other_cookie)
    access.revoke_token(PLATFORM, token.id)
    with pytest.raises(NotAuthenticatedError, match="sign in again"):
        access.session(other_cookie)
    for wrong in ("", "x" * 43, "\ud800"):
        with pytest.raises(NotAuthenticatedError):
            access.session(wrong)


def test_a_session_ends_when_unused_and_after_its_maximum_age(access: Access, clock: Clock) -> None:
    _, secret = access.create_token(PLATFORM, user="mo", label="web", role=Role.MODELER)
    idle, _ = access.open_session(secret)
    busy, _ = access.open_session(secret)
    for _ in range(11):
        clock.forward(hours=1)
        session = access.session(busy)
        assert session.expires_at <= START + timedelta(hours=12)
    with pytest.raises(NotAuthenticatedError, match="not signed in"):  # deleted since
        access.session(idle)
    clock.forward(hours=1)
    with pytest.raises(NotAuthenticatedError, match="ended"):
        access.session(busy)


def test_a_session_ends_when_its_token_expires(access: Access, clock: Clock) -> None:
    _, secret = access.create_token(
        PLATFORM, user="mo", label="web", role=Role.MODELER, expires_at=START + timedelta(hours=1)
    )
    cookie, _ = access.open_session(secret)
    clock.forward(hours=1)
    with pytest.raises(NotAuthenticatedError):
        access.session(cookie)


def test_no_clock_change_restores_a_session(access: Access, clock: Clock) -> None:
    _, secret = access.create_token(PLATFORM, user="mo", label="web", role=Role.MODELER)
    seen, unseen, other = (access.open_session(secret)[0] for _ in range(3))
    clock.forward(hours=3)
    with pytest.raises(NotAuthenticatedError, match="ended"):
        access.session(seen)
    clock.forward(hours=-3)
    with pytest.raises(NotAuthenticatedError):  # the end is detected
        access.session(seen)
    clock.forward(hours=1)
    access.session(other)
    clock.forward(hours=1, minutes=30)
    access.session(other)  # a request of another session, while the ended one is not used
    clock.forward(hours=-1)
    with pytest.raises(NotAuthenticatedError):
        access.session(unseen)


def test_a_session_whose_last_use_is_in_the_future_ends(access: Access, clock: Clock) -> None:
    """Otherwise a clock that is set back would extend the session beyond its limit."""
    _, secret = access.create_token(PLATFORM, user="mo", label="web", role=Role.MODELER)
    cookie, _ = access.open_session(secret)
    clock.forward(minutes=30)
    access.session(cookie)
    clock.forward(seconds=-59)  # a step as NTP may cause it
    access.session(cookie)
    clock.forward(seconds=-2)
    for _ in range(2):
        with pytest.raises(NotAuthenticatedError):
            access.session(cookie)
        clock.forward(minutes=1)


def test_a_trusted_proxy_authenticates_existing_users(access: Access) -> None:
    actor = access.by_proxy("olga")
    assert (actor.via, actor.token) == ("proxy", None)
    assert actor.roles == {"checkout": Role.OWNER, "payouts": Role.VIEWER}
    assert access.by_proxy("root").admin
    cookie, session = access.open_proxy_session("olga")
    assert session.actor == actor
    assert access.session(cookie).actor == actor
    access.remove_user(PLATFORM, "olga")
    with pytest.raises(NotAuthenticatedError):
        access.session(cookie)
    for name in ("olga", "nobody", "", "a\0b"):
        with pytest.raises((NotAuthenticatedError, InvalidError)):
            access.by_proxy(name)


# === projects, members, users ===


def test_the_six_roles_are_ordered(access: Access) -> None:
    order = list(Role)
    for user, has in (("vera", 0), ("mo", 2), ("ann", 3), ("olga", 4)):
        actor = access.by_proxy(user)
        for request in order:
            if order.index(request) <= has:
                access.require(actor, request, "checkout")
            else:
                with pytest.raises(NotAllowedError):
                    access.require(actor, request, "checkout")
    for request in order:
        access.require(access.by_proxy("root"), request, "checkout")
        access.require(access.by_proxy("root"), request, "")


def test_other_projects_are_not_revealed(access: Access) -> None:
    """The errors of a missing project and of an invisible one differ only in the name."""
    mo = access.by_proxy("mo")
    calls = [
        lambda name: access.project(mo, name),
        lambda name: access.members(mo, name),
        lambda name: access.set_member(mo, name, "vera", Role.VIEWER),
        lambda name: access.require(mo, Role.VIEWER, name),
        lambda name: access.create_token(mo, label="x", project=name, role=Role.VIEWER),
    ]
    for call in calls:
        messages = []
        for name in ("payouts", "missing"):
            with pytest.raises(NotFoundError) as refused:
                call(name)
            messages.append(str(refused.value).replace(name, "?"))
        assert messages[0] == messages[1]
    assert [project.name for project in access.projects(mo)] == ["checkout"]
    with pytest.raises(NotFoundError):
        access.require(PLATFORM, Role.VIEWER, "missing")


def test_admins_create_and_update_projects(access: Access) -> None:
    project = access.create_project(
        PLATFORM, "risk", " Risk ", quotas=Quotas(bundles=3), checkpoints=["b", "a", "b"]
    )
    assert (project.title, project.quotas, project.checkpoints) == ("Risk", Quotas(bundles=3), ("a", "b"))
    changed = access.update_project(
        PLATFORM, "risk", quotas=Quotas(open_changes=1, bundles=3), checkpoints=[]
    )
    assert (changed.title, changed.quotas.open_changes, changed.checkpoints) == ("Risk", 1, ())
    [entry] = Audit(access._store).entries(PLATFORM, action="project.update")
    assert entry.details == {
        "open_changes": {"from": 20, "to": 1},
        "checkpoints": {"from": ["a", "b"], "to": []},
    }
    access.update_project(PLATFORM, "risk", title="Risk")  # an update without a change is not audited
    assert len(Audit(access._store).entries(PLATFORM, action="project.update")) == 1
    with pytest.raises(ConflictError, match="exists already"):
        access.create_project(PLATFORM, "risk", "again")
    for call in (
        lambda: access.create_project(access.by_proxy("olga"), "x", "x"),
        lambda: access.update_project(access.by_proxy("olga"), "checkout", title="x"),
    ):
        with pytest.raises(NotAllowedError, match="ask an admin"):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda access: access.create_project(PLATFORM, "Bad Name", "t"),
        lambda access: access.create_project(PLATFORM, "x" * 41, "t"),
        lambda access: access.create_project(PLATFORM, "ok", " "),
        lambda access: access.create_project(PLATFORM, "ok", "two\nlines"),
        lambda access: access.create_project(PLATFORM, "ok", "t", quotas=Quotas(bundles=-1)),
        lambda access: access.create_project(PLATFORM, "ok", "t", quotas=Quotas(bundles=True)),
        lambda access: access.create_project(PLATFORM, "ok", "t", checkpoints="fraud"),
        lambda access: access.set_member(PLATFORM, "checkout", "a b", Role.VIEWER),
        lambda access: access.set_member(PLATFORM, "checkout", "platform", Role.VIEWER),
        lambda access: access.set_member(PLATFORM, "checkout", "mo", Role.ADMIN),
        lambda access: access.create_token(PLATFORM, user="mo", label="", role=Role.VIEWER),
        lambda access: access.add_user(PLATFORM, "\ud800"),
    ],
)
def test_invalid_values_are_refused_without_an_audit_entry(access: Access, call: object) -> None:
    before = Audit(access._store).head()
    with pytest.raises(InvalidError):
        call(access)  # type: ignore[operator]
    assert Audit(access._store).head() == before


def test_owners_manage_members(access: Access) -> None:
    olga = access.by_proxy("olga")
    access.set_member(olga, "checkout", "paul", Role.APPROVER)
    access.set_member(olga, "checkout", "vera", None)
    access.set_member(olga, "checkout", "vera", None)
    assert [(member.user, member.role) for member in access.members(olga, "checkout")] == [
        ("ann", "approver"),
        ("mo", "modeler"),
        ("olga", "owner"),
        ("paul", "approver"),
    ]
    with pytest.raises(NotAllowedError, match="is approver in project checkout; this requires owner"):
        access.set_member(access.by_proxy("ann"), "checkout", "mo", None)
    [entry] = Audit(access._store).entries(PLATFORM, action="member.remove")
    assert (entry.actor, entry.object, entry.details) == ("olga", "vera", {"from": "viewer", "to": None})


def test_the_last_admin_cannot_be_removed(access: Access) -> None:
    with pytest.raises(ConflictError, match="root is the last admin"):
        access.set_admin(PLATFORM, "root", admin=False)
    with pytest.raises(ConflictError, match="root is the last admin"):
        access.remove_user(PLATFORM, "root")
    access.set_admin(PLATFORM, "olga", admin=True)
    access.remove_user(PLATFORM, "root")
    with pytest.raises(NotAuthenticatedError):
        access.by_proxy("root")
    with pytest.raises(NotAllowedError):
        access.users(access.by_proxy("mo"))
    assert {user.name: (user.admin, user.removed) for user in access.users(PLATFORM)} == {
        "ann": (False, False),
        "mo": (False, False),
        "olga": (True, False),
        "paul": (False, False),
        "root": (False, True),
        "vera": (False, False),
    }


def test_a_removed_user_loses_access_at_once_and_returns_without_roles(access: Access) -> None:
    _, secret = access.create_token(PLATFORM, user="mo", label="ci", role=Role.MODELER)
    cookie, _ = access.open_session(secret)
    access.remove_user(PLATFORM, "mo")
    for call in (lambda: access.authenticate(secret), lambda: access.session(cookie)):
        with pytest.raises(NotAuthenticatedError):
            call()
    with pytest.raises(NotFoundError):
        access.set_member(access.by_proxy("olga"), "checkout", "mo", Role.MODELER)
    access.add_user(PLATFORM, "mo")
    with pytest.raises(NotAuthenticatedError, match="revoked"):
        access.authenticate(secret)
    assert access.by_proxy("mo").roles == {}


def test_bootstrap_succeeds_once(store: Store) -> None:
    access = Access(store)
    token, secret = access.bootstrap("root")
    assert (token.user, token.role) == ("root", Role.ADMIN)
    assert access.authenticate(secret).admin
    with pytest.raises(ConflictError, match="--force-new-token"):
        access.bootstrap("root")
    with pytest.raises(ConflictError):
        access.bootstrap("mallory")
    _, second = access.bootstrap("root", force_new_token=True)
    assert access.authenticate(second).admin
    access.authenticate(secret)
    forced = [
        entry.details["forced"] for entry in Audit(store).entries(PLATFORM, action="platform.bootstrap")
    ]
    assert forced == [True, False]


def test_concurrent_bootstraps_create_one_admin(database_url: str) -> None:
    stores = [Store(database_url), Store(database_url)]
    results: list[str] = []

    def bootstrap(index: int) -> None:
        try:
            Access(stores[index % 2]).bootstrap(f"admin{index}")
            results.append("made")
        except ConflictError:
            results.append("refused")

    threads = [threading.Thread(target=bootstrap, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == ["made"] + ["refused"] * 5
    for store in stores:
        store.close()


# === failed sign-ins ===


def test_failed_sign_ins_throttle_their_source() -> None:
    now = [0.0]
    attempts = Attempts(limit=3, seconds=30, sources=2, clock=lambda: now[0])
    for _ in range(3):
        assert attempts.wait("a") == 0
        attempts.failed("a")
    assert attempts.wait("a") == 10
    assert attempts.wait("b") == 0
    now[0] = 10
    assert attempts.wait("a") == 0
    attempts.failed("a")
    assert attempts.wait("a") == 10
    attempts.failed("b")
    attempts.failed("c")
    assert attempts.wait("a") == 0  # old entries are removed, so memory is bounded
