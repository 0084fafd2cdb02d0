"""What a tool is: one definition, from which listing, permissions, limits, schemas and documents follow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from scorer.release.errors import TimedOutError
from scorer.release.model import Role

if TYPE_CHECKING:
    from scorer.release.agents.arguments import ToolArguments
    from scorer.release.model import Actor
    from scorer.release.service import Service
    from scorer.release.settings import PlatformFile

T = TypeVar("T", bound="ToolArguments")


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that may run.

    Attributes:
        service: Operations of the platform.
        settings: The platform's settings.
        actor: The caller as an agent, in the projects that allow the tool.
        until: Time of the clock `time.monotonic` at which the caller has been told that it took too long.
    """

    service: Service
    settings: PlatformFile
    actor: Actor
    until: float = field(default=float("inf"))

    def check_time(self) -> None:
        """Raise TimedOutError if the caller does not wait any more. A tool calls it before it writes."""
        if time.monotonic() >= self.until:
            raise TimedOutError("the call has reached its time limit, and nothing was done; ask for less")


@dataclass(frozen=True)
class Tool:
    """A tool that agents may use.

    Attributes:
        name: Its name, which owners allow and agents call.
        title: Its name for people.
        product: Group in which owners see it.
        description: What it does and returns, for agents and for the documentation.
        arguments: Class of its arguments.
        run: Performs it.
        role: Lowest role in a project that may use it.
        drafts: Whether it creates or edits a draft; otherwise it only reads.
        seconds: Time limit; None: that of the settings.
        result_kb: Limit of the result's data in KiB; None: that of the settings.
    """

    name: str
    title: str
    product: str
    description: str
    arguments: type[ToolArguments]
    run: Callable[[ToolCall, Any], Any]
    role: Role = Role.VIEWER
    drafts: bool = False
    seconds: float | None = None
    result_kb: int | None = None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments: an object, without references to other documents."""
        found = self.arguments.model_json_schema()
        found.pop("title", None)
        found.pop("description", None)
        return found
