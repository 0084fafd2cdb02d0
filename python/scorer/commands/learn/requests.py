"""Change requests of a learning loop, through the SDK."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from scorer.errors import ConfigError
from scorer.learn.gate.publish import Requested
from scorer.release.errors import (
    ConflictError,
    FrozenError,
    InvalidError,
    NotAllowedError,
    QuotaError,
)
from scorer.release.model import ChangeState

if TYPE_CHECKING:
    from scorer.learn.schedule_settings import ScheduleSettings
    from scorer.sdk import PlatformClient

_REFUSED = (ConflictError, FrozenError, InvalidError, NotAllowedError, QuotaError)


class PlatformRequests:
    """Drafts change requests at a platform and submits those that a standing permission covers.

    Args:
        client: Client of the platform, as the user of the learning loop.
        project: Project of the change requests.
        checkpoint: Checkpoint of the change requests.
    """

    def __init__(self, client: PlatformClient, project: str, checkpoint: str) -> None:
        self._client = client
        self._project = project
        self._checkpoint = checkpoint

    def request(
        self,
        kind: Literal["test", "release", "overlay"],
        bundle: str,
        *,
        title: str,
        description: str,
        evidence: Mapping[str, Any],
    ) -> Requested:
        """Draft a change request, once for each kind and bundle, and submit it if that is permitted.

        A rejection is returned and not raised: the loop continues, and the draft waits for a person.
        """
        try:
            change = self._client.draft(
                project=self._project,
                checkpoint=self._checkpoint,
                bundle=bundle,
                title=title,
                description=description,
                kind=kind,
                evidence=evidence,
                key=f"loop:{kind}:{self._checkpoint}:{bundle[7:39]}",
            )
        except _REFUSED as error:
            return Requested("", "", str(error))
        if change.state is not ChangeState.DRAFT:
            return Requested(change.id, str(change.state), "")
        try:
            change = self._client.submit(change.id)
        except _REFUSED as error:
            return Requested(change.id, str(change.state), str(error))
        return Requested(change.id, str(change.state), "")


@contextmanager
def requests_of(settings: ScheduleSettings) -> Iterator[PlatformRequests | None]:
    """Open a client of the platform that the settings name; None if no platform manages the checkpoint."""
    if not settings.platform:
        yield None
        return
    if not settings.project:
        raise ConfigError(
            "schedule.platform is set and schedule.project is empty; name the project of the change requests"
        )
    from scorer.sdk import PlatformClient

    with PlatformClient(settings.platform) as client:
        yield PlatformRequests(client, settings.project, settings.checkpoint)
