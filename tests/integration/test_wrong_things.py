"""Wrong things that people do on the pages, one case each.

Every rejected form changes nothing, leaves no draft behind, keeps what was typed, and names the rule and the
remedy. Where the remedy can be sent at once, a button sends it.
"""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import serving
from bundles import FEATURES, score_bundle_of
from platforms import SETTINGS, World
from sqlalchemy import select

from scorer.bundle.models import Feature
from scorer.release.archive import pack
from scorer.release.model import ChangeState, Role
from scorer.release.open import open_service
from scorer.release.requests import NewFreeze
from scorer.release.store import tables as t
from scorer.release.store import utcnow

# All tables that a rejected form could change. Sessions and tokens store the time of their last use.
KEPT = (
    t.users, t.projects, t.members, t.bundles, t.builds, t.changes, t.change_events, t.change_steps,
    t.gate_results, t.waivers, t.readouts, t.bookings, t.freezes, t.recorded_tables, t.permissions,
    t.sampling, t.channels,
)  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    settings = SETTINGS.replace("[platform]", "[platform]\nupload_mb = 1", 1)
    world = World(tmp_path, built_bundles, settings=settings)
    yield world
    world.close()


@dataclass(frozen=True)
class Attempt:
    """A form that is rejected.

    Attributes:
        user: The user who sends the form.
        path: Path that the form is sent to.
        fields: The fields of the form. Those of `kept` must be on the page of the error.
        status: Status of the error page.
        messages: Parts of the error message: the rule and the remedy.
        kept: Names of the fields that the user types or chooses.
        offers: Label of the button that sends the remedy; empty: the remedy is not one request.
        shows: Parts of the page that lead to the remedy, if no button sends it.
        files: Files of the form.
        csrf: A CSRF token that replaces the one of the page.
    """

    user: str
    path: str
    fields: Mapping[str, str]
    status: int
    messages: tuple[str, ...]
    kept: tuple[str, ...] = ()
    offers: str = ""
    shows: tuple[str, ...] = ()
    files: Mapping[str, Any] = field(default_factory=dict)
    csrf: str = ""


class Site:
    """The pages of a world over HTTP, for one test."""

    def __init__(self, stack: ExitStack, world: World) -> None:
        self.world = world
        self._stack = stack
        self.address = stack.enter_context(serving(world.app()))

    def reopen(self) -> Site:
        """Return the pages of the current process of the platform."""
        return Site(self._stack, self.world)

    def visitor(self, user: str) -> httpx.Client:
        """Return the browser session of a user."""
        site = self._stack.enter_context(httpx.Client(base_url=self.address, timeout=30))
        site.headers["Origin"] = self.address
        form = {"csrf": csrf(site.get("/login")), "token": self.world.tokens[user]}
        assert site.post("/login", data=form).status_code == 303
        return site

    def send(self, attempt: Attempt) -> tuple[httpx.Client, httpx.Response]:
        """Send the form; return the session and the response."""
        site = self.visitor(attempt.user)
        form = {"csrf": attempt.csrf or csrf(site.get("/projects")), **attempt.fields}
        return site, site.post(attempt.path, data=form, files=attempt.files or None)


@pytest.fixture
def site(world: World) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack, world)


def csrf(response: httpx.Response) -> str:
    result = re.search(r'name="csrf" value="([^"]*)"', response.text)
    assert result, response.text[:400]
    return result[1]


def state_of(world: World) -> dict[str, list[Any]]:
    """Return every row that a form could change."""
    with world.platform.store.read() as connection:
        return {one.name: connection.execute(select(one)).all() for one in KEPT}


def in_hours(hours: float) -> str:
    return (utcnow() + timedelta(hours=hours)).strftime("%Y-%m-%dT%H:00")


def booking(world: World, **changed: str) -> dict[str, str]:
    """Return the form of a TEST that books slot 1 in three hours."""
    return {
        "project": "fraud",
        "kind": "test",
        "checkpoint": "fraud.checkout",
        "bundle": world.candidate,
        "title": "Deeper <trees>",
        "description": "Two lines",
        "minutes": "60",
        "start": in_hours(3),
        "slot": "1",
        "then": "submit",
        **changed,
    }


TYPED = ("title", "description", "minutes", "start", "slot", "bundle")


# --- forms ---


def self_approval(world: World) -> Attempt:
    change = world.awaiting_approval("approver").id
    return Attempt(
        "approver", f"/changes/{change}/approve", {"comment": "looks good"}, 403,
        ("four eyes", "ask another approver of fraud"),
        shows=('id="do-request_review"', "another approver has to approve it"),
    )  # fmt: skip


def an_approval_that_came_second(world: World) -> Attempt:
    change = world.awaiting_approval()
    world.service.changes.approve(world.actor("approver"), change.id, version=change.version)
    return Attempt(
        "owner", f"/changes/{change.id}/approve", {"version": str(change.version)}, 409,
        ("has moved on since version", "approved by approver", "look at it again"),
        shows=('id="do-withdraw"',),
    )  # fmt: skip


def a_form_of_another_session(world: World) -> Attempt:
    return Attempt(
        "modeler", "/changes", booking(world), 403,
        ("not of this session", "nothing was changed", "open the page again and repeat"),
        kept=TYPED, offers="Send the form again as modeler", csrf="0" * 64,
    )  # fmt: skip


def double_booking(world: World) -> Attempt:
    first = world.draft(title="First", minutes=60.0)
    start = utcnow().replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
    world.service.changes.submit(world.actor("modeler"), first.id, start=start, slot=1)
    return Attempt(
        "modeler", "/changes", booking(world), 409,
        (f"booked at that time (by {first.id}", "next free: slot 2"), kept=TYPED, offers="Take slot 2",
    )  # fmt: skip


def a_drag_onto_another_booking(world: World) -> Attempt:
    start = utcnow().replace(minute=0, second=0, microsecond=0) + timedelta(hours=3)
    held, moved = (world.draft(title=title, minutes=60.0).id for title in ("Held", "Moved"))
    modeler = world.actor("modeler")
    world.service.changes.submit(modeler, held, start=start, slot=1)
    world.service.changes.submit(modeler, moved, start=start + timedelta(hours=4), slot=1)
    return Attempt(
        "modeler", "/calendar/move", {"change": moved, "start": in_hours(3), "slot": "1"}, 409,
        (f"booked at that time (by {held}", "next free: slot 2"), kept=("change", "start", "slot"),
        offers="Take slot 2",
    )  # fmt: skip


def a_start_in_the_past(world: World) -> Attempt:
    return Attempt(
        "modeler", "/changes", booking(world, start="2020-01-01T00:00"), 422,
        ("cannot start in the past", "give a later start, or none for the next free slot"), kept=TYPED,
        offers="Take the next free slot",
    )  # fmt: skip


def a_drag_into_the_past(world: World) -> Attempt:
    change = world.draft().id
    world.service.changes.submit(world.actor("modeler"), change, start=utcnow() + timedelta(hours=3), slot=1)
    return Attempt(
        "modeler", "/calendar/move", {"change": change, "start": "2020-01-01T00:00", "slot": "1"}, 422,
        ("cannot start in the past", "give a later start"), kept=("change", "start", "slot"),
    )  # fmt: skip


def zero_minutes(world: World) -> Attempt:
    return Attempt(
        "modeler", "/changes", booking(world, minutes="0"), 422,
        ("minutes: Input should be greater than 0",), kept=TYPED, shows=('name="minutes"',),
    )  # fmt: skip


def an_unknown_digest(world: World) -> Attempt:
    return Attempt(
        "modeler", "/changes", booking(world, bundle="sha256:" + "0" * 64), 404,
        ('there is no bundle "sha256:0000', "list those of your projects"), kept=TYPED,
        shows=('href="/models"',),
    )  # fmt: skip


def bad_stages(world: World) -> Attempt:
    return Attempt(
        "modeler", "/changes", booking(world, stages="five percent"), 422,
        ("is not a share and minutes", "write 5 % 15 min, 25 % 15 min"), kept=(*TYPED, "stages"),
    )  # fmt: skip


def a_bad_cron_line(world: World) -> Attempt:
    freeze = {
        "name": "Sales",
        "kind": "deny",
        "cron": "every friday evening",
        "minutes": "5",
        "checkpoints": "fraud.*",
    }
    return Attempt(
        "admin", "/calendar/freezes", freeze, 422, ("the freeze's times", "has 3 fields instead of five"),
        kept=("name", "cron", "minutes", "checkpoints"),
    )  # fmt: skip


def freeze(world: World, *, since: timedelta, minutes: int) -> None:
    """Freeze fraud.* once a day. The first window started some time ago."""
    begin = utcnow() - since
    world.service.calendar.add_freeze(
        world.actor("admin"),
        NewFreeze(
            name="Sales",
            kind="deny",
            cron=f"{begin.minute} {begin.hour} * * *",
            timezone="UTC",
            minutes=minutes,
            checkpoints=["fraud.*"],
            reason="Black Friday",
        ),
    )


def a_start_inside_a_freeze(world: World) -> Attempt:
    freeze(world, since=timedelta(minutes=10), minutes=600)
    return Attempt(
        "modeler", "/changes", booking(world), 423,
        ('is frozen at', '"Sales" (Black Friday)', "next free: slot 1"), kept=TYPED, offers="Take slot 1",
    )  # fmt: skip


def a_release_without_a_passed_test(world: World) -> Attempt:
    return Attempt(
        "modeler", "/changes", booking(world, kind="release"), 422,
        ("a RELEASE follows a TEST that passed", "draft a TEST of it first"), kept=TYPED,
        offers="Start a TEST of it",
    )  # fmt: skip


def uploading(name: str, content: bytes, *messages: str, status: int = 422) -> Callable[[World], Attempt]:
    """Return an attempt to upload a file as a bundle's archive."""

    def attempt(world: World) -> Attempt:
        # A form that is too large is not read, so that its fields cannot be shown again.
        shows = ('href="/builds/new"', '<option value="fraud" selected>') if status == 422 else ()
        files = {"archive": (name, io.BytesIO(content))}
        return Attempt("modeler", "/models", {"project": "fraud"}, status, messages, shows=shows, files=files)

    return attempt


def an_archive_beyond_the_limit(world: World) -> Attempt:
    directory = world.directory / "large"
    directory.mkdir()
    (directory / "manifest.json").write_text("{}")
    (directory / "forest.bin").write_bytes(bytes(3 << 20))
    packed = io.BytesIO()
    pack(directory, packed)
    return uploading("b.tgz", packed.getvalue(), "upload_mb", "send a smaller bundle")(world)


def zipped() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("manifest.json", "{}")
    return buffer.getvalue()


def uploaded(world: World, features: Sequence[Feature], *, name: str = "fraud-checkout") -> str:
    """Return the digest of an uploaded bundle with other features."""
    score_bundle_of(world.directory / "others", features, name=name)
    buffer = io.BytesIO()
    pack(world.directory / "others", buffer)
    buffer.seek(0)
    return str(world.service.bundles.upload(world.actor("modeler"), "fraud", buffer).digest)


def wrong_features(world: World) -> Attempt:
    features = [Feature(name="amount"), Feature(name="card_age_days", missing="refuse")]
    digest = uploaded(world, features, name="other-model")
    return Attempt(
        "modeler",
        "/changes",
        booking(world, bundle=digest),
        422,
        (
            'only a bundle named "fraud-checkout" can have',
            "build it with that name",
            "does not feed card_age_days",
            "let them be missing until callers send them, or train without them",
        ),
        kept=TYPED,
    )


def deleting_what_was_submitted(world: World) -> Attempt:
    change = world.observed().id
    return Attempt(
        "modeler", f"/changes/{change}/delete", {}, 409,
        ("delete requires draft", "its page lists the permitted operations"), shows=('id="do-withdraw"',),
    )  # fmt: skip


ARCHIVE = "build a bundle with `scorer bundle build` and send a tar or tar.gz"
FORMS: dict[str, Callable[[World], Attempt]] = {
    "self approval": self_approval,
    "an approval that came second": an_approval_that_came_second,
    "a form of another session": a_form_of_another_session,
    "double booking": double_booking,
    "a drag onto another booking": a_drag_onto_another_booking,
    "a drag into the past": a_drag_into_the_past,
    "a start in the past": a_start_in_the_past,
    "zero minutes": zero_minutes,
    "an unknown digest": an_unknown_digest,
    "bad stages": bad_stages,
    "a bad cron line": a_bad_cron_line,
    "a start inside a freeze": a_start_inside_a_freeze,
    "a RELEASE without a passed TEST": a_release_without_a_passed_test,
    "a huge upload, unpacked": an_archive_beyond_the_limit,
    "a huge upload, raw": uploading("b.tar", bytes(3 << 20), "upload_mb", "a smaller request", status=413),
    "a text file as an archive": uploading("b.tar", b"amount,hour\n1,2\n" * 60, "a text file", ARCHIVE),
    "a zip file as an archive": uploading("b.zip", zipped(), "a zip archive", ARCHIVE),
    "a model file as an archive": uploading("m.ubj", b"{L\0" + bytes(900), "an XGBoost model", ARCHIVE),
    "wrong features": wrong_features,
    "deleting what was submitted": deleting_what_was_submitted,
}


def shown(page: str, name: str, value: str) -> bool:
    """Return whether a field of a form on the page has a value: typed, chosen, or to be sent again."""
    own = html.escape(value, quote=False)
    inputs = re.findall(rf'<input[^>]*name="{name}"[^>]*>', page)
    areas = re.findall(rf'<textarea[^>]*name="{name}"[^>]*>(.*?)</textarea>', page, re.S)
    chosen = re.findall(rf'<select[^>]*name="{name}"[^>]*>(.*?)</select>', page, re.S)
    return (
        any(
            html.unescape(re.findall(r'value="([^"]*)"', one)[0]) == value
            for one in inputs
            if "value=" in one
        )
        or own in areas
        or any(re.search(rf'value="{re.escape(value)}"\s+selected', one) for one in chosen)
    )


@pytest.mark.parametrize("name", FORMS)
def test_a_rejected_form_changes_nothing_and_offers_the_remedy(world: World, site: Site, name: str) -> None:
    attempt = FORMS[name](world)
    before = state_of(world)
    visitor, rejected = site.send(attempt)
    assert rejected.status_code == attempt.status
    words = " ".join(html.unescape(re.sub(r"<[^>]*>", " ", rejected.text)).split())
    for part in attempt.messages:
        assert " ".join(part.split()) in words
    page = (
        rejected.text if attempt.csrf else re.sub(r'class="offer">.*?</form>', "", rejected.text, flags=re.S)
    )
    for kept in attempt.kept:
        assert shown(page, kept, attempt.fields[kept]), kept
    for part in attempt.shows:
        assert part in rejected.text
    assert state_of(world) == before
    if not attempt.offers:
        assert 'class="offer"' not in rejected.text
        return
    action, fields, label = offered(rejected)
    assert label.startswith(attempt.offers)
    accepted = visitor.post(action, data=fields)
    assert accepted.status_code == 303, accepted.text
    assert "said=" in accepted.headers["location"]
    assert not world.service.changes.list(world.actor(attempt.user), state=ChangeState.DRAFT)


def offered(response: httpx.Response) -> tuple[str, dict[str, str], str]:
    """Return the address, fields and label of the button that sends the remedy."""
    form = re.search(r'action="([^"]*)" class="offer">(.*?)</form>', response.text, re.S)
    assert form, response.text
    fields = {
        name: html.unescape(value) for name, value in re.findall(r'name="(\w+)" value="([^"]*)"', form[2])
    }
    label = re.search(r"<button[^>]*>(.*?)</button>", form[2], re.S)
    assert label
    return html.unescape(form[1]), fields, html.unescape(label[1])


# --- faults without a form ---


def approvals_at_once(world: World, site: Site) -> None:
    """The approver twice and the owner once approve the same version at the same time.

    One approval succeeds.
    """
    change = world.awaiting_approval()
    users = ("approver", "approver", "owner")
    visitors = [site.visitor(user) for user in users]
    form = {"version": str(change.version)}
    statuses = [
        one.post(f"/changes/{change.id}/approve", data={"csrf": csrf(one.get("/projects")), **form})
        for one in visitors
    ]
    assert sorted(one.status_code for one in statuses) == [303, 409, 409]
    assert all("approved by approver" in one.text for one in statuses if one.status_code == 409)
    events = world.service.changes.get(world.actor("owner"), change.id).events
    assert sum("approved by" in event.message for event in events) == 1


def wrong_and_expired_tokens(world: World, site: Site) -> None:
    """The page names the fault of a token, and is not throttled after four attempts."""
    access, admin = world.service.access, world.actor("admin")
    expired, secret = access.create_token(admin, user="modeler", label="CI", role=Role.MODELER)
    with world.platform.store.write() as connection:
        past = utcnow() - timedelta(hours=1)
        connection.execute(t.tokens.update().where(t.tokens.c.id == expired.id).values(expires_at=past))
    with httpx.Client(base_url=site.address, timeout=30) as visitor:
        for token, message in [
            (secret, f"token {expired.id} (CI) expired"),
            *[("scorer_wrong", "this token is unknown; check it")] * 4,
        ]:
            form = {"csrf": csrf(visitor.get("/login")), "token": token}
            rejected = visitor.post("/login", data=form)
            assert rejected.status_code == 401
            assert message in html.unescape(rejected.text)
        form = {"csrf": csrf(visitor.get("/login")), "token": world.tokens["modeler"]}
        assert visitor.post("/login", data=form).status_code == 303


def no_start_in_a_freeze(world: World, site: Site) -> None:
    """A TEST without a start is booked after the freeze, and its page names the freeze."""
    freeze(world, since=timedelta(minutes=10), minutes=90)
    visitor = site.visitor("modeler")
    form = {"csrf": csrf(visitor.get("/projects")), **booking(world, start="", slot="")}
    response = visitor.post("/changes", data=form)
    assert response.status_code == 303
    page = html.unescape(visitor.get(response.headers["location"]).text)
    assert 'after the freeze "Sales" (Black Friday), which ends at' in page
    (change,) = world.service.changes.list(world.actor("modeler"))
    booked = world.service.changes.get(world.actor("modeler"), change.id).booking
    assert booked.start > utcnow() + timedelta(minutes=70)


def new_features(world: World, site: Site) -> None:
    """The page on which the change is approved names the features that no caller sends yet."""
    digest = uploaded(world, [Feature(name=name) for name in (*FEATURES, "ip_distance_km")])
    change = world.observed(bundle=digest)
    page = site.visitor("modeler").get(f"/changes/{change.id}").text
    assert "added ip_distance_km" in page
    assert "new, and missing until callers send them: ip_distance_km" in page


def the_platform_is_killed(world: World, site: Site) -> None:
    """A TEST continues in the next process with the same change request, slot and lanes."""
    change = world.observed()
    before = state_of(world)
    # After a kill, another process waits until the lease in the database expires. Here the lease is released.
    world.platform.close()
    world.platform = open_service(world.settings, fleet=world.fleet)
    visitor = site.reopen().visitor("modeler")
    assert "Observing" in visitor.get(f"/changes/{change.id}").text
    assert state_of(world) == before
    world.service.changes.finish(world.actor("modeler"), change.id)
    result = world.until(change.id, ChangeState.DONE, ChangeState.REJECTED)
    assert result.verdict == "inconclusive"


def a_server_is_killed(world: World, site: Site) -> None:
    """The change request records when a server was lost and when it is reachable again, and continues."""
    change = world.observed()
    visitor = site.visitor("modeler")
    world.fleet.disconnect("live-2")
    world.tick(3)
    page = visitor.get(f"/changes/{change.id}").text
    assert "lost live-2" in page
    assert "Observing" in page
    world.fleet.restart("live-2")
    world.tick(3)
    assert "live-2" in visitor.get(f"/changes/{change.id}").text.partition("is back")[0]


def the_pool_is_killed(world: World, site: Site) -> None:
    """A TEST in the pool reports the loss. A TEST on the live servers is not delayed by it."""
    change = world.observed(pool=True)
    world.fleet.disconnect("pool-1")
    world.tick(3)
    visitor = site.visitor("modeler")
    assert "lost pool-1" in visitor.get(f"/changes/{change.id}").text
    beside = world.observed(pool=False, title="Beside it")
    assert "Observing" in visitor.get(f"/changes/{beside.id}").text
    late = world.draft(pool=True, title="Too late").id
    form = {"csrf": csrf(visitor.get("/projects")), "start": in_hours(3)}
    assert visitor.post(f"/changes/{late}/submit", data=form).status_code == 303
    page = visitor.get(f"/changes/{late}").text
    assert "the shadow pool does not answer now (pool-1)" in page
    assert "start it, or observe in the live servers" in page


def back_after_a_rollback(world: World, site: Site) -> None:
    """A form of the page from before the rollback does not roll back a second time."""
    change = world.awaiting_approval()
    world.service.changes.approve(world.actor("approver"), change.id)
    world.until(change.id, ChangeState.RELEASED)
    visitor = site.visitor("modeler")
    form = {"csrf": csrf(visitor.get(f"/changes/{change.id}")), "reason": "complaints", "sure": "on"}
    assert visitor.post(f"/changes/{change.id}/rollback", data=form).status_code == 303
    before = state_of(world)
    again = visitor.post(f"/changes/{change.id}/rollback", data=form)
    assert again.status_code == 409
    assert "draft a new change request" in again.text
    assert "Rolled back" in again.text
    assert state_of(world) == before


def deletion(world: World, site: Site) -> None:
    """A draft is deleted, and a final change request is archived."""
    draft, ended = world.draft().id, world.draft(title="Ended").id
    visitor = site.visitor("modeler")
    form = {"csrf": csrf(visitor.get("/projects")), "reason": "not needed"}
    assert visitor.post(f"/changes/{draft}/delete", data=form).status_code == 303
    assert visitor.get(f"/changes/{draft}").status_code == 404
    assert visitor.post(f"/changes/{ended}/withdraw", data=form).status_code == 303
    assert "Archive" in visitor.get(f"/changes/{ended}").text
    assert visitor.post(f"/changes/{ended}/archive", data=form).status_code == 303
    assert ended not in visitor.get("/changes").text


EVENTS: dict[str, Callable[[World, Site], None]] = {
    "three approvals at once": approvals_at_once,
    "expired token, wrong token": wrong_and_expired_tokens,
    "a TEST without a start in a freeze": no_start_in_a_freeze,
    "features that nobody sends": new_features,
    "kill of the platform in mid-TEST": the_platform_is_killed,
    "kill of a server in mid-TEST": a_server_is_killed,
    "kill of the pool in mid-TEST": the_pool_is_killed,
    "back button after a rollback": back_after_a_rollback,
    "deletion": deletion,
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_fault_is_reported_and_has_no_other_effect(world: World, site: Site, name: str) -> None:
    EVENTS[name](world, site)


def test_a_form_of_another_origin_is_not_offered_again(world: World, site: Site) -> None:
    visitor = site.visitor("modeler")
    form = {"csrf": "0" * 64, **booking(world)}
    rejected = visitor.post("/changes", data=form, headers={"Origin": "http://evil.example"})
    assert rejected.status_code == 403
    assert "Send the form again" not in rejected.text
    del visitor.headers["Origin"]
    assert "Send the form again" not in visitor.post("/changes", data=form).text
