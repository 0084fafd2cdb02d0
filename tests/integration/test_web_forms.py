"""Tests of every form on the real service layer, by the state before and after."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import serving
from platforms import World

from scorer.release.model import ChangeState, Role
from scorer.release.open import open_service
from scorer.release.store import utcnow
from scorer.web.app import create_app


@pytest.fixture
def world(tmp_path: Path, built_bundles: dict[str, Path]) -> Iterator[World]:
    world = World(tmp_path, built_bundles)
    world.platform.tick()
    yield world
    world.close()


Visit = Callable[[str], httpx.Client]


@pytest.fixture
def visit(world: World) -> Iterator[Visit]:
    """Sign in as one user; return the client."""
    with ExitStack() as stack:
        address = stack.enter_context(serving(world.app()))

        def sign_in(user: str) -> httpx.Client:
            client = stack.enter_context(httpx.Client(base_url=address, timeout=30))
            form = {"csrf": _csrf(client.get("/login")), "token": world.tokens[user]}
            assert client.post("/login", data=form).status_code == 303
            return client

        yield sign_in


def _csrf(answer: httpx.Response) -> str:
    result = re.search(r'name="csrf" value="([^"]*)"', answer.text)
    assert result, answer.text[:400]
    return result[1]


def _post(client: httpx.Client, path: str, *, files: Any = None, **fields: Any) -> httpx.Response:
    return client.post(path, data={"csrf": _csrf(client.get("/projects")), **fields}, files=files)


def _said(answer: httpx.Response) -> str:
    assert answer.status_code == 303, re.findall(r'role="alert">(.*?)</div>', answer.text, re.S)
    return answer.headers["location"].partition("said=")[2]


def test_a_form_of_one_process_is_accepted_by_another(world: World) -> None:
    """Two platform processes on one database have one address, and each request may reach either of them."""
    other = open_service(world.settings, fleet=world.fleet)
    try:
        with ExitStack() as stack:
            apps = (world.app(), create_app(other, other.settings))
            one, two = (
                stack.enter_context(httpx.Client(base_url=stack.enter_context(serving(app)), timeout=30))
                for app in apps
            )
            form = {"csrf": _csrf(one.get("/login")), "token": world.tokens["owner"]}
            two.cookies = one.cookies
            assert two.post("/login", data=form).status_code == 303
            one.cookies = two.cookies
            assert one.post("/logout", data={"csrf": _csrf(two.get("/projects"))}).status_code == 303
    finally:
        other.store.close()


def test_forms_change_a_change_request_from_draft_to_withdrawn(world: World, visit: Visit) -> None:
    modeler = visit("modeler")
    fields = {
        "project": "fraud",
        "kind": "test",
        "checkpoint": "fraud.checkout",
        "bundle": world.candidate,
        "title": "Deeper trees",
        "description": "Two\r\nlines",
        "minutes": "30",
        "stages": "5 % 15 min, 25 % 10 min",
        "holdout": "2",
        "sample": "12.5",
        "pool": "pool",
        "gates": '[{"metric": "error_rate", "success": "== 0"}]',
        "then": "draft",
    }
    response = _post(modeler, "/changes", **fields)
    assert _said(response) == "drafted"
    name = response.headers["location"].split("/")[2].partition("?")[0]
    one = world.service.changes.get(world.actor("modeler"), name).change
    assert (one.title, one.description, one.minutes) == ("Deeper trees", "Two\nlines", 30.0)
    assert [(stage.share, stage.minutes) for stage in one.stages] == [(0.05, 15.0), (0.25, 10.0)]
    assert (one.holdout, one.sample, one.pool) == (0.02, 0.125, True)
    assert [gate.metric for gate in one.gates] == ["error_rate"]

    form = modeler.get(f"/changes/{name}/edit").text
    for text in ("Deeper trees", "5 % 15 min, 25 % 10 min", "12.5", "error_rate"):
        assert text in form
    kept = _post(
        modeler, f"/changes/{name}/edit", **{**fields, "title": "Other", "version": str(one.version)}
    )
    assert _said(kept) == "edited"
    stale = _post(
        modeler, f"/changes/{name}/edit", **{**fields, "title": "Lost", "version": str(one.version)}
    )
    assert stale.status_code == 409
    assert world.service.changes.get(world.actor("modeler"), name).change.title == "Other"

    start = (utcnow() + timedelta(hours=3)).strftime("%Y-%m-%dT%H:00")
    assert _said(_post(modeler, f"/changes/{name}/submit", start=start, slot="2")) == "submit"
    booked = world.service.changes.get(world.actor("modeler"), name).booking
    assert (booked.slot, booked.start.strftime("%Y-%m-%dT%H:%M")) == (2, start)
    later = (utcnow() + timedelta(hours=5)).strftime("%Y-%m-%dT%H:00")
    assert _said(_post(modeler, "/calendar/move", change=name, start=later, slot="1")) == "rebook"
    booked = world.service.changes.get(world.actor("modeler"), name).booking
    assert (booked.slot, booked.start.strftime("%Y-%m-%dT%H:%M")) == (1, later)

    assert _post(modeler, f"/changes/{name}/withdraw").status_code == 422
    assert _said(_post(modeler, f"/changes/{name}/withdraw", reason="not yet")) == "withdraw"
    assert world.service.changes.get(world.actor("modeler"), name).change.state is ChangeState.REJECTED


def _booking(world: World) -> dict[str, str]:
    """Return the form of a TEST that books slot 1 in three hours."""
    return {
        "project": "fraud",
        "kind": "test",
        "checkpoint": "fraud.checkout",
        "bundle": world.candidate,
        "title": "First",
        "minutes": "60",
        "start": (utcnow() + timedelta(hours=3)).strftime("%Y-%m-%dT%H:00"),
        "slot": "1",
        "then": "submit",
    }


def test_the_page_of_a_change_shows_the_forms_that_the_user_may_send(world: World, visit: Visit) -> None:
    change = world.draft().id
    viewers = [visit(user) for user in ("modeler", "modeler", "owner", "viewer", "modeler")]
    pages = [viewer.get(f"/changes/{change}") for viewer in viewers]
    tokens = [set(re.findall(r'name="csrf" value="([^"]*)"', page.text)) for page in pages]
    assert all(len(own) == 1 for own in tokens) and len(set.union(*tokens)) == 5
    forms = [f"/changes/{change}/submit" in page.text for page in pages]
    assert forms == [True, True, True, False, True]
    assert _said(_post(viewers[1], f"/changes/{change}/comment", text="Seen by all")) == "comment"
    assert all("Seen by all" in viewer.get(f"/changes/{change}").text for viewer in viewers)
    (own,) = tokens[0]
    refused = viewers[0].post(f"/changes/{change}/withdraw", data={"csrf": own, "reason": ""})
    assert refused.status_code == 422
    assert set(re.findall(r'name="csrf" value="([^"]*)"', refused.text)) == {own}


def test_a_booking_of_a_taken_slot_leaves_no_draft_and_names_the_next_slot(
    world: World, visit: Visit
) -> None:
    modeler = visit("modeler")
    fields = _booking(world)
    assert _said(_post(modeler, "/changes", **fields)) == "submit"
    refused = _post(modeler, "/changes", **{**fields, "title": "Second"})
    # A refused form leaves no draft, neither at first nor after a reload that repeats it.
    assert refused.status_code == 409
    alert = re.search(r'role="alert">(.*?)</div>', refused.text, re.S)
    assert alert and "next free" in alert[1]
    assert 'value="Second"' in refused.text
    assert _post(modeler, "/changes", **{**fields, "title": "Second"}).status_code == 409
    assert not world.service.changes.list(world.actor("modeler"), state=ChangeState.DRAFT)
    assert _said(_post(modeler, "/changes", **{**fields, "title": "Second", "slot": "2"})) == "submit"


def test_a_draft_is_deleted_only_by_its_author(world: World, visit: Visit) -> None:
    change = world.draft().id
    assert _post(visit("viewer"), f"/changes/{change}/delete").status_code == 403
    modeler = visit("modeler")
    assert f"/changes/{change}/delete" in modeler.get(f"/changes/{change}").text
    assert _said(_post(modeler, f"/changes/{change}/delete")) == "delete"
    assert modeler.get(f"/changes/{change}").status_code == 404


def test_uploads_are_verified_and_refusals_name_the_fault(world: World, visit: Visit) -> None:
    modeler = visit("modeler")
    archive = world.archive("score-3")
    done = _post(modeler, "/models", project="fraud", files={"archive": ("b.tar", io.BytesIO(archive))})
    assert _said(done) == "uploaded"
    page = modeler.get(done.headers["location"])
    assert page.status_code == 200
    for text in ("fraud-checkout", "amount", "decline", "Lineage"):
        assert text in page.text
    broken = _post(
        modeler, "/models", project="fraud", files={"archive": ("b.tar", io.BytesIO(archive[:9000]))}
    )
    assert broken.status_code == 422
    assert 'role="alert"' in broken.text
    assert _post(modeler, "/models", project="fraud").status_code == 422
    adopted = _post(modeler, "/models", project="fraud", reference="fraud-checkout@live")
    assert _said(adopted) == "adopted"
    assert world.live.removeprefix("sha256:") in adopted.headers["location"]


def test_owners_change_members_channels_and_sampling(world: World, visit: Visit) -> None:
    owner, access = visit("owner"), world.service.access
    actor = world.actor("owner")
    assert _said(_post(owner, "/projects/fraud/members", user="outsider", role="viewer")) == "member"
    assert {one.user: one.role for one in access.members(actor, "fraud")}["outsider"] is Role.VIEWER
    assert _said(_post(owner, "/projects/fraud/members", user="outsider", role="none")) == "member"
    assert "outsider" not in {one.user for one in access.members(actor, "fraud")}
    assert _post(owner, "/projects/fraud/members", user="viewer", role="king").status_code == 422

    added = _post(
        owner,
        "/notifications",
        project="fraud",
        url="https://hooks.example.com/scorer",
        severity="warning",
        secret="between us, long enough",
        checkpoints="fraud.checkout",
    )
    assert _said(added) == "channel"
    (channel,) = world.service.notifications.channels(actor, "fraud")
    assert (channel.severity, channel.checkpoints) == ("warning", ("fraud.checkout",))
    page = owner.get("/notifications?project=fraud").text
    assert "between us" not in page
    assert _said(_post(owner, f"/notifications/{channel.id}/remove?project=fraud")) == "channel-removed"
    assert not world.service.notifications.channels(actor, "fraud")

    feature = '[{"feature": "amount", "op": ">=", "value": 100}]'
    sampled = _post(owner, "/checkpoints/fraud.checkout/sampling", percent="2.5", filter=feature)
    assert _said(sampled) == "sampling"
    view = world.service.checkpoints.view(actor, "fraud.checkout")
    assert (view.sample, view.filter) == (0.025, feature)
    wrong = _post(owner, "/checkpoints/fraud.checkout/sampling", percent="2.5", filter="amount > 3")
    assert wrong.status_code == 422
    assert "amount &gt; 3" in wrong.text


def test_admins_create_projects_freezes_and_tokens(world: World, visit: Visit) -> None:
    admin, actor = visit("admin"), world.actor("admin")
    response = _post(admin, "/projects", name="routing", title="Routing", checkpoints="action.authorise")
    assert _said(response) == "project"
    kept = {"title": "Routes", "open_changes": "3", "slot_minutes_per_week": "600", "bundles": "9"}
    assert _said(_post(admin, "/projects/routing", **kept)) == "project"
    project = world.service.access.project(actor, "routing")
    assert (project.title, project.quotas.open_changes, project.checkpoints) == ("Routes", 3, ())

    freeze = {"name": "Sales", "kind": "deny", "cron": "* * * * *", "timezone": "Europe/Amsterdam"}
    assert _said(_post(admin, "/calendar/freezes", **freeze, minutes="5", checkpoints="fraud.*")) == "freeze"
    assert "Freeze at fraud.checkout" in admin.get("/").text
    (one,) = world.service.calendar.freezes(actor)
    assert one.checkpoints == ("fraud.*",)
    assert _post(admin, "/calendar/freezes", **{**freeze, "cron": "often"}, minutes="5").status_code == 422
    assert _said(_post(admin, f"/calendar/freezes/{one.id}/remove")) == "freeze-removed"
    assert "Freeze at" not in admin.get("/").text

    token = _post(admin, "/tokens", label="CI", user="modeler", role="modeler", project="fraud", days="30")
    assert (token.status_code, token.headers["location"]) == (303, "/tokens")
    secret = re.search(r'id="secret">([^<]+)<', admin.get("/tokens").text)
    assert secret
    assert world.service.access.authenticate(secret[1]).user == "modeler"
    assert secret[1] not in admin.get("/tokens").text
    mine = next(one for one in world.service.access.tokens(actor) if one.label == "CI")
    assert _said(_post(admin, f"/tokens/{mine.id}/revoke")) == "revoked"


def test_owners_grant_and_revoke_standing_permissions(world: World, visit: Visit) -> None:
    owner, actor = visit("owner"), world.actor("owner")
    fields = {
        "user": "modeler",
        "kind": "overlay",
        "checkpoint": "action.authorise",
        "days": "7",
        "per_hour": "6",
        "max_shift": "0.5",
        "reason": "five-minute overlay",
    }
    page = "/projects/fraud"
    wrong = _post(owner, f"{page}/permissions", **{**fields, "per_hour": "61"})
    assert wrong.status_code == 422 and "per_hour: Input should be less than or equal to 60" in wrong.text
    assert "five-minute overlay" in wrong.text
    assert _said(_post(owner, f"{page}/permissions", **fields)) == "permission"
    (granted,) = world.service.permissions.list(actor, "fraud")
    assert (granted.user, granted.kind, granted.per_hour, granted.max_shift) == ("modeler", "overlay", 6, 0.5)
    shown = owner.get(page).text
    assert granted.id in shown and "offsets up to 0.5" in shown
    viewer = visit("viewer")
    assert granted.id in viewer.get(page).text and "Grant a standing permission" not in viewer.get(page).text
    path = f"{page}/permissions/{granted.id}/revoke"
    assert _post(viewer, path, reason="x").status_code == 403
    assert _post(owner, path).status_code == 422
    assert _said(_post(owner, path, reason="loop retired")) == "permission-revoked"
    assert world.service.permissions.list(actor, "fraud")[0].revoked_by == "owner"


def test_a_user_without_the_right_gets_an_error_and_sees_no_form(world: World, visit: Visit) -> None:
    viewer = visit("viewer")
    for path, fields in (
        ("/projects", {"name": "mine", "title": "Mine"}),
        ("/projects/fraud/members", {"user": "viewer", "role": "owner"}),
        ("/checkpoints/fraud.checkout/sampling", {"percent": "50"}),
        ("/calendar/freezes", {"name": "x", "kind": "deny", "cron": "* * * * *", "minutes": "5"}),
        ("/notifications", {"project": "fraud", "url": "https://h.example.com", "severity": "info"}),
        ("/models", {"project": "fraud", "reference": "fraud-checkout@live"}),
        ("/tokens", {"label": "x", "role": "admin", "days": "1"}),
    ):
        answer = _post(viewer, path, **fields)
        assert answer.status_code == 403, path
        assert 'role="alert"' in answer.text
    assert "Change the sampling" not in viewer.get("/checkpoints/fraud.checkout").text
    assert "Upload and verify" not in viewer.get("/models").text
    outsider = visit("outsider")
    change = world.draft().id
    for path in (
        f"/changes/{change}",
        f"/changes/{change}/readout",
        f"/changes/{change}/edit",
        "/projects/fraud",
    ):
        assert outsider.get(path).status_code == 404, path
    assert change not in outsider.get("/changes").text
    assert _post(outsider, f"/changes/{change}/withdraw", reason="x").status_code == 404


def test_every_page_of_an_empty_platform_opens(world: World, visit: Visit) -> None:
    for user in ("admin", "viewer", "outsider"):
        visitor = visit(user)
        for path in (
            "/",
            "/checkpoints",
            "/checkpoints/fraud.checkout",
            "/calendar",
            "/changes",
            "/changes/new",
            "/models",
            "/decisions",
            "/learning",
            "/notifications",
            "/agents",
            "/audit",
            "/projects",
            "/tokens",
        ):
            assert visitor.get(path).status_code == 200, (user, path)
    draft = world.draft().id
    assert visit("modeler").get(f"/changes/{draft}").status_code == 200
    readout = visit("modeler").get(f"/changes/{draft}/readout")
    assert readout.status_code == 200
    assert "Not evaluated yet" in readout.text


def test_a_page_that_the_browser_has_cached_is_not_sent_again(world: World, visit: Visit) -> None:
    owner = visit("owner")
    first = owner.get("/changes")
    tag = {"If-None-Match": first.headers["ETag"]}
    again = owner.get("/changes", headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    world.draft()
    changed = owner.get("/changes", headers=tag)
    assert changed.status_code == 200
    assert changed.headers["ETag"] != first.headers["ETag"]
    assert visit("modeler").get("/changes", headers=tag).status_code == 200


def test_the_answer_to_a_refused_form_names_its_page(world: World, visit: Visit) -> None:
    """The path of the form accepts no GET. The browser shows and refreshes the page's own path."""
    owner = visit("owner")
    change, build = world.draft().id, world.build().id
    world.cancel_builds()
    for path, page in (
        (f"/changes/{change}/promote", f"/changes/{change}"),
        ("/checkpoints/fraud.checkout/rollback", "/checkpoints/fraud.checkout"),
        (f"/builds/{build}/cancel", f"/builds/{build}"),
    ):
        refused = _post(owner, path)
        assert refused.status_code in (409, 422), path
        assert owner.get(path).status_code == 405
        assert f'<body data-page="{page}"' in refused.text
        assert "data-page" not in owner.get(page).text


def _offer(response: httpx.Response) -> tuple[str, dict[str, str]]:
    """Return the address and the fields of the button that sends the remedy."""
    offer = re.search(r'action="([^"]*)" class="offer">(.*?)</form>', response.text, re.S)
    assert offer, response.text
    return offer[1], dict(re.findall(r'name="(\w+)" value="([^"]*)"', offer[2]))


def test_a_release_without_a_test_offers_to_start_one(world: World, visit: Visit) -> None:
    modeler = visit("modeler")
    fields = {**_booking(world), "kind": "release", "start": ""}
    rejected = _post(modeler, "/changes", **fields)
    assert rejected.status_code == 422
    assert "Start a TEST of it" in rejected.text
    assert world.service.changes.list(world.actor("modeler")) == []
    action, taken = _offer(rejected)
    assert taken["title"] == fields["title"]
    assert _said(modeler.post(action, data=taken)) == "submit"
    (change,) = world.service.changes.list(world.actor("modeler"))
    assert change.kind == "test"


def test_a_start_in_the_past_offers_the_next_free_slot(world: World, visit: Visit) -> None:
    modeler = visit("modeler")
    rejected = _post(modeler, "/changes", **{**_booking(world), "start": "2020-01-01T00:00"})
    assert rejected.status_code == 422
    assert "Take the next free slot" in rejected.text
    assert world.service.changes.list(world.actor("modeler")) == []
    action, taken = _offer(rejected)
    assert _said(modeler.post(action, data=taken)) == "submit"
    assert len(world.service.changes.list(world.actor("modeler"))) == 1


def test_a_rejected_booking_is_repeated_for_the_free_slot_with_one_button(world: World, visit: Visit) -> None:
    modeler = visit("modeler")
    fields = _booking(world)
    assert _said(_post(modeler, "/changes", **fields)) == "submit"
    rejected = _post(modeler, "/changes", **{**fields, "title": "Second"})
    assert rejected.status_code == 409
    offer = re.search(r'action="([^"]*)" class="offer">(.*?)</form>', rejected.text, re.S)
    assert offer and "Take slot" in offer[2]
    taken = dict(re.findall(r'name="(\w+)" value="([^"]*)"', offer[2]))
    assert _said(modeler.post(offer[1], data=taken)) == "submit"
    result = {one.title: one.id for one in world.service.changes.list(world.actor("modeler"))}
    booked = [world.service.changes.get(world.actor("modeler"), one).booking for one in result.values()]
    assert set(result) == {"First", "Second"}
    assert len({(one.slot, one.start) for one in booked}) == 2
