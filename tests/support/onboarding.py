"""The steps of a modeler from a model file to a finished report. All of them use pages only.

::

    for step in STEPS:
        step.run(visitor, files)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from browser import Visitor
from model_files import write_model, write_table
from waiting import wait_until

BUILD_SECONDS = 90
"""Limit on the time until a bundle is built."""


@dataclass(frozen=True)
class ModelFiles:
    """The files of a modeler: a model, and the rows with labels that it was trained on."""

    model: Path
    table: Path

    @classmethod
    def written(cls, directory: Path) -> ModelFiles:
        """Write both files into a directory."""
        return cls(write_model(directory / "model.json"), write_table(directory / "table.csv"))


@dataclass(frozen=True)
class OnboardingStep:
    """One step of the sequence.

    Attributes:
        title: Action of the modeler.
        run: Performs the action in the browser. It starts on the page where the previous step ended.
        pages: Number of pages that the modeler reads in this step.
        entries: Number of fields that the modeler fills in, and of files that the modeler chooses.
    """

    title: str
    run: Callable[[Visitor, ModelFiles], None]
    pages: int = 1
    entries: int = 0


def open_the_form(mia: Visitor, _: ModelFiles) -> None:
    mia.open("/models")
    mia.page.get_by_role("link", name="Build a bundle from a model file").click()
    assert mia.page.locator("#f-name").input_value() == "fraud-checkout"


def fill_in(mia: Visitor) -> None:
    """Fill in the version and the label. Name, checkpoint and thresholds are those of the live bundle."""
    mia.page.get_by_label("Version").fill("2026-11-23")
    mia.page.locator("#f-label").fill("fraud")


def send_the_files(mia: Visitor, files: ModelFiles) -> None:
    fill_in(mia)
    mia.page.locator("#f-model").set_input_files(files.model)
    mia.page.locator("#f-table").set_input_files(files.table)
    mia.press("Build the bundle")
    mia.page.wait_for_url("**/builds/bd-*")


def wait_for_the_bundle(mia: Visitor, _: ModelFiles) -> None:
    mia.page.get_by_role("link", name="Start a TEST").wait_for(timeout=BUILD_SECONDS * 1000)
    assert "Done" in mia.page.locator("#live-build").inner_text()


def submit_the_test(mia: Visitor, _: ModelFiles) -> None:
    mia.page.get_by_role("link", name="Start a TEST").click()
    assert mia.page.locator("#f-title").input_value() == "fraud-checkout 2026-11-23"
    mia.press("Submit")
    mia.page.wait_for_url("**/changes/cr-*")


def wait_for_the_test(mia: Visitor, _: ModelFiles) -> None:
    until(mia, "#live-head", "Done", seconds=150)


def read_the_report(mia: Visitor, _: ModelFiles) -> None:
    change = mia.page.url.rsplit("/", 1)[1].partition("?")[0]
    mia.open(f"/changes/{change}/readout")
    assert "Passed: eligible for release" in mia.page.locator(".verdict").inner_text()
    assert mia.page.locator(".plot .main-svg").count() >= 8


STEPS = (
    OnboardingStep("open Models and the form for a bundle", open_the_form),
    # Version, label, model and table.
    OnboardingStep("fill in the form and send model and table", send_the_files, entries=4),
    OnboardingStep("wait until the bundle is built", wait_for_the_bundle, pages=0),
    OnboardingStep("submit the TEST", submit_the_test, pages=2),
    OnboardingStep("wait until the TEST has ended", wait_for_the_test),
    OnboardingStep("open the finished report", read_the_report),
)
"""The steps from a model file to a finished report. Pages that wait refresh themselves."""


def until(visitor: Visitor, place: str, words: str, *, seconds: float = 90) -> None:
    """Wait until a page that refreshes itself shows the words."""

    def shown() -> bool:
        text = visitor.page.locator(place).inner_text()
        assert words in text, visitor.page.locator("main").inner_text()
        return True

    wait_until(shown, words, seconds=seconds)
