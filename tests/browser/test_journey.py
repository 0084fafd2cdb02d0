"""A model's whole way to shoppers and back, driven in the browser by two people, on a real server.

TEST, report, RELEASE, approval by somebody else, canary, released, rolled back: by pages alone.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from browser import PHONE, Visitor, chromium, serving
from bundles import FEATURES
from servers import RunningServer
from waiting import wait_until

from scorer.registry import Registry
from scorer.release.open import PlatformServices
from scorer.web.app import create_app


def _until(visitor: Visitor, words: str) -> None:
    """Wait for words on the page of a change, which refreshes itself."""

    def shown() -> bool:
        text = visitor.page.locator("#live-head").inner_text()
        assert words in text, visitor.page.locator("main").inner_text()
        return True

    wait_until(shown, words, seconds=60)


@pytest.mark.timeout(240)
def test_a_bundle_is_uploaded_tested_released_and_rolled_back(
    server: RunningServer,
    platform: PlatformServices,
    tokens: dict[str, str],
    traffic: None,
    built_bundles: dict[str, Path],
    tmp_path: Path,
) -> None:
    archive = tmp_path / "fraud.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(built_bundles["score-2"], arcname="fraud")
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        mia, otto = Visitor(browser, address), Visitor(browser, address)
        mia.sign_in(tokens["mia"])
        otto.sign_in(tokens["otto"])
        digest = _upload(mia, archive)
        test = _test(mia)
        _read_out(mia, test)
        release = _release(mia, test)
        _approve(mia, otto, release)
        _until(otto, "Done")
        assert _answers(server) == {digest: 1.0}
        _explore(otto, digest)
        _roll_back(mia, release)
        _until(otto, "Rolled back")
        live = Registry(server.directory / "registry").resolve("fraud-checkout@live").digest
        assert live != digest
        assert _answers(server) == {live: 1.0}
        root = Visitor(browser, address)
        root.sign_in(tokens["root"])
        _audited(otto, root, test, release)
        _every_page(otto, test, release, digest)
        for visitor in (mia, otto, root):
            visitor.check()
            visitor.close()


def _answers(server: RunningServer) -> dict[str, float]:
    """Return the shares by bundle that the server reports."""
    lanes = server.status()["checkpoints"][0]["lanes"]
    return {lane["bundle"]: lane["share"] for lane in lanes}


def _upload(mia: Visitor, archive: Path) -> str:
    mia.open("/models")
    mia.page.locator("#u-archive").set_input_files(archive)
    mia.press("Upload and verify")
    mia.page.wait_for_url("**/models/*?said=uploaded")
    assert "in the registry" in mia.page.get_by_role("status").inner_text()
    return mia.page.locator("code.break").first.inner_text()


def _test(mia: Visitor) -> str:
    page = mia.page
    page.get_by_role("link", name="New TEST").click()
    page.get_by_label("Title").fill("Deeper trees")
    assert page.locator("#f-minutes").input_value() == "0.1"
    mia.press("Submit")
    page.wait_for_url("**/changes/cr-*")
    change = page.url.rsplit("/", 1)[1].partition("?")[0]
    _until(mia, "Observing")
    _until(mia, "Done")
    steps = page.locator("#live-steps").inner_text()
    for words in ("Verify the files", "golden cases", "Deploy", "Observe requests", "Write the report"):
        assert words in steps
    assert page.locator("#live-steps li.done").count() >= 9
    assert "pass" in page.locator("#live-head").inner_text()
    assert page.locator("#live-gates tbody tr").count() == 3
    return str(change)


def _read_out(mia: Visitor, change: str) -> None:
    mia.open(f"/changes/{change}/readout")
    page = mia.page
    assert "Passed: eligible for release" in page.locator(".verdict").inner_text()
    assert page.locator(".plot .main-svg").count() >= 8
    assert mia.basics() == []


def _release(mia: Visitor, test: str) -> str:
    page = mia.page
    mia.open(f"/changes/{test}")
    page.get_by_role("link", name="Release this digest").click()
    assert page.locator("#k-release").is_checked()
    page.get_by_label("Title").fill("Deeper trees for everybody")
    mia.press("Submit")
    page.wait_for_url("**/changes/cr-*")
    change = page.url.rsplit("/", 1)[1].partition("?")[0]
    assert change != test
    page.locator("#live-actions", has_text="another approver has to").wait_for(timeout=60_000)
    return str(change)


def _approve(mia: Visitor, otto: Visitor, change: str) -> None:
    # Two-person approval: the submitter sees no form, and a forged request is refused.
    assert mia.page.get_by_role("button", name="Approve and release").count() == 0
    csrf = mia.page.locator("input[name=csrf]").first.input_value()
    answer = mia.page.request.post(
        f"{mia.address}/changes/{change}/approve", form={"csrf": csrf, "version": "1"}
    )
    assert answer.status == 403
    assert "four eyes" in answer.text()
    otto.open("/")
    waiting = otto.page.locator("section", has_text="Needs your action")
    waiting.get_by_role("link", name=change).click()
    otto.page.get_by_label("Comment optional").fill("Report looked at")
    otto.press("Approve and release")
    _until(otto, "Rolling out")


def _explore(otto: Visitor, digest: str) -> None:
    otto.open("/decisions")
    otto.page.locator("table.data a").first.click()
    otto.page.wait_for_url("**/decisions/pay-*")
    text = otto.page.locator("main").inner_text()
    assert "Results by lane" in text
    for name in FEATURES:
        assert name in text
    assert otto.basics() == []
    otto.open("/checkpoints/fraud.checkout")
    assert digest.removeprefix("sha256:")[:12] in otto.page.locator("#live-lanes").inner_text()
    otto.open("/changes")
    otto.page.get_by_role("link", name="cr-").first.click()


def _roll_back(mia: Visitor, change: str) -> None:
    mia.open(f"/changes/{change}")
    page = mia.page
    page.locator("#do-rollback summary").click()
    page.locator("#r-rollback").fill("Complaints from the Netherlands")
    page.get_by_label("Yes, restore the previous lanes now").check()
    page.locator("#do-rollback button").click()
    page.wait_for_url("**said=rollback")
    _until(mia, "Rolled back")


def _audited(otto: Visitor, root: Visitor, test: str, release: str) -> None:
    otto.open(f"/audit?object={release}")
    text = otto.page.locator("main").inner_text()
    for action in ("change.submit", "change.approve", "change.rollback"):
        assert action in text
    assert not otto.page.get_by_role("button", name="Verify the whole log").count(), (
        "the page is for admins only"
    )
    root.open("/audit")
    root.press("Verify the whole log")
    assert "entries are unchanged" in root.page.get_by_role("status").inner_text()
    otto.open(f"/audit?object={test}")
    assert "change.approve" not in otto.page.locator("main").inner_text()


def _every_page(otto: Visitor, test: str, release: str, digest: str) -> None:
    """Check every page on a phone, with the objects of the test."""
    otto.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for path in (
        "/",
        "/checkpoints",
        "/checkpoints/fraud.checkout",
        "/calendar",
        "/changes",
        f"/changes/{test}",
        f"/changes/{release}",
        f"/changes/{release}/readout",
        f"/models/{digest.removeprefix('sha256:')}",
        "/decisions",
        "/audit",
    ):
        assert otto.open(path) == 200, path
        assert otto.basics() == [], path
