"""The review queue in a real browser: from the list to a decision, with the keyboard alone."""

from __future__ import annotations

from pathlib import Path

from browser import PHONE, Visitor, chromium, serving
from demo_platform import demo_platform

from scorer.release.model import CaseDecision, CaseState
from scorer.web.app import create_app


def test_a_reviewer_decides_a_case_with_the_keyboard(tmp_path: Path) -> None:
    platform, tokens = demo_platform(tmp_path)
    reviews, mia = platform.service.reviews, platform.service.access.authenticate(tokens["mia"])
    with serving(create_app(platform, platform.settings)) as address, chromium() as browser:
        visitor = Visitor(browser, address)
        page = visitor.page
        visitor.sign_in(tokens["mia"])
        page.get_by_role("link", name="Reviews", exact=True).focus()
        page.keyboard.press("Enter")
        page.get_by_role("link", name="Case 1", exact=True).focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"{address}/reviews/1")
        page.get_by_role("button", name="Claim", exact=True).focus()
        page.keyboard.press("Enter")
        page.get_by_text("The case is assigned to you.").wait_for()
        assert reviews.get(mia, 1).case.assignee == "mia"

        # From the first choice, the form is filled in by Space, Tab and typing.
        page.get_by_label("Approve the payment").focus()
        page.keyboard.press("ArrowDown")
        assert page.get_by_label("Decline the payment").is_checked()
        page.keyboard.press("Tab")
        page.keyboard.type("Suspected")
        page.keyboard.press("Tab")
        page.keyboard.type("Two cards, one device.")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        page.get_by_text("The decision is saved.").wait_for()
        found = reviews.get(mia, 1).case
        assert (found.state, found.decision, found.reason) == (
            CaseState.DECIDED,
            CaseDecision.DECLINE,
            "suspected_fraud",
        )
        assert found.notes == "Two cards, one device."
        assert page.get_by_text("waiting for delivery").is_visible()
        page.get_by_role("link", name="Next open case").click()
        page.wait_for_url(lambda url: url.rsplit("/", 1)[-1] not in ("1", "3", "4", "5"))
        visitor.check()
        visitor.close()

        # A claim on a version that another reviewer has changed is refused, and nothing is lost.
        late = Visitor(browser, address, size=PHONE)
        late.sign_in(tokens["otto"])
        late.open("/reviews/6")
        reviews.claim(mia, 6)
        late.press("Claim")
        late.page.get_by_text("was changed concurrently").wait_for()
        assert reviews.get(mia, 6).case.assignee == "mia"
        assert late.basics() == []
        late.close()

        reader = Visitor(browser, address)
        reader.sign_in(tokens["vera"])
        reader.open("/reviews/7")
        assert reader.page.get_by_role("button", name="Claim", exact=True).count() == 0
        assert reader.page.get_by_text("does not allow reviews").is_visible()
        reader.close()
    platform.close()
