"""Tests of the controls of a rollout in the browser: promote now, pause, resume, skip a stage, archive.

A real server with payments, a platform in a process of its own, Chromium, and users of three roles. Each test
uses one control on the page and compares what the page shows with REST, the audit log and the lanes of the
server. A control that does not apply is not offered, and a request for it is refused with rule and remedy.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import shop
from browser import PHONE, Visitor, chromium
from platform_process import running
from servers import RunningServer
from waiting import wait_until

from scorer.release.answers import ChangeDetail
from scorer.release.model import ChangeKind, ChangeState, Role, Stage
from scorer.release.open import open_service
from scorer.release.settings import PlatformFile
from scorer.sdk import ConflictError, InvalidError, PlatformClient

CHECKPOINT = "fraud.checkout"
HOUR = 60.0
PLAN = (Stage(0.1, HOUR), Stage(0.3, HOUR), Stage(0.6, HOUR))
"""Stages that end by their time in no test."""
CONTROLS = ("promote", "pause", "resume", "skip", "rollback", "archive")
SECONDS = 120.0
"""Limit on a step of the pipeline."""


@dataclass(frozen=True)
class Site:
    """A platform with the server that it manages, and a bundle whose TEST has passed.

    Attributes:
        browser: Chromium.
        address: Address of the platform.
        server: The server.
        tokens: Tokens by user.
        mia: REST as the approver who submits.
        otto: REST as the approver who approves.
        root: REST as the admin.
        bundle: Digest of the bundle that is released.
    """

    browser: Any
    address: str
    server: RunningServer
    tokens: Mapping[str, str]
    mia: PlatformClient
    otto: PlatformClient
    root: PlatformClient
    bundle: str

    def submitted(self, kind: ChangeKind, *stages: Stage) -> str:
        """Submit a change request for the bundle as mia; return its id."""
        draft = self.mia.draft(
            project="fraud",
            checkpoint=CHECKPOINT,
            bundle=self.bundle,
            title="Deeper trees",
            kind=kind,
            minutes=0.1,
            stages=stages,
        )
        return self.mia.submit(draft.id).id

    def until(self, change: str, holds: Callable[[ChangeDetail], bool]) -> ChangeDetail:
        """Wait until a condition holds for a change request."""

        def look() -> ChangeDetail | None:
            found = self.mia.change(change)
            return found if holds(found) or found.change.state.is_final else None

        found = wait_until(look, f"{change} moves on", seconds=SECONDS)
        assert holds(found), found.change.note
        return found

    def rolling(self, *stages: Stage) -> str:
        """Start a release that mia submits and otto approves; return its id when the server has its lanes."""
        change = self.submitted(ChangeKind.RELEASE, *stages)
        self.until(change, lambda one: one.change.step == "approval")
        self.otto.approve(change)
        self.in_stage(change, 1)
        return change

    def in_stage(self, change: str, number: int) -> ChangeDetail:
        """Wait until the servers have the lanes of a stage."""
        name = f"canary {number}"
        return self.until(
            change, lambda found: any((one.name, one.status) == (name, "running") for one in found.steps)
        )

    def shares(self) -> dict[str, float]:
        """Return the shares of the answer lanes by name, as the server states them."""
        lanes = self.server.status()["checkpoints"][0]["lanes"]
        return {lane["name"]: round(lane["share"], 6) for lane in lanes}

    def audited(self, change: str, action: str) -> tuple[str, dict[str, Any]]:
        """Return user and details of the only audit entry about an operation on a change request."""
        (found,) = self.mia.audit(object=change, action=f"change.{action}")
        details = dict(found.details)
        # A page is used with the session of a token, which the entry names.
        assert details.pop("token").startswith("tok_")
        return found.actor, details


@pytest.fixture(scope="module")
def site(server: RunningServer, traffic: None, built_bundles: dict[str, Path]) -> Iterator[Site]:
    text = shop.platform_toml(server)
    (server.directory / "platform.toml").write_text(text)
    platform = open_service(PlatformFile.parse(text, base=server.directory))
    tokens = shop.sign_up(platform.service.access)
    platform.close()
    with ExitStack() as stack:
        browser = stack.enter_context(chromium())
        process = stack.enter_context(running(server.directory))
        clients = {
            user: stack.enter_context(PlatformClient(process.url, token)) for user, token in tokens.items()
        }
        root, mia = clients["root"], clients["mia"]
        root.set_member("fraud", "vera", Role.VIEWER)
        tokens["vera"] = root.create_token("test", Role.VIEWER, user="vera").secret
        wait_until(lambda: root.checkpoint(CHECKPOINT).recorded, "the lanes are known")
        bundle = mia.upload(built_bundles["score-2"], "fraud").digest
        made = Site(browser, process.url, server, tokens, mia, clients["otto"], root, bundle)
        made.until(made.submitted(ChangeKind.TEST), lambda one: one.change.state is ChangeState.DONE)
        yield made


@pytest.fixture
def rolling(site: Site) -> Iterator[Callable[..., str]]:
    """Start releases, which are rolled back at the end."""
    started: list[str] = []

    def start(*stages: Stage) -> str:
        started.append(site.rolling(*(stages or PLAN)))
        return started[-1]

    yield start
    for change in started:
        if "rollback" in site.mia.change(change).allowed:
            site.mia.rollback(change, reason="the test has ended")
    assert list(site.shares().values()) == [1.0]


@pytest.fixture
def visit(site: Site) -> Iterator[Callable[[str, str], Visitor]]:
    """Open the page of a change request as a user. The end checks that the browser reported no problem."""
    opened: list[Visitor] = []

    def open_page(user: str, change: str) -> Visitor:
        visitor = Visitor(site.browser, site.address)
        visitor.sign_in(site.tokens[user])
        visitor.open(f"/changes/{change}")
        opened.append(visitor)
        return visitor

    yield open_page
    for visitor in opened:
        visitor.check()
        visitor.close()


def offered(visitor: Visitor) -> set[str]:
    """Return the controls on a page."""
    found = {name for name in CONTROLS if visitor.page.locator(f"#do-{name}").count()}
    is_archivable = visitor.page.get_by_role("button", name="Archive", exact=True).count()
    return found | ({"archive"} if is_archivable else set())


def fill_in(visitor: Visitor, control: str, reason: str, *, sure: bool = False, stage: int = 0) -> None:
    """Open the form of a control and fill it in."""
    form = visitor.page.locator(f"#do-{control}")
    form.locator("summary").click()
    form.get_by_label("Reason").fill(reason)
    if sure:
        form.get_by_role("checkbox").check()
    if stage:
        form.get_by_label("Stage").select_option(str(stage))


def send(visitor: Visitor, control: str) -> None:
    visitor.page.locator(f"#do-{control} button").click()


def said(visitor: Visitor) -> str:
    """Return the message of the page after an operation."""
    status = visitor.page.locator(".banner[role=status]")
    status.wait_for()
    return str(status.inner_text())


def refused(visitor: Visitor, code: int = 409) -> str:
    """Return the error that the page shows. The browser's console has its status, and nothing else."""
    alert = visitor.page.get_by_role("alert")
    alert.wait_for()
    (problem,) = visitor.problems
    assert str(code) in problem
    visitor.problems.clear()
    return str(alert.inner_text())


def asked(visitor: Visitor, change: str, control: str, **form: str) -> tuple[int, str]:
    """Send the form of a control that the page does not offer; return the status and the error."""
    csrf = visitor.page.locator("input[name=csrf]").first.input_value()
    address = f"{visitor.address}/changes/{change}/{control}"
    answer = visitor.page.request.post(address, form={"csrf": csrf, **form}, max_redirects=0)
    alert = re.search(r'role="alert">(.*?)</div>', answer.text(), re.DOTALL)
    assert alert, answer.status
    return answer.status, html.unescape(alert[1])


def whole(visitor: Visitor) -> None:
    """Check the accessibility of a page, wide and on a phone."""
    wide = visitor.page.viewport_size
    for size in (wide, {"width": PHONE[0], "height": PHONE[1]}):
        visitor.page.set_viewport_size(size)
        assert visitor.basics() == []
        assert visitor.violations() == []
    visitor.page.set_viewport_size(wide)


@pytest.mark.timeout(300)
def test_pause_holds_the_shares_and_a_second_one_is_refused(
    site: Site, rolling: Callable[..., str], visit: Callable[[str, str], Visitor]
) -> None:
    change = rolling()
    mia, otto, vera = (visit(user, change) for user in ("mia", "otto", "vera"))
    assert offered(mia) == {"pause", "rollback"}, "the plan was approved: its author cannot shorten it"
    assert offered(otto) == {"promote", "pause", "skip", "rollback"}
    assert offered(vera) == set()
    fill_in(otto, "pause", "me too")
    fill_in(mia, "pause", "the bank calls")
    send(mia, "pause")
    assert said(mia) == "Paused: the release keeps its current shares."
    rollout = mia.page.locator("#live-rollout")
    text = rollout.inner_text()
    assert "1 of 3, 10\N{NARROW NO-BREAK SPACE}% of the answers" in text
    assert "Paused by mia since" in text
    assert rollout.locator(".badge", has_text="paused").count() == 1
    assert offered(mia) == {"resume", "rollback"}
    whole(mia)

    found = site.mia.change(change)
    assert (found.change.step, found.change.paused_by) == ("canary 1", "mia")
    assert found.change.paused_at is not None
    assert found.outlook is not None
    assert found.outlook.stage_ends is None
    assert found.outlook.waits[0].startswith("paused by mia since")
    entry = site.audited(change, "pause")
    assert entry == ("mia", {"step": "canary 1", "reason": "the bank calls"})
    assert site.shares() == {"canary": 0.1, "live": 0.9}

    # Otto's form is of the version before.
    send(otto, "pause")
    error = refused(otto)
    assert "has moved on since version" in error
    assert "canary 1 paused by mia: the bank calls; look at it again" in error
    with pytest.raises(ConflictError, match=r"is paused already, since .*; resume or promote it"):
        site.otto.pause(change, reason="me too")
    assert site.audited(change, "pause") == entry

    # The page with the refusal has the page's own address and follows the release.
    otto.page.locator("#live-rollout").get_by_text("Paused by mia").wait_for()
    assert otto.page.url == f"{site.address}/changes/{change}"
    site.mia.resume(change, reason="all is well")
    otto.page.locator("#live-steps").get_by_text("resumed by mia").wait_for()
    assert offered(otto) == {"promote", "pause", "skip", "rollback"}


@pytest.mark.timeout(300)
def test_resume_lets_the_stage_end_by_its_time_and_its_gates(
    site: Site, rolling: Callable[..., str], visit: Callable[[str, str], Visitor]
) -> None:
    change = rolling(Stage(0.1, 0.05), Stage(0.5, HOUR))
    site.otto.pause(change, reason="wait")
    mia = visit("mia", change)
    assert offered(mia) == {"resume", "rollback"}
    # The gates have what they need, and the shares are held.
    held = site.until(change, lambda one: bool(one.gates) and not any(gate.blocks for gate in one.gates))
    assert held.change.step == "canary 1"
    assert site.shares() == {"canary": 0.1, "live": 0.9}

    fill_in(mia, "resume", "all is well")
    send(mia, "resume")
    assert said(mia) == "Resumed: the stage ends when its time is over and its gates pass."
    mia.page.locator("#live-rollout").get_by_text("2 of 2, 50\N{NARROW NO-BREAK SPACE}% of").wait_for()
    found = site.in_stage(change, 2)
    assert (found.change.paused_by, found.change.paused_at) == (None, None)
    entry = site.audited(change, "resume")
    assert entry == ("mia", {"step": "canary 1", "reason": "all is well"})
    assert site.shares() == {"canary": 0.5, "live": 0.5}
    assert offered(mia) == {"pause", "rollback"}
    whole(mia)

    status, error = asked(mia, change, "resume", reason="again")
    assert (status, error.strip().endswith("pause or promote it")) == (409, True)
    assert f"{change} is not paused, so it cannot be resumed" in error
    assert site.audited(change, "resume") == entry


@pytest.mark.timeout(300)
def test_promote_begins_the_next_stage_and_then_all_requests(
    site: Site, rolling: Callable[..., str], visit: Callable[[str, str], Visitor]
) -> None:
    change = rolling(*PLAN[:2])
    mia, otto = visit("mia", change), visit("otto", change)
    status, error = asked(mia, change, "promote", reason="mine", sure="yes")
    assert status == 403
    assert f"mia submitted {change} and cannot promote it: four eyes; ask another approver" in error
    status, error = asked(otto, change, "promote", reason="quick")
    assert status == 422
    assert "a promotion takes effect immediately; tick the box to confirm it" in error

    freeze = site.root.add_freeze("Sales", cron="* * * * *", minutes=5, reason="Black Friday")
    otto.page.reload()
    assert 'Frozen by "Sales" until' in otto.page.locator("#live-rollout").inner_text()
    fill_in(otto, "promote", "seen enough", sure=True)
    send(otto, "promote")
    error = refused(otto, 423)
    assert f'checkpoint "{CHECKPOINT}" is frozen by "Sales" until' in error
    assert error.endswith(f"promote {change} after that")
    assert site.shares() == {"canary": 0.1, "live": 0.9}
    site.root.remove_freeze(freeze.id)

    otto.open(f"/changes/{change}")
    fill_in(otto, "promote", "seen enough", sure=True)
    assert otto.page.locator("#do-promote button").inner_text() == "Promote now"
    send(otto, "promote")
    assert said(otto) == "Promoted: the servers receive the next lanes."
    # The call has sent the lanes to the server.
    assert site.shares() == {"canary": 0.3, "live": 0.7}
    assert "2 of 2, 30\N{NARROW NO-BREAK SPACE}%" in otto.page.locator("#live-rollout").inner_text()
    found = site.in_stage(change, 2)
    assert any(
        "canary 1 promoted by otto (seen enough): 30% of the answers" in e.message for e in found.events
    )
    entry = site.audited(change, "promote")
    assert entry == ("otto", {"step": "canary 1", "reason": "seen enough"})
    whole(otto)

    otto.open(f"/changes/{change}")
    fill_in(otto, "promote", "for everybody", sure=True)
    assert otto.page.locator("#do-promote button").inner_text() == "Promote to all requests"
    send(otto, "promote")
    assert said(otto) == "Promoted: the servers receive the next lanes."
    assert site.shares() == {"live": 1.0}
    site.until(change, lambda one: one.change.state is ChangeState.DONE)
    otto.page.locator("#live-head", has_text="Done").wait_for()
    assert offered(otto) == {"rollback"}
    steps = [one.details["step"] for one in site.mia.audit(object=change, action="change.promote")]
    assert steps == ["canary 2", "canary 1"]
    status, error = asked(otto, change, "promote", reason="more", sure="yes")
    assert status == 409
    assert f'{change} is "done", and promote requires released; draft a new change request' in error


@pytest.mark.timeout(300)
def test_skip_leaves_a_stage_out(
    site: Site, rolling: Callable[..., str], visit: Callable[[str, str], Visitor]
) -> None:
    change = rolling()
    otto = visit("otto", change)
    fill_in(otto, "skip", "the weekend", stage=2)
    options = otto.page.locator("#k-stage option").all_inner_texts()
    assert [one.partition(":")[0] for one in options] == ["2", "3"]
    send(otto, "skip")
    assert said(otto) == "The stage will be skipped."
    step = otto.page.locator("#live-steps li.skipped")
    assert (step.count(), "30" in step.inner_text()) == (1, True)
    whole(otto)
    found = site.mia.change(change)
    assert (found.change.step, found.change.skipped) == ("canary 1", ("canary 2",))
    assert {one.name: one.status for one in found.steps}["canary 2"] == "skipped"
    assert found.outlook is not None
    assert found.outlook.to_come == (3,)
    entry = site.audited(change, "skip")
    assert entry == ("otto", {"step": "canary 2", "reason": "the weekend"})
    assert site.shares() == {"canary": 0.1, "live": 0.9}

    status, error = asked(otto, change, "skip", reason="again", stage="2")
    assert (status, f"{change} has no stage 2 to come; the stages to come are 3" in error) == (422, True)
    with pytest.raises(InvalidError, match="no stage 1 to come; the stages to come are 3"):
        site.otto.skip(change, 1, reason="over")
    site.otto.promote(change, reason="on")
    assert site.shares() == {"canary": 0.6, "live": 0.4}, "stage 2 was entered"
    site.in_stage(change, 3)
    otto.open(f"/changes/{change}")
    assert offered(otto) == {"promote", "pause", "rollback"}
    status, error = asked(otto, change, "skip", reason="again", stage="3")
    assert (status, f"{change} has no stage to come; promote it, or wait" in error) == (409, True)
    assert site.audited(change, "skip") == entry


@pytest.mark.timeout(300)
def test_archive_hides_a_release_that_has_ended(
    site: Site, rolling: Callable[..., str], visit: Callable[[str, str], Visitor]
) -> None:
    change = rolling()
    mia = visit("mia", change)
    status, error = asked(mia, change, "archive")
    assert status == 409
    assert f'{change} is "released", and archive requires done, rejected, expired, rolled back' in error
    assert error.strip().endswith("roll it back, or wait until it is done")
    fill_in(mia, "rollback", "complaints", sure=True)
    send(mia, "rollback")
    assert said(mia) == "Rolled back: the previous lanes are active again."
    assert site.shares() == {"live": 1.0}
    assert offered(mia) == {"archive"}
    vera = visit("vera", change)
    assert offered(vera) == set()
    events = len(site.mia.change(change).events)

    mia.press("Archive")
    assert said(mia) == "Archived: lists omit the change request."
    assert "Archived by mia" in mia.page.locator("main").inner_text()
    assert mia.page.get_by_role("button", name="Unarchive").count() == 1
    whole(mia)
    found = site.mia.change(change)
    assert (found.change.archived_by, found.change.state) == ("mia", ChangeState.ROLLED_BACK)
    assert len(found.events) == events, "an archive is no event"
    assert site.audited(change, "archive") == ("mia", {})
    assert change not in {one.id for one in site.mia.changes()}
    assert change in {one.id for one in site.mia.changes(archived=True)}
    status, error = asked(mia, change, "archive")
    assert (status, f"{change} is archived already; unarchive it to list it again" in error) == (409, True)
    mia.open("/changes")
    assert mia.page.get_by_role("link", name=change).count() == 0

    mia.open(f"/changes/{change}")
    mia.press("Unarchive")
    assert said(mia) == "The change request is listed again."
    mia.open("/changes")
    assert mia.page.get_by_role("link", name=change).count() >= 1
    assert site.audited(change, "unarchive") == ("mia", {})
