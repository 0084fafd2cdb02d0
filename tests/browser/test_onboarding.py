"""From a model file to a finished report in the browser, without a terminal."""

from __future__ import annotations

from pathlib import Path

import onboarding
import pytest
from browser import PHONE, Visitor, chromium, serving
from bundles import FEATURES
from model_files import write_table
from onboarding import ModelFiles
from servers import RunningServer

from scorer.release.open import PlatformServices
from scorer.web.app import create_app


@pytest.mark.timeout(300)
def test_from_a_model_file_to_a_finished_report(
    server: RunningServer, platform: PlatformServices, tokens: dict[str, str], traffic: None, tmp_path: Path
) -> None:
    files = ModelFiles.written(tmp_path)
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        mia = Visitor(browser, address)
        mia.sign_in(tokens["mia"])
        onboarding.open_the_form(mia, files)
        assert mia.basics() == []
        assert mia.violations() == []
        _refused(mia, files, tmp_path)
        onboarding.send_the_files(mia, files)
        onboarding.wait_for_the_bundle(mia, files)
        assert mia.basics() == []
        assert mia.violations() == []
        _phone(mia)
        onboarding.submit_the_test(mia, files)
        onboarding.wait_for_the_test(mia, files)
        onboarding.read_the_report(mia, files)
        _tried(mia)
        # The script that measures the time uses the same steps and no others.
        assert [step.run for step in onboarding.STEPS] == [
            onboarding.open_the_form,
            onboarding.send_the_files,
            onboarding.wait_for_the_bundle,
            onboarding.submit_the_test,
            onboarding.wait_for_the_test,
            onboarding.read_the_report,
        ]
        mia.check()
        mia.close()


def _tried(mia: Visitor) -> None:
    """Try a payment with the live bundle: first an invalid value, then a score, then the programs to copy."""
    page = mia.page
    mia.open("/checkpoints/fraud.checkout")
    page.get_by_role("link", name="Try it").click()
    assert mia.violations() == []
    page.get_by_label(FEATURES[0], exact=True).fill("a lot")
    mia.press("Score this payment")
    assert f'{FEATURES[0]}: "a lot" is not a number' in page.get_by_role("alert").inner_text()
    assert page.get_by_label(FEATURES[0], exact=True).input_value() == "a lot"
    mia.problems.clear()  # the browser logs the status 422 on its console
    page.get_by_label(FEATURES[0], exact=True).fill("250")
    mia.press("Score this payment")
    assert page.locator("#tried .badge").inner_text() in ("approve", "review", "decline")
    assert page.get_by_role("button", name="Copy").count() == 3
    text = page.locator("pre").nth(1).inner_text()
    for name in FEATURES:
        assert f'"name": "{name}"' in text
    assert mia.basics() == []
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    assert mia.basics() == []


def _refused(mia: Visitor, files: ModelFiles, directory: Path) -> None:
    """A file of a wrong type is refused in one sentence, and the form keeps its values."""
    page = mia.page
    pickled = directory / "model.pkl"
    pickled.write_bytes(b"\x80\x04.")
    onboarding.fill_in(mia)
    page.locator("#f-features").fill("amount number")
    page.locator("#f-model").set_input_files(pickled)
    page.locator("#f-table").set_input_files(write_table(directory / "first.csv"))
    mia.press("Build the bundle")
    alert = page.get_by_role("alert")
    assert "can run code" in alert.inner_text()
    assert page.locator("#f-version").input_value() == "2026-11-23"
    assert page.locator("#f-label").input_value() == "fraud"
    assert page.locator("#f-features").input_value() == "amount number"
    mia.problems.clear()  # the browser logs the status 422 on its console
    # The page of a failed build shows the reason and links to the form.
    short = directory / "short.csv"
    short.write_text("unrelated\n1\n")
    page.locator("#f-model").set_input_files(files.model)
    page.locator("#f-table").set_input_files(short)
    mia.press("Build the bundle")
    page.wait_for_url("**/builds/bd-*")
    page.get_by_role("link", name="Upload other files").wait_for(timeout=90_000)
    assert f'feature "{FEATURES[0]}"' in page.locator("#live-build .warning").inner_text()
    page.get_by_role("link", name="Upload other files").click()
    assert page.locator("#f-version").input_value() == "2026-11-23"


def _phone(mia: Visitor) -> None:
    wide, here = mia.page.viewport_size, mia.page.url.removeprefix(mia.address)
    mia.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for path in ("/builds", "/builds/new", here):
        assert mia.open(path) == 200, path
        assert mia.basics() == [], path
    mia.page.set_viewport_size(wide)


@pytest.mark.timeout(240)
def test_users_servers_and_checkpoints_are_added_by_pages(
    server: RunningServer, platform: PlatformServices, tokens: dict[str, str]
) -> None:
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        root, newcomer = Visitor(browser, address), Visitor(browser, address)
        root.sign_in(tokens["root"])
        page = root.page
        root.open("/")
        page.get_by_role("link", name="Users").click()
        page.get_by_label("Name").fill("nell")
        page.locator("#f-project").select_option("fraud")
        page.locator("#f-role").select_option("modeler")
        root.press("Add the user and show a token")
        secret = page.locator("#secret").inner_text()
        assert root.basics() == []
        assert root.violations() == []
        newcomer.sign_in(secret)
        newcomer.open("/builds/new")
        assert newcomer.page.get_by_role("button", name="Build the bundle").count() == 1
        assert newcomer.page.get_by_role("link", name="Settings").count() == 0
        row = page.locator("tr", has_text="nell")
        row.locator("summary").click()
        row.get_by_role("button", name="Disable nell").click()
        page.wait_for_url("**said=user-removed")
        newcomer.open("/builds/new")
        assert "/login" in newcomer.page.url, "a disabled user is still signed in"
        _settings(root, server)
        root.check()
        root.close()
        newcomer.close()


def _settings(root: Visitor, server: RunningServer) -> None:
    page = root.page
    page.get_by_role("link", name="Settings").click()
    assert root.violations() == []
    servers = page.locator("#servers")
    servers.get_by_text("Add a server").click()
    servers.get_by_label("Name").fill("gone")
    servers.get_by_label("Control service").fill("127.0.0.1:9")
    root.press("Check and add the server")
    assert "nothing was changed" in page.get_by_role("alert").inner_text()
    assert servers.get_by_label("Control service").input_value() == "127.0.0.1:9"
    root.problems.clear()  # the browser logs the status 503 on its console
    checkpoints = page.locator("#checkpoints")
    checkpoints.get_by_text("Add a checkpoint").click()
    checkpoints.get_by_label("Name").fill("fraud.refund")
    checkpoints.get_by_label("Alias").fill("fraud-refund@live")
    root.press("Add the checkpoint")
    page.wait_for_url("**/checkpoints/fraud.refund?said=checkpoint")
    lacking = page.locator("#lacking")
    lacking.get_by_text("Settings of the server").click()
    text = lacking.inner_text()
    assert "live-1 does not have this checkpoint" in text
    assert '[checkpoints."fraud.refund"]' in text
    assert 'alias = "fraud-refund@live"' in text
    lacking.get_by_label("Answers").select_option("score")
    root.press("Add it to this server")
    page.wait_for_url("**/checkpoints/fraud.refund?said=served")
    assert page.locator("#lacking").count() == 0
    assert "fraud.refund" in {one["checkpoint"] for one in server.status()["checkpoints"]}
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for path in ("/users", "/settings", "/checkpoints/fraud.refund", "/checkpoints", "/builds/new"):
        assert root.open(path) == 200, path
        assert root.basics() == [], path
