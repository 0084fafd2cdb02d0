"""The `[guardrails]` section of learn.toml."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from scorer.bundle.spec import ListSection
from scorer.learn.guardrails.controller import ControllerSettings
from scorer.learn.guardrails.retries import RetrySettings
from scorer.learn.guardrails.tra import TraSettings
from scorer.learn.section import LearnSection

if TYPE_CHECKING:
    from scorer.bundle.rules import BundleRules


class CapSettings(LearnSection):
    """Limit on the use of one attribute of actions."""

    attribute: str
    limit: float = Field(gt=0)


class GuardrailSettings(LearnSection):
    """What no policy may do, whatever it would earn."""

    rules: Path | None = Field(
        default=None,
        description="Rule set (docs/rules.md) that decisions are audited with, relative to the working"
        " directory; default: the rules of the bundle.",
        examples=["rules.toml"],
    )
    lists: dict[str, ListSection] = Field(
        default={},
        description="Files of the lists that the rules name, by name, as in a bundle's specification.",
    )
    complete: bool = Field(
        default=False,
        description="Whether an action that no rule excludes must have been eligible. Only for callers that"
        " leave all eligibility to the rules.",
    )
    caps: tuple[CapSettings, ...] = Field(
        default=(),
        description="Attributes of actions and the most that a decision may use of them on average.",
    )
    controller: ControllerSettings = ControllerSettings()
    tra: TraSettings = TraSettings()
    retries: RetrySettings = RetrySettings()

    def read_rules(self) -> BundleRules | None:
        """Return the rules of the files; None if the bundle's are to be used.

        Raises:
            BundleError: A file cannot be read.
        """
        from scorer.bundle.rules import ListFile, read_rules

        if self.rules is None:
            return None
        lists = {
            name: ListFile(one.file, one.type, one.external, one.minimum_version)
            for name, one in self.lists.items()
        }
        return read_rules(self.rules, lists)
